"""CuPy."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from interop import _core
from interop._core import Array
from interop._libraries.base import Captures, Capturing, Library, Streams, gpu, import_into

__all__ = ["LIBRARY"]


def _take(cupy: Any, array: Array, stream: int | None) -> Any:
    # Managed memory is said to be plain memory of its GPU. Of DLPack's type for it CuPy makes the same array; but that
    # type's id is no GPU's, and CuPy would give the current stream of device 0.
    export = _core.Export(array, gpu("CuPy", array, "copy it to the GPU with cupy.asarray(x)"), stream)
    return import_into("CuPy", array, lambda: cupy.from_dlpack(export))


def _borrow(cupy: Any, array: Array) -> Any:
    dtype, cuda = _DTYPES[array.dtype], cupy.cuda
    shape = array.shape
    size = math.prod(shape) * dtype.itemsize
    memory = cuda.UnownedMemory(_core.address_of(array), size, array, cuda.runtime.getDevice())
    return cupy.ndarray(shape, dtype, cuda.MemoryPointer(memory, 0))


_DTYPES = {
    name: np.dtype(name)
    for name in (
        "bool",
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}


class _Named:
    """A stream by its handle, as CuPy takes it. What named the stream is kept as long."""

    def __init__(self, handle: int, named_by: Any) -> None:
        self._handle, self._named_by = handle, named_by

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def _stream_of(cupy: Any, device: int, handle: int, named_by: Any) -> Any:
    return _known(cupy, device, handle) if named_by is None else _made(cupy, device, handle, named_by)


@functools.lru_cache(maxsize=64)
def _known(cupy: Any, device: int, handle: int) -> Any:
    """Return the stream of a handle, which the object does not own."""
    return _made(cupy, device, handle, None)


def _made(cupy: Any, device: int, handle: int, named_by: Any) -> Any:
    streams = cupy.cuda.Stream
    if handle in (1, 2):  # CuPy's own objects, by which its pool knows these streams
        return streams.null if handle == 1 else streams.ptds
    if hasattr(streams, "from_external"):
        return streams.from_external(_Named(handle, named_by))
    return cupy.cuda.ExternalStream(handle, device)  # which CuPy 14 deprecates


def _on(cupy: Any, device: int, handle: int, named_by: Any) -> contextlib.AbstractContextManager[Any]:
    if cupy.cuda.runtime.getDevice() == device:
        stream: contextlib.AbstractContextManager[Any] = _stream_of(cupy, device, handle, named_by)
        return stream
    return _on_device(cupy, device, handle, named_by)


@contextlib.contextmanager
def _on_device(cupy: Any, device: int, handle: int, named_by: Any) -> Iterator[None]:
    with cupy.cuda.Device(device), _stream_of(cupy, device, handle, named_by):
        yield


# ---- CUDA graphs ----


def _pool_of(cupy: Any, kept: list[Any]) -> Any:
    """Return a memory pool whose memory is never freed as long as `kept` is."""

    def allocate(size: int) -> Any:
        memory = cupy.cuda.Memory(size)
        kept.append(memory)  # where the pool runs out of memory, it would free what the graph has already used
        return cupy.cuda.MemoryPointer(memory, 0)

    return cupy.cuda.MemoryPool(allocate)


@contextlib.contextmanager
def _captured(cupy: Any, capturing: Capturing) -> Iterator[None]:
    if "cupy" not in capturing.pool:
        memory: list[Any] = []
        capturing.pool["cupy"] = (_pool_of(cupy, memory), memory)
    pool, _ = capturing.pool["cupy"]
    capture = capturing.capture
    with (
        _on(cupy, capture.device, capture.stream, capturing.stream),
        cupy.cuda.using_allocator(pool.malloc),
        _kept_plans(cupy.fft.config.get_plan_cache(), capturing.kept),
    ):
        yield


@contextlib.contextmanager
def _kept_plans(cache: Any, kept: list[Any]) -> Iterator[None]:
    """Keep the plans of FFTs, which have memory of their own: the cache drops none of them meanwhile."""
    size, bytes_ = cache.get_size(), cache.get_memsize()
    cache.set_size(-1)
    cache.set_memsize(-1)
    try:
        yield
    finally:
        kept.extend(node.plan for _, node in cache)
        cache.set_size(size)
        cache.set_memsize(bytes_)


LIBRARY = Library(
    name="cupy",
    module="cupy",
    owns=lambda cupy, x: isinstance(x, cupy.ndarray),
    take=_take,
    borrow=_borrow,
    install="pip install 'interop-dlpack[cu13]' (or [cu12])",
    on_host=False,
    to_device=lambda cupy, array, device: cupy.asarray(array),
    to_numpy=lambda x: x.get(),
    has_cuda=lambda cupy: cupy.cuda.is_available(),
    stream=lambda cupy: f"CuPy's current stream, {cupy.cuda.get_current_stream().ptr:#x}",
    streams=Streams(
        current=lambda cupy, device: cupy.cuda.get_current_stream(device).ptr or 1,
        on=_on,
        device=lambda cupy: cupy.cuda.runtime.getDevice(),
        device_of=lambda x: x.data.device_id,
    ),
    captures=Captures(takes_part=lambda cupy: cupy.cuda.is_available(), within=_captured),
)
