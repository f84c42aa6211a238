"""Arithmetic on the arrays of any library, element by element, with broadcasting."""

from __future__ import annotations

from typing import Any, TypeVar

from interop._elementwise_declared import BINARY, UNARY, operation
from interop._streams import StreamLike

__all__ = [
    "abs",
    "add",
    "divide",
    "floor_divide",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "pow",
    "remainder",
    "subtract",
]

ArrayT = TypeVar("ArrayT")

_WHERE_ZERO = """where_zero : scalar, optional
    The result where the divisor is zero; by default an infinity or NaN.
"""


@operation(BINARY, "any dtype; bool is or")
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


@operation(BINARY, "any dtype but bool")
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


@operation(BINARY, "any dtype; bool is and")
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


@operation(
    BINARY,
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


@operation(BINARY, "integers and floats")
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


@operation(BINARY, "integers and floats")
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


@operation(BINARY, "any dtype but complex")
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


@operation(BINARY, "any dtype but complex")
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


@operation(BINARY, "any dtype but bool")
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


@operation(UNARY, "any dtype but bool")
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


@operation(UNARY, "any dtype", "the dtype of `x`, or of its parts if that is complex")
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
