"""The GPU by its driver alone: streams, delays, writes and copies on any stream, memory in use.

A race is made visible like this: a kernel that waits holds up one stream, and the write (or the read) of the race is
queued behind it. Code that does not honour that stream then works on the old values for certain, not by chance. None
of it belongs to an array library, so every pair of libraries can be tested alike.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from helpers import machine

LEGACY, PER_THREAD = 1, 2
DELAY_MS = 300  # longer than any call's host time, once the first call is made
COLLECTION_MS = 2000  # longer than `gc.collect`, with all libraries loaded

_WAITING = """
.version 7.0
.target sm_75
.address_size 64
.visible .entry wait(.param .u64 nanoseconds)
{
    .reg .u64 %limit, %start, %now;
    .reg .pred %more;
    ld.param.u64 %limit, [nanoseconds];
    mov.u64 %start, %globaltimer;
again:
    nanosleep.u32 1000;
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %more, %now, %limit;
    @%more bra again;
    ret;
}
"""


def _call(name: str, *arguments: Any) -> None:
    status = getattr(machine.driver(), name)(*arguments)
    assert status == 0, f"{name}: CUDA error {status}"


@functools.cache
def _primary(device: int) -> ctypes.c_void_p:
    context = ctypes.c_void_p()
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(device))
    return context


@contextlib.contextmanager
def primary_context(device: int = 0) -> Iterator[None]:
    """Make the primary context of a device current."""
    _call("cuCtxPushCurrent_v2", _primary(device))
    try:
        yield
    finally:
        _call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


@functools.cache
def _waiting_kernel(device: int) -> ctypes.c_void_p:
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    with primary_context(device):
        _call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(_WAITING.encode()))
        _call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(b"wait"))
    return function


def delay(stream: int, milliseconds: float = DELAY_MS, device: int = 0) -> None:
    """Queue a kernel on `stream` that does nothing for this long."""
    nanoseconds = ctypes.c_uint64(int(milliseconds * 1e6))
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(nanoseconds))
    one = ctypes.c_uint(1)
    kernel = _waiting_kernel(device)
    with primary_context(device):
        _call(
            "cuLaunchKernel", kernel, one, one, one, one, one, one, ctypes.c_uint(0), _stream(stream), arguments, None
        )


def _stream(handle: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(handle)


def fill(pointer: int, value: float, count: int, stream: int, device: int = 0) -> None:
    """Queue a write of `count` float32 values on `stream`."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    with primary_context(device):
        _call(
            "cuMemsetD32Async", ctypes.c_uint64(pointer), ctypes.c_uint(bits), ctypes.c_size_t(count), _stream(stream)
        )


class Snapshot:
    """A place to copy compact float32 memory to, at one moment of a stream.

    The memory is allocated here, ahead: an allocation between the racing parts could wait for the device.
    """

    def __init__(self, shape: tuple[int, ...], device: int = 0) -> None:
        self._values = np.empty(shape, np.float32)
        self._target = ctypes.c_uint64()
        self._device = device
        with primary_context(device):
            _call("cuMemAlloc_v2", ctypes.byref(self._target), ctypes.c_size_t(self._values.nbytes))

    def take(self, pointer: int, stream: int) -> None:
        """Queue the copy on `stream`."""
        size = ctypes.c_size_t(self._values.nbytes)
        with primary_context(self._device):
            _call("cuMemcpyDtoDAsync_v2", self._target, ctypes.c_uint64(pointer), size, _stream(stream))

    def values(self) -> np.ndarray:
        """Return what was copied, once all is done."""
        synchronize(self._device)
        host, size = ctypes.c_void_p(self._values.ctypes.data), ctypes.c_size_t(self._values.nbytes)
        with primary_context(self._device):
            _call("cuMemcpyDtoH_v2", host, self._target, size)
            _call("cuMemFree_v2", self._target)
        return self._values


class ManagedMemory:
    """Bytes that the host and every device can read, at `pointer`."""

    def __init__(self, size: int) -> None:
        pointer = ctypes.c_uint64()
        with primary_context():
            for_all_streams = ctypes.c_uint(1)
            _call("cuMemAllocManaged", ctypes.byref(pointer), ctypes.c_size_t(size), for_all_streams)
        self.pointer = pointer.value

    def __del__(self) -> None:
        with primary_context():
            _call("cuMemFree_v2", ctypes.c_uint64(self.pointer))


def new_stream(device: int = 0) -> int:
    """Return a new non-blocking stream, which is never destroyed."""
    stream = ctypes.c_void_p()
    with primary_context(device):
        _call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(1))
    return stream.value


def is_busy(stream: int, device: int = 0) -> bool:
    """Is anything queued on `stream` still to be done?"""
    with primary_context(device):
        status = machine.driver().cuStreamQuery(_stream(stream))
    assert status in (0, 600), f"cuStreamQuery: CUDA error {status}"
    return status == 600


def synchronize(device: int = 0) -> None:
    with primary_context(device):
        _call("cuCtxSynchronize")


def free_bytes(device: int = 0) -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    with primary_context(device):
        _call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value


def eventually(condition: Callable[[], bool], seconds: float = 30) -> bool:
    """Wait for what another thread does in its own time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


class Side:
    """A non-blocking stream of one library: what the library itself would queue work on, inside `current()`."""

    def __init__(self, library: Any) -> None:
        self.library = library
        if library.name == "torch":
            self.stream = library.module.cuda.Stream()
            self.handle = self.stream.cuda_stream
        elif library.name == "cupy":
            self.stream = library.module.cuda.Stream(non_blocking=True)
            self.handle = self.stream.ptr
        elif library.name == "numba":  # an array is bound to its stream
            self.handle = new_stream()
            self.stream = library.module.external_stream(self.handle)
        else:
            raise NotImplementedError(library)

    def current(self) -> contextlib.AbstractContextManager[Any]:
        if self.library.name == "torch":
            return self.library.module.cuda.stream(self.stream)
        if self.library.name == "cupy":
            return self.stream
        return contextlib.nullcontext()

    def make(self, x: np.ndarray) -> Any:
        """Return an array with these values, ready, whose library works on this stream."""
        if self.library.name == "numba":
            made = self.library.bind(x, self.stream)
        else:
            with self.current():
                made = self.library.make(x)
        synchronize()
        return made


@functools.cache
def slow_in_jax(jax: Any) -> Callable[[Any, float], Any]:
    """Return a JAX function (x, scale) -> scale * x that takes about as long as `delay`."""
    big = jax.device_put(np.ones((4096, 4096), "float32"), jax.devices("cuda")[0])

    @jax.jit
    def slow(big: Any, x: Any, scale: float) -> Any:
        y = jax.lax.fori_loop(0, 300, lambda _, y: (y @ big) / 4096, big)
        return x * scale * y[0, 0]

    return lambda x, scale: slow(big, x, scale)
