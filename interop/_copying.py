"""Copies between any two arrays: `interop.copyto` and `interop.copy`."""

from __future__ import annotations

from typing import Any

from interop import _core
from interop._arguments import named
from interop._core import Array
from interop._memory.moving import like
from interop._memory.places import Device, Memory
from interop._streams import StreamLike

__all__ = ["copy", "copyto"]


@named("interop.copyto")
def copyto(dst: Any, src: Any, /, *, stream: StreamLike | None = None) -> None:
    """Copy the elements of one array, or one value, into another: any two libraries, any two memories, any strides.

    Parameters
    ----------
    dst : writable array of any library
        Not JAX's.
    src : array of any library that broadcasts to the shape of `dst`, or scalar
        Of the dtype of `dst`, or of one that NumPy's rule "same_kind" converts: float64 to float32, say, but no floats
        to integers. It may overlap `dst`.
    stream : int handle or stream object, optional
        Where the copy is queued; by default the current stream of the library of `dst`, or of `src` where `dst` is on
        the host. For arrays of which one is on a GPU.

    Raises
    ------
    TypeError
        `dst` is read-only or immutable, an argument is no array, or the dtypes do not go together.
    ValueError
        The shapes do not broadcast, or elements of `dst` share memory; `stream` is given for two host arrays; memory
        that is not pinned is copied while the stream is being captured into a CUDA graph.
    OverflowError
        The dtype of `dst` cannot hold an integer.
    BufferError
        The producer of an array refuses to export it.
    CudaError
        CUDA fails.

    Notes
    -----
    The host waits for a copy to host memory, unless `dst` is an `interop.Array` in pinned memory, whose readers wait,
    or `stream` is given and `dst` is pinned: such memory is ready when the stream is. Host memory has been read on
    return, but for pinned memory of an `interop.Array` itself, whose NumPy views wait, or where `stream` is given; for
    pinned memory of others that takes a wait.

    Rows that lie at even steps are moved by the copy engines; other strides by a kernel on the device, and on the host
    by way of a compact copy.

    Examples
    --------
    >>> import interop, numpy as np
    >>> x = interop.zeros((2, 3), "float32", memory="host")
    >>> interop.copyto(x[:, ::2], np.array([[1.0], [2.0]]))
    >>> x
    interop.Array([[1., 0., 1.],
                   [2., 0., 2.]], dtype=float32, device=cpu)
    """
    _core.copyto(dst, src, stream, "interop.copyto", "dst", "src")


@named("interop.copy")
def copy(
    x: Any,
    /,
    *,
    memory: Memory | None = None,
    device: Device = None,
    stream: StreamLike | None = None,
) -> Array:
    """Copy an array of any library into new memory.

    Parameters
    ----------
    x : array of any library
        As for `interop.asarray`.
    memory : "device", "managed", "pinned" or "host", optional
        Where the copy lies, as for `interop.empty`; as `x` by default.
    device : int, "cuda" or "cuda:<index>", optional
        The GPU; that of `x` by default.
    stream : int handle or stream object, optional
        Where the copy is queued, as for `interop.copyto`.

    Returns
    -------
    interop.Array
        Compact and row-major.

    Raises
    ------
    TypeError, ValueError, BufferError, CudaError
        As `interop.empty`, and as `interop.asarray` of `x`.

    Notes
    -----
    As for `interop.copyto`, to which it adds the new array.

    Examples
    --------
    >>> import interop, numpy as np
    >>> interop.copy(np.arange(6).reshape(2, 3).T)
    interop.Array([[0, 3],
                   [1, 4],
                   [2, 5]], dtype=int64, device=cpu)
    """
    array = like("interop.copy", x, None, memory, device, None)
    _core.copyto(array, x, stream, "interop.copy", "the copy", "x")
    return array
