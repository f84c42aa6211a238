"""What interop's memory pools hold, and keep: `interop.memory_pool`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from interop import _core
from interop._arguments import named, shown
from interop._memory.places import Device

__all__ = ["MemoryPool", "memory_pool", "set_allocator"]


class MemoryPool:
    """The memory of one kind that interop has of one device: statistics, and what it keeps.

    `interop.memory_pool` gives it. Device memory comes from a CUDA memory pool of interop's own, in stream order.
    Managed and pinned memory comes in blocks, which are kept for the next array of their size.

    Attributes
    ----------
    used_bytes, used_high : int
        Bytes in arrays, or waiting for the work that used them; the most that there ever were.
    reserved_bytes, reserved_high : int
        Bytes that interop has of the device or the host, used or kept; the most that there ever were.
    release_threshold : int
        How many bytes may be kept; all by default. More is given back when the host next waits for the device, or, of
        managed and pinned memory, when a new block is made. Can be set.
    """

    def __init__(self, memory: str, device: Device, function: str) -> None:
        self._pool = _core.Pool(memory, device, function)
        self.memory = memory
        self.device = f"cuda:{self._pool.device}"

    def __repr__(self) -> str:
        return f"interop.MemoryPool({self.memory!r}, device={self.device!r})"

    @property
    def used_bytes(self) -> int:
        return self._pool.state()[0]

    @property
    def used_high(self) -> int:
        return self._pool.state()[1]

    @property
    def reserved_bytes(self) -> int:
        return self._pool.state()[2]

    @property
    def reserved_high(self) -> int:
        return self._pool.state()[3]

    @property
    def release_threshold(self) -> int:
        return self._pool.state()[4]

    @release_threshold.setter
    def release_threshold(self, most: int) -> None:
        self._pool.set_release_threshold(_bytes("release_threshold", "the value", most))

    def trim(self, keep: int = 0) -> None:
        """Give back what no array uses, down to `keep` reserved bytes; the host may wait for the device."""
        self._pool.trim(_bytes("trim", "keep", keep))

    def limit(self, most: int) -> None:
        """Refuse managed memory beyond this many bytes with a CudaError; at most, and by default, what the GPU has."""
        if self.memory != "managed":
            raise ValueError(f"interop.MemoryPool.limit: the pool is of {self.memory} memory; accepted: managed memory")
        self._pool.set_limit(_bytes("limit", "most", most))


def _bytes(method: str, name: str, count: int) -> int:
    said = f"interop.MemoryPool.{method}: {name} is {shown(count)}; accepted: a number of bytes"
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(said)
    if not 0 <= count < 2**64:
        raise ValueError(said + ", 0 to 2**64 - 1")
    return count


@named("interop.memory_pool")
def memory_pool(memory: Literal["device", "managed", "pinned"] = "device", *, device: Device = None) -> MemoryPool:
    """Return the pool that the arrays of one kind of memory of a device come from.

    Parameters
    ----------
    memory : "device", "managed" or "pinned"
        Which kind.
    device : int, "cuda" or "cuda:<index>", optional
        The GPU; that of the current context by default, or the first.

    Returns
    -------
    MemoryPool
        Its statistics, its `release_threshold` and `trim`.

    Raises
    ------
    ValueError
        `memory` or `device` is none of these.
    CudaError
        There is no GPU.

    Notes
    -----
    interop's pools are beside those of torch and CuPy. What the pool of a device keeps, the driver gives to others of
    this process when it runs out of memory.

    Examples
    --------
    >>> pool = interop.memory_pool()  # doctest: +SKIP
    >>> pool.release_threshold = 1 << 30  # doctest: +SKIP
    >>> pool.used_bytes <= pool.reserved_bytes  # doctest: +SKIP
    True
    """
    return MemoryPool(memory, device, "interop.memory_pool")


# ---- other libraries' pools ----


def _of_torch() -> Callable[[int, int, int], Any]:
    import torch

    def allocate(count: int, device: int, stream: int) -> Any:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device)):
            memory = torch.empty(count, dtype=torch.uint8, device=torch.device("cuda", device))
            return memory.__dlpack__(stream=-1)  # a capsule: no tensor whose writes are to be counted

    return allocate


def _of_cupy() -> Callable[[int, int, int], Any]:
    import cupy

    def current(device: int, stream: int) -> Any:
        if hasattr(cupy.cuda.Stream, "from_external"):  # CuPy 14, which deprecates the other
            return cupy.cuda.Stream.from_external(_Stream(stream))
        return cupy.cuda.ExternalStream(stream, device)

    def allocate(count: int, device: int, stream: int) -> Any:
        with cupy.cuda.Device(device), current(device, stream):
            memory = cupy.empty(count, "uint8")
        return _Memory(memory, memory.data.ptr, count, stream)

    return allocate


class _Stream(NamedTuple):
    """A stream by its handle, in the form that libraries agree on."""

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


class _Memory:
    """Memory that names the stream of its first use, which then waits for no other, as for CuPy's current one."""

    def __init__(self, owner: Any, pointer: int, count: int, stream: int) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "version": 3, "shape": (count,), "typestr": "|u1", "data": (pointer, False), "stream": stream,
        }  # fmt: skip


def _of_rmm() -> Callable[[int, int, int], Any]:
    import rmm
    from rmm.pylibrmm.stream import Stream

    def allocate(count: int, device: int, stream: int) -> Any:
        memory = rmm.DeviceBuffer(size=count, stream=Stream(_Stream(stream)))
        return _Memory(memory, memory.ptr, count, stream)

    return allocate


_POOLS = {"torch": _of_torch, "cupy": _of_cupy, "rmm": _of_rmm}


@named("interop.set_allocator")
def set_allocator(allocator: Literal["torch", "cupy", "rmm"] | Callable[[int, int, int], Any] | None, /) -> None:
    r"""Choose who gives the device memory of new `interop.Array`\ s, those of results included.

    Parameters
    ----------
    allocator : "torch", "cupy", "rmm", function or None
        The pool of that library, which is imported: CuPy's current allocator, RMM's current device resource (of RMM
        25.12 or later).
        Or a function ``(bytes, device, stream)`` of three ints that returns an array with the memory: any object that
        `interop.asarray` takes, compact, of at least as many bytes, on that device, at a multiple of 64, for first use
        on that stream. It is called with that device current. None is interop's own pool.

    Raises
    ------
    TypeError, ValueError
        `allocator` is none of these. Later, in the call that allocates: what the function gives is not such memory.
    ImportError
        The library is not installed.

    Notes
    -----
    What the function returned is dropped once the work that used the memory is done, by another thread. Its errors are
    those of the call that allocates. RMM frees on the stream for which it allocated: keep a stream that you give for as
    long as the arrays that were made on it. Managed and pinned memory is interop's own all the same, and so are the
    copies of ``execution="cuda"``.

    Examples
    --------
    >>> import interop
    >>> interop.set_allocator("torch")  # doctest: +SKIP
    >>> interop.set_allocator(None)
    """
    if allocator is None or callable(allocator):
        _core.set_allocator(allocator)
    elif isinstance(allocator, str) and allocator in _POOLS:
        try:
            _core.set_allocator(_POOLS[allocator]())
        except ModuleNotFoundError as error:
            if error.name != allocator:  # the library lacks something itself
                raise
            raise ModuleNotFoundError(
                f"interop.set_allocator: allocator is {allocator!r}, which is not installed", name=error.name
            ) from error
    else:
        kind = ValueError if isinstance(allocator, str) else TypeError
        raise kind(
            f"interop.set_allocator: allocator is {shown(allocator)}; accepted: {', '.join(map(repr, _POOLS))}, a "
            "function, or None"
        )
