"""What each library makes of an `interop.Array`, in each memory and layout: for `interop conformance`."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import interop
from interop import _core
from interop._memory.places import Memory
from interop.testing import LAYOUTS

__all__ = ["CONSUMERS", "Consumer", "Seen", "Taken"]

_LAYOUTS = [name for name in LAYOUTS if name != "broadcast"]  # which no view of an `interop.Array` is
_VALUES = np.arange(24, dtype=np.float32).reshape(4, 6)


class Seen(NamedTuple):
    """Where an array lies and what is in it, by what its library says of it."""

    address: int
    shape: tuple[int, ...]
    steps: tuple[int, ...] | None  # in bytes; None where the library does not say
    values: Any


@dataclass(frozen=True)
class Taken:
    """What one array gives."""

    memory: Memory
    layout: str
    outcome: str  #: "right" (the array's own memory), "copy", "refused", "-" (not tried), or "WRONG"
    detail: str

    def __str__(self) -> str:
        return f"{self.memory} {self.layout}: {self.outcome} ({self.detail})"


@dataclass(frozen=True)
class Consumer:
    """One way out of interop: how a library takes an array of interop's, and what it then has."""

    library: str
    way: str
    device: str
    module: str
    take: Callable[[Any, Any], Any]  # (module, array)
    see: Callable[[Any, Any], Seen]  # (module, what it took)
    ends_at: str = ""  # a layout at which the library ends the process

    @property
    def title(self) -> str:
        """The heading of its table."""
        return f"`interop.Array` in {self.library}, by {self.way}, {self.device}"

    def check(self) -> list[Taken]:
        """Let it take every layout in every memory; ImportError where the library, or a GPU, is not here."""
        if importlib.util.find_spec(self.module.split(".")[0]) is None:
            raise ImportError("not installed")
        if self.device == "device" and not _core.has_gpu():
            raise ImportError("no GPU")
        module = importlib.import_module(self.module)
        memories: tuple[Memory, ...] = ("host",) if self.device == "host" else ("pinned", "managed", "device")
        return [self._taken(module, memory, layout) for memory in memories for layout in _LAYOUTS]

    def _taken(self, module: Any, memory: Memory, layout: str) -> Taken:
        if layout == self.ends_at:
            return Taken(memory, layout, "-", "the library ends the process, of whatever producer")
        base = interop.empty(_VALUES.shape, "float32", memory=memory)
        interop.copyto(base, _VALUES)
        whole = base.__cuda_array_interface__["data"][0] if memory == "device" else np.asarray(base).ctypes.data
        expected = LAYOUTS[layout](_VALUES)
        view = LAYOUTS[layout](base)  # type: ignore[arg-type]  # the same of an `interop.Array`
        try:
            seen = self.see(module, self.take(module, view))
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            return Taken(memory, layout, "refused", f"{type(error).__name__}: {first}")
        address = whole + expected.ctypes.data - _VALUES.ctypes.data
        steps = [step for size, step in zip(expected.shape, expected.strides, strict=True) if size > 1]
        if seen.shape != expected.shape or not np.array_equal(seen.values, expected):
            return Taken(memory, layout, "WRONG", f"shape {seen.shape}, {np.asarray(seen.values).tolist()}")
        if expected.size == 0:
            return Taken(memory, layout, "right", "no elements")
        if seen.address != address:
            return Taken(memory, layout, "copy", "other memory")
        if seen.steps is not None:
            own = [step for size, step in zip(seen.shape, seen.steps, strict=True) if size > 1]
            if own != steps:
                return Taken(memory, layout, "WRONG", f"strides {seen.steps}")
        return Taken(memory, layout, "right", "its own memory")

    def table(self, cells: list[Taken]) -> str:
        """Return the section of the page: memories with the same outcomes share a row."""
        rows: dict[str, list[str]] = {}
        for memory in dict.fromkeys(cell.memory for cell in cells):
            outcomes = {cell.layout: cell.outcome for cell in cells if cell.memory == memory}
            rows.setdefault(" | ".join(outcomes[layout] for layout in _LAYOUTS), []).append(memory)
        lines = [
            f"## {self.title}",
            "",
            "| memory | " + " | ".join(_LAYOUTS) + " |",
            "|---" * (len(_LAYOUTS) + 1) + "|",
        ]
        lines += [f"| {', '.join(memories)} | {outcomes} |" for outcomes, memories in rows.items()]
        return "\n".join(lines) + "\n"


# ---- what each library says of its array ----


def _in_bytes(steps: Any) -> tuple[int, ...]:
    return tuple(4 * step for step in steps)


def _copied(array: Any) -> Any:
    """Read the values by interop, where the library itself copies no array of any strides to the host."""
    return np.asarray(interop.copy(array, memory="host"))


def _numpy(np_: Any, x: Any) -> Seen:
    x = np.asarray(x)
    return Seen(x.ctypes.data, x.shape, x.strides, x)


def _torch(torch: Any, x: Any) -> Seen:
    return Seen(x.data_ptr(), tuple(x.shape), _in_bytes(x.stride()), x.cpu().numpy())


def _jax(jax: Any, x: Any) -> Seen:
    return Seen(x.unsafe_buffer_pointer(), x.shape, None, np.array(x))


def _cupy(cupy: Any, x: Any) -> Seen:
    return Seen(x.data.ptr, x.shape, x.strides, x.get())


def _numba(cuda: Any, x: Any) -> Seen:
    shown = x.__cuda_array_interface__
    return Seen(shown["data"][0], x.shape, x.strides, _copied(x) if x.size else np.empty(x.shape, np.float32))


def _warp(warp: Any, x: Any) -> Seen:
    return Seen(x.ptr or 0, tuple(x.shape), tuple(x.strides), x.numpy())


def _to_tvm_ffi(tvm_ffi: Any, x: Any) -> Any:
    """Take it by the C exchange API, which orders nothing: who takes an array so is to work on interop's stream."""
    x.synchronize()
    return tvm_ffi.from_dlpack(x)


def _tvm_ffi(tvm_ffi: Any, x: Any) -> Seen:
    return Seen(x.data_ptr(), tuple(x.shape), _in_bytes(x.strides), _copied(x))


def _cuda_core(utils: Any, x: Any) -> Seen:
    compact = np.empty(x.shape, np.float32).strides
    steps = compact if x.strides is None else _in_bytes(x.strides)
    return Seen(x.ptr, tuple(x.shape), steps, _copied(x))


def _consumers() -> Iterator[Consumer]:
    convert = "`interop.convert`"
    for device in ("host", "device"):
        yield Consumer("NumPy", "`numpy.asarray`", device, "numpy", lambda np_, x: np_.asarray(x), _numpy)
        yield Consumer(
            "NumPy",
            '`numpy.from_dlpack(device="cpu")`',
            device,
            "numpy",
            lambda np_, x: np_.from_dlpack(x, device="cpu"),
            _numpy,
        )
        yield Consumer("Python", "`memoryview`", device, "numpy", lambda np_, x: memoryview(x), _numpy)
        yield Consumer(
            "PyTorch",
            "`torch.from_dlpack`",
            device,
            "torch",
            lambda torch, x: torch.from_dlpack(x),
            _torch,
            ends_at="reversed",  # torch 2.13, of NumPy's arrays, too
        )
        yield Consumer("PyTorch", convert, device, "torch", lambda torch, x: interop.convert(x, "torch"), _torch)
        yield Consumer("JAX", "`jax.dlpack.from_dlpack`", device, "jax", lambda jax, x: jax.dlpack.from_dlpack(x), _jax)
        yield Consumer("JAX", convert, device, "jax", lambda jax, x: interop.convert(x, "jax"), _jax)
        yield Consumer("Warp", "`warp.from_dlpack`", device, "warp", lambda warp, x: warp.from_dlpack(x), _warp)
        yield Consumer("tvm-ffi", "`tvm_ffi.from_dlpack`", device, "tvm_ffi", _to_tvm_ffi, _tvm_ffi)
        yield Consumer(
            "cuda.core",
            "`StridedMemoryView.from_any_interface`",
            device,
            "cuda.core.utils",
            lambda utils, x: utils.StridedMemoryView.from_any_interface(x, stream_ptr=-1),
            _cuda_core,
        )
    device = "device"
    yield Consumer("CuPy", "`cupy.asarray`", device, "cupy", lambda cupy, x: cupy.asarray(x), _cupy)
    yield Consumer("CuPy", "`cupy.from_dlpack`", device, "cupy", lambda cupy, x: cupy.from_dlpack(x), _cupy)
    yield Consumer("CuPy", convert, device, "cupy", lambda cupy, x: interop.convert(x, "cupy"), _cupy)
    yield Consumer("Numba", "`cuda.as_cuda_array`", device, "numba.cuda", lambda cuda, x: cuda.as_cuda_array(x), _numba)
    yield Consumer("Numba", convert, device, "numba.cuda", lambda cuda, x: interop.convert(x, "numba"), _numba)


CONSUMERS = tuple(_consumers())
