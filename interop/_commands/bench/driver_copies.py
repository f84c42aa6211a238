"""CUDA's own copies, by ctypes: what `interop.copyto` is measured beside."""

from __future__ import annotations

import ctypes

__all__ = ["DriverCopies"]

_HOST, _DEVICE = 1, 2


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = [
        (f"{side}_{name}", kind)
        for side in ("src", "dst")
        for name, kind in (
            ("x", ctypes.c_size_t),
            ("y", ctypes.c_size_t),
            ("memory", ctypes.c_int),
            ("host", ctypes.c_void_p),
            ("device", ctypes.c_uint64),
            ("array", ctypes.c_void_p),
            ("pitch", ctypes.c_size_t),
        )
    ] + [("width", ctypes.c_size_t), ("height", ctypes.c_size_t)]


class DriverCopies:
    """Copies on one stream, whose context is current. Nothing is waited for but what CUDA itself waits for."""

    def __init__(self, stream: int) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._stream = ctypes.c_void_p(stream)

    def on_device(self, target: int, source: int, count: int) -> None:
        """Copy bytes that lie in a row."""
        self._call("cuMemcpyAsync", ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(count))

    def to_device(self, target: int, source: int, count: int) -> None:
        """Copy bytes of the host that lie in a row."""
        self._call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(target), ctypes.c_void_p(source), ctypes.c_size_t(count))

    def to_host(self, target: int, source: int, count: int) -> None:
        """Copy bytes to the host that lie in a row."""
        self._call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(target), ctypes.c_uint64(source), ctypes.c_size_t(count))

    def rows_to_device(self, target: int, target_pitch: int, source: int, pitch: int, width: int, rows: int) -> None:
        """Copy rows of `width` bytes of the host, which start at every `pitch` bytes."""
        of_host = {"src_memory": _HOST, "src_host": source, "src_pitch": pitch}
        self._rows(width, rows, dst_memory=_DEVICE, dst_device=target, dst_pitch=target_pitch, **of_host)

    def rows_to_host(self, target: int, target_pitch: int, source: int, pitch: int, width: int, rows: int) -> None:
        """Copy rows of `width` bytes to the host."""
        of_host = {"dst_memory": _HOST, "dst_host": target, "dst_pitch": target_pitch}
        self._rows(width, rows, src_memory=_DEVICE, src_device=source, src_pitch=pitch, **of_host)

    def _rows(self, width: int, rows: int, **sides: int) -> None:
        self._call("cuMemcpy2DAsync_v2", ctypes.byref(_Copy2D(width=width, height=rows, **sides)))

    def _call(self, name: str, *arguments: object) -> None:
        if status := getattr(self._driver, name)(*arguments, self._stream):
            raise RuntimeError(f"interop bench: {name}: CUDA error {status}")
