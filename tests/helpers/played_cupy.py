"""A CuPy that is played on the device of `helpers.played_gpu`: arrays, a current stream, and a sum queued on it.

And a library that is registered, each of whose arrays has a stream of its own. All of it for the order of calls: what
is queued runs as late as it may.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import types
import weakref
from typing import Any, ClassVar, Self

import numpy as np

import interop
from helpers import dlpack
from helpers.played_gpu import FOLDER, driver

_played = ctypes.CDLL(str(FOLDER / "libplayed.so"))
N = 64


def new_stream() -> int:
    handle = ctypes.c_void_p()
    driver.cuStreamCreate(ctypes.byref(handle), 1)
    return handle.value


def add(a: int, b: int, c: int, stream: int) -> None:
    """Queue c = a + b of `N` numbers on a stream."""
    _played.add(*map(ctypes.c_void_p, (a, b, c)), N, ctypes.c_void_p(stream))


def memory(value: float) -> interop.Array:
    """Return device memory with this value, which is there."""
    x = interop.empty(N, "float32")
    interop.copyto(x, np.full(N, value, "float32"))
    x.synchronize()
    return x


def pointer(x: interop.Array) -> int:
    capsule = x.__dlpack__(stream=-1)
    return dlpack.read_capsule(capsule).tensor.data


class Field:
    """An array of a library that works on `stream`."""

    def __init__(self, value: float, stream: int) -> None:
        self.memory, self.stream = memory(value), stream
        self.ptr = pointer(self.memory)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        fixed = {"shape": (N,), "typestr": "<f4", "version": 3, "strides": None}
        return {**fixed, "data": (self.ptr, False), "stream": self.stream}

    def write(self, value: float) -> None:
        """Queue a write of twice this value."""
        ones = memory(value)
        _kept.append(ones)
        add(pointer(ones), pointer(ones), self.ptr, self.stream)

    def read(self) -> float:
        """Return the value that work queued now on the stream reads."""
        zeros, seen = memory(0), memory(-1)
        add(self.ptr, pointer(zeros), pointer(seen), self.stream)
        driver.cuStreamSynchronize(ctypes.c_void_p(self.stream))
        return ctypes.c_float.from_address(pointer(seen)).value


interop.register(Field, name="fields")
_kept: list[interop.Array] = []


class Stream:
    current: ClassVar[list[Stream]] = []

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr

    @classmethod
    def from_external(cls, named) -> Stream:
        return cls(named.__cuda_stream__()[1])

    def __enter__(self) -> Self:
        self.current.append(self)
        return self

    def __exit__(self, *_) -> None:
        self.current.pop()


Stream.null, Stream.ptds = Stream(0), Stream(2)
Stream.current.append(Stream.null)


class ndarray:  # noqa: N801 - CuPy's name
    """An array on memory that `owner` keeps."""

    def __init__(self, ptr: int, owner) -> None:
        self.data = types.SimpleNamespace(ptr=ptr, device_id=0)
        self.shape, self.strides, self.dtype, self.owner = (N,), (4,), np.dtype("float32"), owner


def array(value: float) -> ndarray:
    owner = memory(value)
    return ndarray(pointer(owner), owner)


def from_dlpack(export) -> ndarray:
    assert export.__dlpack_device__()[0] == dlpack.CUDA
    current = Stream.current[-1].ptr or 1
    managed = dlpack.consume(export.__dlpack__(stream=current, max_version=(1, 0), copy=None))
    made = ndarray(managed.tensor.data, None)
    weakref.finalize(made, managed.deleter, ctypes.byref(managed))
    return made


def summed(a: ndarray, b: ndarray, out: ndarray | None = None) -> ndarray:
    """Queue a sum on the current stream."""
    out = array(-1) if out is None else out
    add(a.data.ptr, b.data.ptr, out.data.ptr, Stream.current[-1].ptr)
    return out


ndarray.__module__ = "cupy"
cupy, cuda = types.ModuleType("cupy"), types.ModuleType("cupy.cuda")
cupy.ndarray, cupy.from_dlpack, cupy.cuda = ndarray, from_dlpack, cuda
cuda.Stream, cuda.MemoryPointer = Stream, types.SimpleNamespace
cuda.Device = lambda index: contextlib.nullcontext()
cuda.get_current_stream = lambda device=None: Stream.current[-1]
cuda.runtime = types.SimpleNamespace(getDevice=lambda: 0)
sys.modules |= {"cupy": cupy, "cupy.cuda": cuda}
