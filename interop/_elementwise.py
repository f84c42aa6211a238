"""Elementwise operations on the arrays of any library: arithmetic and comparisons, with broadcasting."""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import cleandoc
from typing import Any, TypeVar

from interop import _core
from interop._arguments import missing, refuse_call_of
from interop._lazy import call_lazily, is_lazy
from interop._streams import StreamLike
from interop._traced import traced_by

__all__ = [
    "abs",
    "add",
    "divide",
    "equal",
    "floor_divide",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "not_equal",
    "pow",
    "remainder",
    "subtract",
]

ArrayT = TypeVar("ArrayT")
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

# ---- what all their docstrings say ----

_OPTIONS = """
out : array, shape and dtype of the result, same device, optional
    Written in place, whatever its strides, and returned. It may be an operand, or overlap one. Not for JAX.
stream : int handle or stream object, optional
    Where the work is queued; the current stream of the array library by default. For device arrays.
{more}execution : "cuda" or "cuda:<index>", optional
    Computes host arrays on that GPU, and gives a host array."""

_UNARY = (
    """Parameters
----------
x : array of any shape, {dtypes}
    Of any library, as for `interop.matmul`. Any strides."""
    + _OPTIONS
    + """

Returns
-------
array of the library of `x`, {result}
    On the operands' device, ready in stream order; never a NumPy scalar.

Raises
------
TypeError
    An argument is no array; the dtype is not served;
    host and device arrays are mixed; `out` is read-only, immutable, or of another dtype.
ValueError
    `out` has another shape, or overlaps
    itself.
BufferError
    The producer of an array refuses to export it.
CudaError
    CUDA fails, or there is no GPU or no driver."""
)

_BINARY = (
    """Parameters
----------
a : array of any shape, or scalar; {dtypes}
    Of any library, as for `interop.matmul`. Any strides.
b : array that broadcasts with `a`, or scalar; not both scalars
    Of any library too, on the same device; a 0-d host array may join device arrays. Two dtypes are promoted as
    the library of the first array does, where scalars of Python count by their kind alone."""
    + _OPTIONS
    + """

Returns
-------
array of the library of the first array, {result}
    On the operands' device, ready in stream order; never a NumPy scalar.

Raises
------
TypeError
    An argument is no array, or both are scalars; the dtype is not served, or the library refuses the mix;
    host and device arrays are mixed; `out` is read-only, immutable, or of another dtype.
ValueError
    The shapes do not broadcast; the arrays are on two devices; `out` has another shape, or overlaps
    itself.
OverflowError
    An integer scalar does not fit the dtype of the array.
BufferError
    The producer of an array refuses to export it.
CudaError
    CUDA fails, or there is no GPU or no driver."""
)

_COMPARISON = _BINARY.replace(
    """Two dtypes are promoted as
    the library of the first array does, where scalars of Python count by their kind alone.""",
    """Integers and bools are
    compared exactly, whatever their dtypes, and a scalar may have any size. Floats are promoted as by `add`.""",
).replace("OverflowError\n    An integer scalar does not fit the dtype of the array.\n", "")

_WHERE_ZERO = """where_zero : scalar, optional
    The result where the divisor is zero; by default an infinity or NaN.
"""


def _operation(
    sections: str, dtypes: str, result: str = "the operands' dtype", more: str = ""
) -> Callable[[FunctionT], FunctionT]:
    """Make an operation of its declaration; the sections that the docstrings share take the place of `{sections}`.

    The function itself takes what is given, as that of `interop.matmul`.
    """

    def make(declared: FunctionT) -> FunctionT:
        name = declared.__name__
        function = f"interop.{name}"

        def binary(a: Any = missing, b: Any = missing, /, *more: Any, **options: Any) -> Any:
            if more:
                refuse_call_of(function, (a, b, *more), options)
            try:
                return _core.elementwise(name, a, b, options)
            except TypeError:
                if not is_lazy((a, b), options):
                    raise
            return call_lazily(made, (a, b), options)

        def unary(x: Any = missing, /, *more: Any, **options: Any) -> Any:
            if more:
                refuse_call_of(function, (x, *more), options)
            try:
                return _core.elementwise(name, x, None, options)
            except TypeError:
                if not is_lazy((x,), options):
                    raise
            return call_lazily(made, (x,), options)

        made: Any = functools.wraps(declared)(unary if sections is _UNARY else binary)
        made.__code__ = made.__code__.replace(co_name=name)  # in tracebacks and profiles
        if declared.__doc__:  # there is none under python -OO
            words = sections.format(dtypes=dtypes, result=result, more=more)
            made.__doc__ = declared.__doc__ = cleandoc(declared.__doc__).replace("{sections}", words)

        def traced(*args: Any, **options: Any) -> Any:
            from interop.torch import _tracing  # by torch's compiler, as it traces

            return _tracing.elementwise(name, *args, **options)

        traced.__code__ = traced.__code__.replace(co_name=f"traced_{name}")  # what is compiled is kept by the code
        return traced_by(traced)(made)  # type: ignore[no-any-return]

    return make


# ---- the functions ----


@_operation(_BINARY, "any dtype; bool is or")
def add(
    a: ArrayT | complex,
    b: ArrayT | complex,
    /,
    *,
    out: Any = None,
    stream: StreamLike | None = None,
    execution: str | None = None,
) -> ArrayT:
    """Add two arrays, element by element.

    {sections}

    Notes
    -----
    Integers wrap.

    Examples
    --------
    >>> import numpy as np
    >>> import interop
    >>> interop.add(np.array([[1, 2], [3, 4]]), np.array([10, 20]))
    array([[11, 22],
           [13, 24]])
    """
    raise NotImplementedError  # a declaration


@_operation(_BINARY, "any dtype but bool")
def subtract(
    a: ArrayT | complex,
    b: ArrayT | complex,
    /,
    *,
    out: Any = None,
    stream: StreamLike | None = None,
    execution: str | None = None,
) -> ArrayT:
    """Subtract `b` from `a`, element by element.

    {sections}

    Notes
    -----
    Integers wrap.

    Examples
    --------
    >>> import numpy as np
    >>> import interop
    >>> interop.subtract(np.array([5, 7]), 2)
    array([3, 5])
    """
    raise NotImplementedError  # a declaration


@_operation(_BINARY, "any dtype; bool is and")
def multiply(
    a: ArrayT | complex,
    b: ArrayT | complex,
    /,
    *,
    out: Any = None,
    stream: StreamLike | None = None,
    execution: str | None = None,
) -> ArrayT:
    """Multiply two arrays, element by element.

    {sections}

    Notes
    -----
    Integers wrap.

    Examples
    --------
    >>> import numpy as np
    >>> import interop
    >>> interop.multiply(np.array([1.5, 2.0]), 2)
    array([3., 4.])
    """
    raise NotImplementedError  # a declaration


@_operation(
    _BINARY,
    "any dtype; integers as default floats",
    "the operands' dtype, or the library's default float for integers",
    more=_WHERE_ZERO,
)
def divide(
    a: ArrayT | complex,
    b: ArrayT | complex,
    /,
    *,
    out: Any = None,
    stream: StreamLike | None = None,
    where_zero: complex | None = None,
    execution: str | None = None,
) -> ArrayT:
    """Divide `a` by `b`, element by element: true division.

    {sections}

    Notes
    -----
    Integers are divided in the library's default float. Floats follow IEEE 754: ``1 / 0`` is an infinity.

    Examples
    --------
    >>> import numpy as np
    >>> import interop
    >>> interop.divide(np.array([1.0, 2.0]), np.array([4.0, 0.0]), where_zero=0)
    array([0.25, 0.  ])
    """
    raise NotImplementedError  # a declaration


@_operation(_BINARY, "integers and floats")
def floor_divide(
    a: ArrayT | complex,
    b: ArrayT | complex,
    /,
    *,
    out: Any = None,
    stream: StreamLike | None = None,
    execution: str | None = None,
) -> ArrayT:
    """Divide `a` by `b` and round down, as Python's ``//`` does.

    {sections}

    Notes
    -----
    An integer divided by zero is 0, in every library and on every device. Floats follow NumPy: ``x // 0`` is an
    infinity or NaN.

    Examples
    --------
    >>> import numpy as np
    >>> import interop
    >>> interop.floor_divide(np.array([7, -7]), 2)
    array([ 3, -4])
    """
    raise NotImplementedError  # a declaration


@_operation(_BINARY, "integers and floats")
def remainder(
    a: ArrayT | complex,
    b: ArrayT | complex,
    /,
    *,
    out: Any = None,
    stream: StreamLike | None = None,
    execution: str | None = None,
) -> ArrayT:
    """Return what `floor_divide` leaves: Python's ``%``, of the divisor's sign.

    {sections}

    Notes
    -----
    The remainder of an integer by zero is 0, in every library and on every device; of a float it is NaN.

    Examples
    --------
    >>> import numpy as np
    >>> import interop
    >>> interop.remainder(np.array([7, -7]), 3)
    array([1, 2])
    """
    raise NotImplementedError  # a declaration


@_operation(_BINARY, "any dtype but complex")
def minimum(
    a: ArrayT | complex,
    b: ArrayT | complex,
    /,
    *,
    out: Any = None,
    stream: StreamLike | None = None,
    execution: str | None = None,
) -> ArrayT:
    """Return the smaller of two elements; NaN where either is.

    {sections}

    Notes
    -----
    Of two zeros, either may be returned.

    Examples
    --------
    >>> import numpy as np
    >>> import interop
    >>> interop.minimum(np.array([1.0, 5.0]), 3.0)
    array([1., 3.])
    """
    raise NotImplementedError  # a declaration


@_operation(_BINARY, "any dtype but complex")
def maximum(
    a: ArrayT | complex,
    b: ArrayT | complex,
    /,
    *,
    out: Any = None,
    stream: StreamLike | None = None,
    execution: str | None = None,
) -> ArrayT:
    """Return the larger of two elements; NaN where either is.

    {sections}

    Notes
    -----
    Of two zeros, either may be returned.

    Examples
    --------
    >>> import numpy as np
    >>> import interop
    >>> interop.maximum(np.array([1.0, 5.0]), 3.0)
    array([3., 5.])
    """
    raise NotImplementedError  # a declaration


@_operation(_BINARY, "any dtype but bool")
def pow(  # noqa: A001
    a: ArrayT | complex,
    b: ArrayT | complex,
    /,
    *,
    out: Any = None,
    stream: StreamLike | None = None,
    execution: str | None = None,
) -> ArrayT:
    """Raise `a` to the power `b`, element by element.

    {sections}

    Notes
    -----
    Integers wrap. Negative powers of integers are 0, but for the bases 1 and -1.

    Examples
    --------
    >>> import numpy as np
    >>> import interop
    >>> interop.pow(np.array([2, 3]), np.array([3, -1]))
    array([8, 0])
    """
    raise NotImplementedError  # a declaration


@_operation(_UNARY, "any dtype but bool")
def negative(
    x: ArrayT,
    /,
    *,
    out: Any = None,
    stream: StreamLike | None = None,
    execution: str | None = None,
) -> ArrayT:
    """Negate each element.

    {sections}

    Notes
    -----
    Integers wrap: the negative of an unsigned 1 is the largest number of its dtype.

    Examples
    --------
    >>> import numpy as np
    >>> import interop
    >>> interop.negative(np.array([1.0, -2.0]))
    array([-1.,  2.])
    """
    raise NotImplementedError  # a declaration


@_operation(_UNARY, "any dtype", "the dtype of `x`, or of its parts if that is complex")
def abs(  # noqa: A001
    x: ArrayT,
    /,
    *,
    out: Any = None,
    stream: StreamLike | None = None,
    execution: str | None = None,
) -> Any:
    """Return the absolute value of each element.

    {sections}

    Notes
    -----
    Of the least signed integer it is that integer itself, as in NumPy.

    Examples
    --------
    >>> import numpy as np
    >>> import interop
    >>> interop.abs(np.array([3 + 4j]))
    array([5.])
    """
    raise NotImplementedError  # a declaration


@_operation(_COMPARISON, "any dtype", "bool")
def equal(
    a: ArrayT | complex,
    b: ArrayT | complex,
    /,
    *,
    out: Any = None,
    stream: StreamLike | None = None,
    execution: str | None = None,
) -> Any:
    """Say where two arrays are equal.

    {sections}

    Notes
    -----
    NaN equals nothing.

    Examples
    --------
    >>> import numpy as np
    >>> import interop
    >>> interop.equal(np.array([1, 2]), 2)
    array([False,  True])
    """
    raise NotImplementedError  # a declaration


@_operation(_COMPARISON, "any dtype", "bool")
def not_equal(
    a: ArrayT | complex,
    b: ArrayT | complex,
    /,
    *,
    out: Any = None,
    stream: StreamLike | None = None,
    execution: str | None = None,
) -> Any:
    """Say where two arrays differ.

    {sections}

    Notes
    -----
    NaN differs from everything, itself included.

    Examples
    --------
    >>> import numpy as np
    >>> import interop
    >>> interop.not_equal(np.array([1, 2]), 2)
    array([ True, False])
    """
    raise NotImplementedError  # a declaration


@_operation(_COMPARISON, "any dtype but complex", "bool")
def less(
    a: ArrayT | complex,
    b: ArrayT | complex,
    /,
    *,
    out: Any = None,
    stream: StreamLike | None = None,
    execution: str | None = None,
) -> Any:
    """Say where `a` is less than `b`.

    {sections}

    Notes
    -----
    Nothing is less than NaN.

    Examples
    --------
    >>> import numpy as np
    >>> import interop
    >>> interop.less(np.array([1, 2]), 2)
    array([ True, False])
    """
    raise NotImplementedError  # a declaration


@_operation(_COMPARISON, "any dtype but complex", "bool")
def less_equal(
    a: ArrayT | complex,
    b: ArrayT | complex,
    /,
    *,
    out: Any = None,
    stream: StreamLike | None = None,
    execution: str | None = None,
) -> Any:
    """Say where `a` is at most `b`.

    {sections}

    Notes
    -----
    Nothing is at most NaN.

    Examples
    --------
    >>> import numpy as np
    >>> import interop
    >>> interop.less_equal(np.array([1, 2]), 1)
    array([ True, False])
    """
    raise NotImplementedError  # a declaration


@_operation(_COMPARISON, "any dtype but complex", "bool")
def greater(
    a: ArrayT | complex,
    b: ArrayT | complex,
    /,
    *,
    out: Any = None,
    stream: StreamLike | None = None,
    execution: str | None = None,
) -> Any:
    """Say where `a` is greater than `b`.

    {sections}

    Notes
    -----
    Nothing is greater than NaN.

    Examples
    --------
    >>> import numpy as np
    >>> import interop
    >>> interop.greater(np.array([1, 2]), 1)
    array([False,  True])
    """
    raise NotImplementedError  # a declaration


@_operation(_COMPARISON, "any dtype but complex", "bool")
def greater_equal(
    a: ArrayT | complex,
    b: ArrayT | complex,
    /,
    *,
    out: Any = None,
    stream: StreamLike | None = None,
    execution: str | None = None,
) -> Any:
    """Say where `a` is at least `b`.

    {sections}

    Notes
    -----
    Nothing is at least NaN.

    Examples
    --------
    >>> import numpy as np
    >>> import interop
    >>> interop.greater_equal(np.array([1, 2]), 2)
    array([False,  True])
    """
    raise NotImplementedError  # a declaration
