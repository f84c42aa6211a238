"""Teaching interop an array library from Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from interop import _core
from interop._arguments import named, shown
from interop._streams import StreamLike

__all__ = ["register"]

# Of these, calls know more than a registration can say.
_TAKEN = ("cupy", "interop", "jax", "numba", "numpy", "paddle", "tensorflow", "torch", "tvm_ffi", "warp")


@named("interop.register")
def register(
    kind: type,
    /,
    *,
    name: str | None = None,
    export: Callable[[Any], Any] | None = None,
    current_stream: Callable[[int], StreamLike] | None = None,
    empty: Callable[[tuple[int, ...], str, str, int | None], Any] | None = None,
    writable: bool = True,
) -> None:
    """Teach interop an array library: how its arrays are read, on which stream it works, how a result is made.

    Every function of interop takes arrays of `kind`, and of its subclasses, from then on. Calls led by one give its
    kind of array if `empty` is given, else an `interop.Array`. To register `kind` again replaces all that was said of
    it.

    Parameters
    ----------
    kind : type
        The class of the arrays. Not one of a library that interop knows, but subclasses of those may be registered.
    name : str, optional
        The library's name in messages; by default the package of `kind`.
    export : callable, ``(array) -> object``, optional
        Returns what can be read in place of the array, on the same memory: an array of any library, an object with
        ``__dlpack__``, ``__cuda_array_interface__`` or a buffer, or a new DLPack capsule. It is not told the stream,
        which follows from the array's device; an object's ``__dlpack__(stream=...)`` is. Needed where the arrays have
        no such protocol themselves. What it returns, and the array, live as long as the memory is used, by views and by
        work on a GPU, too. Where the array is written to, a new object must be on the array's own memory: `export` is
        called twice then, and two addresses are a copy, which is refused. A copy that the library keeps, and returns
        again, cannot be told from that: what is written to it is for the library to bring back. For an array that it
        has nothing to say of, it returns NotImplemented: that one is read by the protocols that it has itself, a
        subclass of `numpy.ndarray` by its buffer.
    current_stream : callable, ``(device) -> stream``, optional
        The stream on which the library would work now on that CUDA device, as an int handle or a stream object. Calls
        run on it, or are ordered both ways with it. Without it, arrays on a device are used on the stream that the
        exported object or its library names, else on the legacy default stream, and are kept alive until the GPU is
        done with them.
    empty : callable, ``(shape, dtype, device, stream) -> array``, optional
        Makes a new row-major array of the library: a tuple, a name such as ``"float32"``, ``"cpu"`` or ``"cuda:0"``,
        and the handle of the stream that will write to it (None on the host). It is asked for `current_stream`, or the
        ``stream=`` of the call: memory must not be used again for anything else before that stream is done with it.
    writable : bool, default True
        Whether the arrays may be written to, as ``out=``.

    Raises
    ------
    TypeError
        An argument has a wrong type, or `kind` has no protocol and there is no `export`.
    ValueError
        `kind` belongs to a library that interop knows, or is built into Python; or the name is taken.

    Notes
    -----
    What `export` or `current_stream` raises becomes a BufferError with its words, in the call that needed it; what
    `empty` raises is raised as it is. What they return is checked.

    A registration lasts until `kind` is registered again, which also looks anew at the protocols of `kind`; one that is
    refused changes nothing. A call that has begun, in whatever thread, goes on by what was registered as it began, for
    all of its arrays; what was replaced stays in memory, for such calls.

    Examples
    --------
    >>> import numpy as np
    >>> import interop
    >>> class Grid:
    ...     def __init__(self, values):
    ...         self.values = values
    >>> interop.register(
    ...     Grid,
    ...     name="grids",
    ...     export=lambda grid: grid.values,
    ...     empty=lambda shape, dtype, device, stream: Grid(np.empty(shape, dtype)),
    ... )
    >>> interop.matmul(Grid(np.eye(2)), np.ones((2, 2))).values
    array([[1., 1.],
           [1., 1.]])
    """
    if not isinstance(kind, type):
        raise TypeError(f"interop.register: kind is {shown(kind)}; accepted: a class")
    if kind.__module__ == "builtins":
        raise ValueError(
            f"interop.register: {shown(kind)} is built into Python; accepted: the class of an array library"
        )
    for what, function in (("export", export), ("current_stream", current_stream), ("empty", empty)):
        if function is not None and not callable(function):
            raise TypeError(f"interop.register: {what} is {shown(function)}; accepted: None, or a callable")
    if not isinstance(writable, bool):
        raise TypeError(f"interop.register: writable is {shown(writable)}; accepted: True or False")
    if name is None:
        name = kind.__module__.partition(".")[0]
        if name in _TAKEN:
            name = f"{kind.__module__}.{kind.__qualname__}"
    elif not isinstance(name, str) or not name:
        raise TypeError(f"interop.register: name is {shown(name)}; accepted: None, or a str that is not empty")
    elif name in _TAKEN:
        raise ValueError(f"interop.register: name is {name!r}, a library that interop knows; accepted: another name")
    _core.register_library(kind, name, export, current_stream, empty, writable)
    known = sys.modules.get("interop._libraries.arrays")  # if it was imported, it has kept what it asked of types
    if known is not None:
        known.forget_types()
