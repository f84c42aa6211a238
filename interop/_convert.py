"""The same memory in another array library: `interop.asarray` and `interop.convert`."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from interop import _core
from interop._arguments import missing, named, refuse_call_of, shown
from interop._core import Array
from interop._streams import StreamLike

if TYPE_CHECKING:
    from interop._libraries.base import Target

__all__ = ["asarray", "convert", "converted", "target_of"]

_FUNCTION = "interop.convert"

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def _of_one(declared: FunctionT) -> FunctionT:
    """Make `asarray` of its declaration: a view is soon made, so calls that do not fit are found here."""

    @functools.wraps(declared)
    def asarray(x: Any = missing, /, *more: Any, **unknown: Any) -> Array:
        if more or unknown or x is missing:
            refuse_call_of("interop.asarray", [y for y in (x, *more) if y is not missing], unknown)
        return _core.asarray(x, "interop.asarray")

    return asarray  # type: ignore[return-value]


@_of_one
def asarray(x: Any, /) -> Array:
    """View an array of any library as an `interop.Array`, without a copy.

    Parameters
    ----------
    x : array of any library
        NumPy, torch, JAX, CuPy or Numba array, raw DLPack capsule, or any object with ``__dlpack__``,
        ``__cuda_array_interface__``, a buffer or ``__array_interface__``. Any strides, and any dtype of DLPack whose
        elements are one number of whole bytes (not torch's pairs of 4-bit floats).

    Returns
    -------
    interop.Array
        The same memory, with the same layout; read-only where `x` is. It keeps the owner of the memory alive. An
        `interop.Array` is given back itself. On a GPU, whoever uses it waits for the producer's stream.

    Raises
    ------
    TypeError
        `x` is not an array, or its values are not in memory as they are (a subclass of `torch.Tensor`, a JAX tracer, a
        tensor with a forward-mode tangent).
    BufferError
        The producer refuses, in its own words: a tensor that requires grad, a deleted JAX array. Or the tensor is
        lazily conjugated or negated, so that only a copy has its values.
    CudaError
        CUDA fails, or there is no driver for a device array.

    Notes
    -----
    The stream is the current one of the producer's library (torch, CuPy), the one that the array itself names
    (``__cuda_array_interface__``), or Numba's default one. JAX, and other producers of DLPack, are told a stream of
    interop's own. A current stream is asked for again at every use, so that what was queued in the meantime is waited
    for, too.

    Device memory goes back to its producer after the last view of it, and the last array made from one, is dropped:
    once all is done that was queued by then on the default stream, on blocking streams and on interop's own. Keep the
    array for as long as another library's non-blocking stream works on it.

    Examples
    --------
    >>> import numpy as np, interop
    >>> interop.asarray(np.ones((2, 3), "float32").T)
    interop.Array([[1., 1.],
                   [1., 1.],
                   [1., 1.]], dtype=float32, device=cpu)
    """
    raise NotImplementedError  # a declaration


@named("interop.convert")
def convert(
    x: Any,
    library: Literal["torch", "cupy", "jax", "numpy", "numba", "warp", "interop"],
    /,
    *,
    stream: StreamLike | None = None,
) -> Any:
    """Give an array to another array library: the same memory, in stream order, never a copy.

    Parameters
    ----------
    x : array of any library
        As for `interop.asarray`.
    library : "torch", "cupy", "jax", "numpy", "numba", "warp" or "interop"
        Whose array to make. It is imported if need be.
    stream : int handle or stream object, optional
        Where the result is ready; by default the current stream of `library` (Numba: its default stream), which is made
        to wait for what the producer has queued. JAX orders its arrays itself: `stream` is then made to wait as well.
        For device arrays, and not for NumPy.

    Returns
    -------
    array of `library`
        `x` itself if it belongs to `library` already. Else an array on the same memory, which keeps the owner alive.
        The host has not waited, except for NumPy, whose arrays are ready on return.

    Raises
    ------
    TypeError
        The memory is out of the library's reach (device memory for NumPy, host memory for CuPy and Numba), or the
        library has no such dtype; and as `interop.asarray`.
    ValueError
        The library has no such layout: negative strides in torch; gaps, broadcast dimensions, or host memory that is
        not 64-byte aligned in JAX. `library` or `stream` has no such value, or `stream` is given for host memory.
    BufferError, CudaError
        As `interop.asarray`.
    ImportError
        `library` is not installed.

    Notes
    -----
    torch, CuPy, Numba and Warp know no read-only arrays: do not write to what was read-only, a JAX array above all. JAX
    takes memory for immutable: do not write to it while the JAX array lives.

    NumPy reads host, pinned and managed memory; for the last two the host waits until the GPU has finished with it.
    torch and JAX take pinned memory as host memory, CuPy and Numba as memory of the GPU; all take managed memory as the
    GPU's. JAX keeps 64-bit dtypes, whatever its x64 mode.

    Examples
    --------
    >>> import interop
    >>> x = interop.asarray(memoryview(b"interop"))
    >>> interop.convert(x, "numpy")
    array([105, 110, 116, 101, 114, 111, 112], dtype=uint8)
    """
    return converted(_FUNCTION, x, target_of(_FUNCTION, library), stream)


def target_of(function: str, library: str) -> Target:
    """Return what is known of the library of that name; ValueError where it is none."""
    from interop._libraries.known import TARGETS

    target = TARGETS.get(library) if isinstance(library, str) else None
    if target is None:
        raise ValueError(f"{function}: library is {shown(library)}; accepted: {', '.join(map(repr, TARGETS))}")
    return target


def converted(function: str, x: Any, target: Target, stream: StreamLike | None, name: str = "x") -> Any:
    """Convert an array for a call of `function`, whose argument has that name."""
    handle = None if stream is None else _core.stream_handle(stream, function)
    if handle is not None and target.name == "numpy":
        raise ValueError(f"{function}: stream is given, but NumPy has no streams: its arrays are ready on return")
    loaded = sys.modules.get(target.module)
    try:
        is_own = loaded is not None and target.owns(loaded, x)
    except AttributeError:  # another thread is in the middle of importing it
        is_own = target.owns(importlib.import_module(target.module), x)
    if is_own:
        if handle is not None:
            _core.asarray(x, function, handle, name)  # for its effect only: the stream waits
        return x
    array = _core.asarray(x, function, handle, name)
    return target.take_within(function, target.load_for(function), array, handle)
