"""New arrays, in memory that the host, the GPU or both see."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from inspect import cleandoc
from typing import Any, TypeVar

from interop import _core
from interop._arguments import missing, named, refuse_call_of, shown
from interop._core import Array
from interop._memory.moving import like
from interop._memory.places import Device, Memory
from interop._streams import StreamLike

__all__ = [
    "arange",
    "empty",
    "empty_like",
    "full",
    "full_like",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
ShapeLike = int | tuple[int, ...] | list[int]

# ---- what all their docstrings say ----

_PARAMETERS = {
    "shape": """shape : int or sequence of ints
    The sizes of the dimensions.""",
    "value": """value : scalar, or array that broadcasts to the shape
    What the elements are.""",
    "start": """start : number
    The first element; where `stop` is None, the end, and the first is 0.""",
    "stop": """stop : number, optional
    The end, which is no element.""",
    "step": """step : number, optional
    The difference of neighbours.""",
    "x": """x : array of any library
    As for `interop.asarray`. Where nothing else is given, the new array has its dtype, memory and device.""",
    "dtype": """dtype : name, NumPy's or torch's dtype, or a type{optional}
    Bool, integers, floats and complex numbers, bfloat16 and float8{default}.""",
    "memory": """memory : "device", "managed", "pinned" or "host", optional
    On the GPU alone ("device"); for the host and the GPU, in pages that move between them ("managed"), or in
    page-locked memory of the host that the GPU reaches ("pinned"); on the host alone.""",
    "device": """device : int, "cuda" or "cuda:<index>", optional
    The GPU; that of the current context by default, or the first.""",
    "stream": """stream : int handle or stream object, optional
    Where the memory is first used; by default a stream of interop's own for this thread and device.""",
    "shared": """shared : bool, optional
    In memory that `interop.share` can give to other processes. Device memory is interop's own then, whatever
    `interop.set_allocator` was told; host memory begins as 0.""",
}

_REST = """
Returns
-------
interop.Array
    Compact and row-major, at a multiple of 64 bytes at least. Every library of `interop.convert` takes it as it is.

Raises
------
TypeError
    An argument is none of what is accepted{kind}.
ValueError
    A size is negative, or there are more elements than any memory has; `memory` or `device` has no such value;
    `device` or `stream` is given for host memory.{more}
MemoryError, CudaError
    There is no memory; CUDA fails; `device` is given, and there is no GPU.

Notes
-----
On a machine with no GPU every memory is the host's, as the array's `memory` says, unless `device` is given. Device
memory comes from a pool of interop's own, in the order of the stream. Managed and pinned memory is kept for the next
array of its size, which gets it once the work that used it is done. See `interop.memory_pool`.

Examples
--------
"""

#: By a parameter that few functions have: what else is a TypeError, a ValueError and an OverflowError.
_REFUSED = {
    "value": (
        ", or `value` is of another kind than `dtype`",
        " `value` does not broadcast.\nOverflowError\n    The dtype cannot hold an integer.",
    ),
    "shared": ("", " `shared` is True, and `memory` is neither the device's nor the host's."),
    "start": ("", " A number is not finite, or `step` is 0.\nOverflowError\n    An integer has more than 64 bits."),
}


def _of(name: str, parameters: str, default: str = "") -> Callable[[FunctionT], FunctionT]:
    """Write the docstring: `parameters` are named in order, `default` says what `dtype` is where it is left out."""

    def document(function: FunctionT) -> FunctionT:
        summary, examples = cleandoc(function.__doc__ or "").rsplit("\n\n", 1)
        texts = [_PARAMETERS[each] for each in parameters.split()]
        listed = "\n".join(texts).format(optional=", optional" if default else "", default=default)
        kind, more = next((_REFUSED[each] for each in parameters.split() if each in _REFUSED), ("", ""))
        rest = _REST.format(kind=kind, more=more)
        function.__doc__ = f"{summary}\n\nParameters\n----------\n{listed}\n{rest}{examples}\n"
        return named(name)(function)

    return document


# ---- of a shape ----


def _often(declared: FunctionT) -> FunctionT:
    """Make `empty` of its declaration: an array is soon made, so calls that do not fit are found here."""

    @functools.wraps(declared)
    def empty(
        shape: Any = missing,
        dtype: Any = missing,
        *more: Any,
        memory: Memory = "device",
        device: Device = None,
        stream: StreamLike | None = None,
        shared: bool = False,
        **unknown: Any,
    ) -> Array:
        if more or unknown or dtype is missing or shape is missing:
            given = {"shape": shape, "dtype": dtype}
            by_name = {name: value for name, value in given.items() if value is not missing and not more}
            refuse_call_of("interop.empty", (shape, dtype, *more) if more else (), by_name | unknown)
        if shared is not False:
            return _shared(shape, dtype, memory, device, stream, shared)
        return _core.empty(shape, dtype, memory, device, stream, "interop.empty")

    return empty  # type: ignore[return-value]


def _shared(shape: ShapeLike, dtype: Any, memory: str, device: Device, stream: StreamLike | None, shared: Any) -> Array:
    if shared is not True:
        raise TypeError(f"interop.empty: shared is {shown(shared)}; accepted: True or False")
    return _core.empty_shared(shape, dtype, memory, device, stream, "interop.empty")


@_often
@_of("interop.empty", "shape dtype memory device stream shared")
def empty(
    shape: ShapeLike,
    dtype: Any,
    *,
    memory: Memory = "device",
    device: Device = None,
    stream: StreamLike | None = None,
    shared: bool = False,
) -> Array:
    """Make an array whose elements have any values.

    >>> import interop
    >>> x = interop.empty((2, 3), "float32", memory="host")
    >>> x[...] = 1.5
    >>> x + 1
    interop.Array([[2.5, 2.5, 2.5],
                   [2.5, 2.5, 2.5]], dtype=float32, device=cpu)
    """
    raise NotImplementedError  # a declaration


@_of("interop.zeros", "shape dtype memory device stream")
def zeros(
    shape: ShapeLike,
    dtype: Any,
    *,
    memory: Memory = "device",
    device: Device = None,
    stream: StreamLike | None = None,
) -> Array:
    """Make an array of zeros.

    >>> import interop
    >>> interop.zeros(3, "int32", memory="host")
    interop.Array([0, 0, 0], dtype=int32, device=cpu)
    """
    return _filled("interop.zeros", shape, dtype, False, memory, device, stream)


@_of("interop.ones", "shape dtype memory device stream")
def ones(
    shape: ShapeLike,
    dtype: Any,
    *,
    memory: Memory = "device",
    device: Device = None,
    stream: StreamLike | None = None,
) -> Array:
    """Make an array of ones.

    >>> import interop
    >>> interop.ones((1, 2), "float32", memory="host")
    interop.Array([[1., 1.]], dtype=float32, device=cpu)
    """
    return _filled("interop.ones", shape, dtype, True, memory, device, stream)


@_of("interop.full", "shape value dtype memory device stream", "; by default that which NumPy gives `value`")
def full(
    shape: ShapeLike,
    value: Any,
    dtype: Any = None,
    *,
    memory: Memory = "device",
    device: Device = None,
    stream: StreamLike | None = None,
) -> Array:
    """Make an array with one value in all places, or an array that is broadcast.

    >>> import interop
    >>> interop.full(3, 0.5, "float16", memory="host")
    interop.Array([0.5, 0.5, 0.5], dtype=float16, device=cpu)
    """
    if dtype is None:
        import numpy as np

        is_scalar = isinstance(value, bool | int | float | complex | np.generic)
        values = np.asarray(value) if is_scalar else value
        if is_scalar and values.dtype.kind == "O":
            raise OverflowError(f"interop.full: value is {shown(value)}; accepted: an integer of 64 bits, or a float")
        dtype = _core.asarray(values, "interop.full", None, "value").dtype
    return _filled("interop.full", shape, dtype, value, memory, device, stream)


@_of("interop.arange", "start stop step dtype memory device stream", "; NumPy's by default")
def arange(
    start: float,
    stop: float | None = None,
    step: float = 1,
    dtype: Any = None,
    *,
    memory: Memory = "device",
    device: Device = None,
    stream: StreamLike | None = None,
) -> Array:
    """Make an array of evenly spaced numbers, with the values that `numpy.arange` gives.

    Device and managed memory is written by the GPU, with the same bits, but for those of a NaN; NumPy makes the float8
    dtypes on the host, and they are copied.

    >>> import interop
    >>> interop.arange(4, dtype="float32", memory="host")
    interop.Array([0., 1., 2., 3.], dtype=float32, device=cpu)
    """
    function = "interop.arange"
    name = None if dtype is None else _core.empty(0, dtype, "host", None, None, function).dtype
    on_gpu = memory in ("device", "managed") and _core.has_gpu() and not (name or "").startswith("float8")
    values, count = _spaced(start, stop, step, name, on_gpu)
    array = _core.empty(count, values.dtype, memory, device, stream, function)
    if not on_gpu:
        return _fill(function, array, values, stream)
    if count > 0:
        _core.arange(array, values[0], values[-1], stream, function)
    return array


def _spaced(start: Any, stop: Any, step: Any, dtype: str | None, begins: bool) -> tuple[Any, int]:
    """Return what `numpy.arange` returns, or the beginning of it, and how many elements that has."""
    import numpy as np

    from interop._libraries.base import numpy_dtype

    given = {"start": start, **({} if stop is None else {"stop": stop}), "step": step}
    for name, value in given.items():
        said = f"interop.arange: {name} is {shown(value)}; accepted: "
        if not isinstance(value, int | float | np.integer | np.floating | np.bool_):
            raise TypeError(said + "a real number")
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise OverflowError(said + "an integer of 64 bits, or a float")
        if not np.isfinite(value) or (name == "step" and value == 0):
            raise ValueError(said + ("a finite number other than 0" if name == "step" else "a finite number"))
    begin, end = (0, start) if stop is None else (start, stop)
    numpys = None if dtype is None else numpy_dtype(dtype)
    kinds = (TypeError, ValueError, OverflowError, MemoryError)
    try:
        if begins:
            return _beginning(begin, end, step, numpys)
        values = np.arange(begin, end, step, dtype=numpys)
        return values, len(values)
    except kinds as error:
        call = ", ".join(f"{name} is {shown(value)}" for name, value in {**given, "dtype": dtype}.items())
        kind = next(each for each in kinds if isinstance(error, each))
        raise kind(f"interop.arange: {call}: {error}") from None


def _beginning(begin: Any, end: Any, step: Any, dtype: Any) -> tuple[Any, int]:
    """Return the first two elements of `numpy.arange`, or fewer, which all others follow from, and how many it has."""
    import numpy as np

    span = end - begin
    ratio = span / step
    steps = math.ceil(ratio)
    if not -(2**63) <= steps < 2**63:
        raise ValueError("more elements than any memory")
    is_lost = ratio == 0 and span != 0 and not np.signbit(ratio)  # more than 0, and too small for a float
    count = 1 if is_lost else max(0, steps)
    if dtype is None:
        dtype = np.result_type(np.intp, *(np.asarray(number).dtype for number in (begin, end, step)))
    if np.dtype(dtype).kind == "b" and count > 2:
        raise TypeError("there are two values of bool")
    if count * np.dtype(dtype).itemsize >= 2**62:
        raise MemoryError("more bytes than any memory")
    values = np.empty(min(count, 2), dtype)
    if count > 0:
        for place, value in enumerate((begin, begin + step)[:count]):
            values[place] = value.item() if isinstance(value, np.generic) else value
    return values, count


def _filled(
    function: str, shape: Any, dtype: Any, value: Any, memory: str, device: Device, stream: StreamLike | None
) -> Array:
    return _fill(function, _core.empty(shape, dtype, memory, device, stream, function), value, stream)


def _fill(function: str, array: Array, value: Any, stream: StreamLike | None) -> Array:
    on = stream if array.memory in ("device", "managed") else None
    _core.copyto(array, value, on, function, "the array", "value")
    return array


# ---- like another array ----


@_of("interop.empty_like", "x dtype memory device stream", "; that of `x` by default")
def empty_like(
    x: Any,
    /,
    *,
    dtype: Any = None,
    memory: Memory | None = None,
    device: Device = None,
    stream: StreamLike | None = None,
) -> Array:
    """Make an array of the shape of another, whose elements have any values.

    >>> import interop, numpy as np
    >>> interop.empty_like(np.ones((2, 3), "float32")).shape
    (2, 3)
    """
    return like("interop.empty_like", x, dtype, memory, device, stream)


@_of("interop.zeros_like", "x dtype memory device stream", "; that of `x` by default")
def zeros_like(
    x: Any,
    /,
    *,
    dtype: Any = None,
    memory: Memory | None = None,
    device: Device = None,
    stream: StreamLike | None = None,
) -> Array:
    """Make an array of zeros with the shape of another.

    >>> import interop, numpy as np
    >>> interop.zeros_like(np.ones(2, "float32"))
    interop.Array([0., 0.], dtype=float32, device=cpu)
    """
    return _filled_like("interop.zeros_like", x, False, dtype, memory, device, stream)


@_of("interop.ones_like", "x dtype memory device stream", "; that of `x` by default")
def ones_like(
    x: Any,
    /,
    *,
    dtype: Any = None,
    memory: Memory | None = None,
    device: Device = None,
    stream: StreamLike | None = None,
) -> Array:
    """Make an array of ones with the shape of another.

    >>> import interop, numpy as np
    >>> interop.ones_like(np.zeros(2, "float32"))
    interop.Array([1., 1.], dtype=float32, device=cpu)
    """
    return _filled_like("interop.ones_like", x, True, dtype, memory, device, stream)


@_of("interop.full_like", "x value dtype memory device stream", "; that of `x` by default")
def full_like(
    x: Any,
    value: Any,
    /,
    *,
    dtype: Any = None,
    memory: Memory | None = None,
    device: Device = None,
    stream: StreamLike | None = None,
) -> Array:
    """Make an array with one value in all places, or an array that is broadcast, with the shape of another.

    >>> import interop, numpy as np
    >>> interop.full_like(np.zeros(2, "float32"), 7)
    interop.Array([7., 7.], dtype=float32, device=cpu)
    """
    return _filled_like("interop.full_like", x, value, dtype, memory, device, stream)


def _filled_like(
    function: str, x: Any, value: Any, dtype: Any, memory: str | None, device: Device, stream: StreamLike | None
) -> Array:
    return _fill(function, like(function, x, dtype, memory, device, stream), value, stream)
