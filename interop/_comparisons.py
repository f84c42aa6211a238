"""Comparisons of the arrays of any library, element by element, with broadcasting."""

from __future__ import annotations

from typing import Any, TypeVar

from interop._elementwise_declared import COMPARISON, operation
from interop._streams import StreamLike

__all__ = [
    "equal",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "not_equal",
]

ArrayT = TypeVar("ArrayT")


@operation(COMPARISON, "any dtype", "bool")
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


@operation(COMPARISON, "any dtype", "bool")
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


@operation(COMPARISON, "any dtype but complex", "bool")
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


@operation(COMPARISON, "any dtype but complex", "bool")
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


@operation(COMPARISON, "any dtype but complex", "bool")
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


@operation(COMPARISON, "any dtype but complex", "bool")
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
