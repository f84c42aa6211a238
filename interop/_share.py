"""Arrays between processes: `interop.share` and `interop.open`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

from interop import _core
from interop._arguments import named, shown, type_name
from interop._convert import converted, target_of
from interop._memory.moving import shareable_copy
from interop._streams import StreamLike

if TYPE_CHECKING:
    from interop._memory.owner import Owner

__all__ = ["SharedHandle", "open", "share"]

_VERSION = 1  # of what is pickled


class SharedHandle:
    """What `interop.share` gives: an array by which other processes open it, with `interop.open`.

    It is small, and can be pickled: sent by a pipe or a queue, given to a new process. It is a secret, too: whoever has
    it, runs as the same user on the same machine and can reach the process's local socket gets the memory.

    The handle that `interop.share` returned keeps the array. So the process keeps the handle until the others have
    opened it; then `close`, the end of a ``with`` block or the handle's own end is the end of openings, and the array
    is kept as long as another process has it open. Copies, such as what `pickle` reads, keep nothing.

    Attributes
    ----------
    shape : tuple of int
        Of the array.
    dtype : str
        Its dtype's name.
    device : str
        Where the array is in the process that shared it, such as "cuda:0", or "cpu".
    """

    __slots__ = ("__weakref__", "_address", "_owner", "_pid", "_slot", "_started", "_token", "device", "dtype", "shape")

    _owner: Owner | None
    _address: str
    _slot: int
    _token: bytes
    _pid: int
    _started: str | None
    shape: tuple[int, ...]
    dtype: str
    device: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("interop.SharedHandle: it is not made directly; accepted: interop.share(x)")

    def close(self) -> None:
        """End the openings; the array is kept as long as another process has it open. Again, it does nothing."""
        if self._owner is not None:
            self._owner.close(self._token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_owner", None) is not None:
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        facts = (self._address, self._slot, self._token, self._pid, self._started, self.shape, self.dtype, self.device)
        return _restored, (_VERSION, *facts)

    def __repr__(self) -> str:
        facts = f"shape={self.shape}, dtype={self.dtype}, device={self.device}"
        return f"interop.SharedHandle({facts}, of process {self._pid})"


def _made(owner: Owner | None, *facts: Any) -> SharedHandle:
    handle = object.__new__(SharedHandle)
    handle._owner = owner
    handle._address, handle._slot, handle._token, handle._pid, handle._started, *shown = facts
    handle.shape, handle.dtype, handle.device = shown
    return handle


def _restored(version: int, *facts: Any) -> SharedHandle:
    """Make the handle that `pickle` reads."""
    if version != _VERSION:
        raise ValueError(
            f"interop.SharedHandle: the pickle is of version {version} of the handle; accepted: {_VERSION}, so of the "
            "same version of interop"
        )
    return _made(None, *facts)


@named("interop.share")
def share(x: Any, /, *, copy: bool = False) -> SharedHandle:
    """Let other processes of this machine open an array: its memory itself, never through the host.

    Parameters
    ----------
    x : array of any library
        Device memory: of cuMemAlloc, as torch, CuPy and Numba have it by default; of interop's own pool; or made to be
        shared by file descriptors, by cuMemCreate, as JAX has it by default, or a pool. Host memory: an array of
        ``interop.empty(..., shared=True)``, a view of one, or another library's array on it. Any strides.
    copy : bool
        Share a copy, in memory of interop's own that can be shared, whatever `x` lies in.

    Returns
    -------
    SharedHandle
        To be sent to the other processes. It keeps the array: see there for how long.

    Raises
    ------
    ValueError
        The array's stream, or interop's own, is being captured into a CUDA graph.
    TypeError, BufferError
        As `interop.asarray`. BufferError, too, where no other process can be given the memory: managed and pinned
        memory, other memory of the host, that of cudaMallocAsync, torch's expandable segments, what another process has
        shared, and all memory of cuMemAlloc where a container forbids it. The message says which.
    CudaError
        CUDA fails.
    OSError
        The system has no file descriptors left, or forbids local sockets.
    NotImplementedError
        The system is not Linux.

    Notes
    -----
    What was queued for the array by now comes before what the other process does with it, in stream order; neither host
    waits. If this process ends before that is done, the other one goes on, with what is there then. (Where the system
    allows no flags between processes, this function waits for the array.) Nothing else is
    ordered: who writes to the array later, or in both processes, tells the other one himself.

    A tensor whose storage is freed or moved afterwards (``x.untyped_storage().resize_``) is to be closed first.

    The other process gets all of the allocation that the array lies in: of torch and CuPy, a block of their pool with
    other arrays in it. It can read and write all of that, whatever the array.

    The first call starts a thread that answers the other processes.

    Examples
    --------
    >>> import interop
    >>> x = interop.empty(3, "float32", memory="host", shared=True)
    >>> with interop.share(x) as h:
    ...     interop.open(h) is x  # in the same process
    True
    """
    if sys.platform != "linux":
        raise NotImplementedError(f"interop.share: this system is {sys.platform}; accepted: Linux")
    if not isinstance(copy, bool):
        raise TypeError(f"interop.share: copy is {shown(copy)}; accepted: True or False")
    from interop._memory.owner import started_owner

    array = _core.asarray(x, "interop.share")
    if copy:
        x = array = shareable_copy(array)
    owner = started_owner()
    token, slot = owner.add(x, array)
    return _made(owner, owner.address, slot, token, owner.pid, owner.started, array.shape, array.dtype, array.device)


@named("interop.open")
def open(  # noqa: A001 - what it does to a handle
    h: SharedHandle,
    library: Literal["torch", "cupy", "jax", "numpy", "numba", "warp", "interop"] = "interop",
    /,
    *,
    stream: StreamLike | None = None,
) -> Any:
    """Open an array that another process has shared: the same memory, in any library.

    Parameters
    ----------
    h : SharedHandle
        What `interop.share` returned there, as it has come here. It can be opened several times.
    library : "torch", "cupy", "jax", "numpy", "numba", "warp" or "interop"
        Whose array to make.
    stream : int handle or stream object, optional
        Where the result is ready, as for `interop.convert`.

    Returns
    -------
    array of `library`
        With the shape, the strides and the dtype of the one that was shared; read-only where that was, in the libraries
        that know read-only arrays. In the process that shared it, that array itself, converted.

    Raises
    ------
    TypeError
        `h` is no such handle; and as `interop.convert`.
    ValueError
        `library` has no such value; the handle was closed, or not kept; the GPU cannot be seen from here; and as
        `interop.convert`.
    ConnectionError
        The process that shared the array has ended, or cannot be reached from here. TimeoutError: it does not answer.
    PermissionError
        It is another user's.
    BufferError
        The owner has not the memory any more, as a tensor's storage was freed or moved.
    CudaError
        CUDA fails, above all where a container has an IPC namespace of its own.
    ImportError
        `library` is not installed.

    Notes
    -----
    The GPU is found by its UUID, so ``CUDA_VISIBLE_DEVICES`` may differ. An allocation is mapped once, whatever the
    number of arrays in it, and unmapped when the last of them is gone and its work is done: until then the owner keeps
    the array. If the owner ends first, the memory stays. Host memory belongs to all who have it.

    Examples
    --------
    >>> import interop
    >>> with interop.share(interop.empty((2, 3), "int8", memory="host", shared=True)) as h:
    ...     interop.open(h, "numpy").shape
    (2, 3)
    """
    from interop._memory import owner

    function = "interop.open"
    if not isinstance(h, SharedHandle):
        raise TypeError(f"{function}: h is {type_name(h)}; accepted: what interop.share returned")
    target = target_of(function, library)
    target.load_for(function)
    handle = None if stream is None else _core.stream_handle(stream, function)
    own = owner.owner()
    if own is not None and own.address == h._address:
        array = own.find(h._token)
        if array is None:
            _refuse_closed()
    else:
        from interop._memory.opener import take

        array = take(h._address, h._slot, h._token, h._pid, h._started)
    return converted(function, array, target, handle, "h")


def _refuse_closed() -> NoReturn:
    raise ValueError("interop.open: the handle was closed; accepted: one that is open")
