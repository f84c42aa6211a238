"""What interop's memory pools hold, and keep: `interop.memory_pool`."""

from __future__ import annotations

from typing import Literal

from interop import _core
from interop._arguments import named
from interop._memory.places import Device

__all__ = ["MemoryPool", "memory_pool"]


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
        self._pool.set_release_threshold(most)

    def trim(self, keep: int = 0) -> None:
        """Give back what no array uses, down to `keep` reserved bytes; the host may wait for the device."""
        self._pool.trim(keep)


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
