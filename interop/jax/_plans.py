"""What repeated calls of concrete JAX arrays run, found by the dtypes of the arrays and the types of the scalars alone.

A scalar is an operand of the compiled function, so that another value compiles nothing. A number of Python's stays one
where its element is the same, as JAX takes an array of NumPy's in thrice the time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import numpy as np

from interop._libraries.jax import is_wide
from interop._operations.promotion import configuration, element_of, range_of
from interop.jax._calls import raise_as_ours

__all__ = ["Plan", "Scalar", "is_planned", "scalar_as_operand"]

_INFINITY = float("inf")
_EXACT = 2**53  # up to here each integer is a float of Python
#: Types of scalars that plans are for, and numbers of Python's that hold them.
_NUMBERS: dict[Any, Any] = {
    **{kind: kind for kind in (int, float, complex)},
    **{np.dtype(name).type: int for name in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")},
    **{np.dtype(name).type: float for name in ("f2", "f4", "f8")},
    **{np.dtype(name).type: complex for name in ("c8", "c16")},
}


@dataclass(frozen=True)
class Scalar:
    """A scalar that becomes an operand."""

    place: int  #: among the operands of the call
    dtype: Any  #: of the element that the compiled function makes of it
    number: Callable[[Any], Any] | None  #: makes a number of Python's of one of NumPy's
    limits: tuple[Any, Any] | None  #: values that may be passed so; None: all of them
    made: Callable[[Any], Any] | None  #: what is passed; None: the scalar itself


@dataclass(frozen=True)
class Plan:
    """A compiled function of arrays of given dtypes, and then of scalars of given types."""

    function: str
    names: tuple[str, ...]  #: of the operands of the call
    compiled: Callable[..., jax.Array]
    arrays: tuple[int, ...]  #: their places among the operands
    scalars: tuple[Scalar, ...]
    configuration: Any = None  #: of JAX, where the dtypes depend on it

    @functools.cached_property
    def asks(self) -> bool:
        """Is more to be asked of a call than the kinds of its operands?"""
        return bool(self.scalars) or self.configuration is not None

    @functools.cached_property
    def _is_wide(self) -> bool:
        """Has JAX room for the scalars in its x64 mode alone?"""
        return any(is_wide(scalar.dtype) for scalar in self.scalars)

    def passed(self, operands: Sequence[Any]) -> Sequence[Any] | None:
        """Return what is passed on; None for values, or in a mode of JAX's, that the plan is not for."""
        if self.configuration is not None and self.configuration != configuration("jax"):
            return None
        if self._is_wide and not jax.config.jax_enable_x64:
            return None
        passed = [operands[place] for place in self.arrays]
        for scalar in self.scalars:
            x = operands[scalar.place]
            if scalar.number is not None:
                x = scalar.number(x)
            if scalar.limits is not None and not scalar.limits[0] <= x <= scalar.limits[1]:
                return None
            passed.append(x if scalar.made is None else scalar.made(x))
        return passed

    def raise_as_ours(self, error: RuntimeError | ValueError, operands: Sequence[Any]) -> NoReturn:
        """Raise what JAX says as what it means."""
        raise_as_ours(self.function, error, {self.names[place]: operands[place] for place in self.arrays})


def is_planned(kind: Any) -> bool:
    """Is it a type of scalars that a plan may be for?"""
    return kind in _NUMBERS


def scalar_as_operand(place: int, kind: Any, dtype: Any, compared: Sequence[Any] = ()) -> Scalar | None:
    """Return how scalars of a type become elements of `dtype`; None if that is not done so.

    `compared` are dtypes of arrays that it is compared with, which hold it.
    """
    number = _NUMBERS[kind]
    made: Callable[[Any], Any] | None = None
    limits: tuple[Any, Any] | None = None
    if dtype.kind in "iu" and number is int:
        given = np.iinfo(np.int64 if is_wide(dtype) else np.int32)
        least, largest = range_of(dtype)
        limits = max(least, given.min), min(largest, given.max)
    elif dtype.kind in "fVc" and number in (int, float):
        limits = (-_EXACT, _EXACT) if number is int else (-_INFINITY, _INFINITY)
        made = None if number is float else float
        if dtype.itemsize == 2:
            made = functools.partial(_rounded, dtype)
    elif dtype.kind != "c" or number is not complex:
        return None
    if limits is not None:
        ranges = [limits, *map(range_of, compared)]
        limits = max(least for least, _ in ranges), min(largest for _, largest in ranges)
    return Scalar(place, dtype, None if number is kind else number, limits, made)


def _rounded(dtype: Any, x: float) -> float:
    """Round to 16 bits once: JAX would round to 32 before."""
    return float(x) if x == 0 else _known_rounded(dtype, float(x))


@functools.lru_cache(maxsize=1024)
def _known_rounded(dtype: Any, x: float) -> float:
    return float(element_of("", "", x, dtype))
