"""The dtype in which operands are computed, as their array library says, asked once; and scalars in that dtype."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from interop._arguments import shown
from interop._libraries import known
from interop._libraries.base import numpy_dtype

__all__ = [
    "REAL",
    "accepted_factor",
    "as_promoted",
    "beside",
    "comparison_of",
    "configuration",
    "configured_by",
    "element_of",
    "factor_of",
    "numpy_dtype",
    "promote",
    "range_of",
    "scalar_of",
    "side_of",
    "value_of",
    "weak_scalar",
]

#: What promotion needs of an operand: (dtype, is it 0-d) of an array; a scalar of Python or NumPy.
Operand = tuple[str, bool] | bool | int | float | complex | np.generic | None

_known: dict[tuple[Any, ...], str] = {}  # bounded: dtypes, flags and a few configurations


def promote(function: str, library: str, in_float: bool, a: Operand, b: Operand = None) -> str:
    """Return the name of the dtype in which `function` computes operands `a` and `b` (None: it has one operand).

    Scalars of Python are weak: they count by their kind alone. With `in_float`, integers give the library's default
    float. Raises TypeError where the library has no answer, in its own words.
    """
    before = configuration(library)
    key = (library, in_float, _key(a), _key(b), before)
    if (dtype := _known.get(key)) is not None:
        return dtype
    try:
        dtype = known.library(library).promoted(in_float, *map(_counted, filter(None, key[2:4])))
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: torch's
        names = " and ".join(_describe(x) for x in (a, b) if x is not None)
        raise TypeError(f"{function}: {library} has no common dtype of {names}: {_first_line(error)}") from error
    if configuration(library) == before:  # else another thread has changed it while the library was asked
        _known[key] = dtype
    return dtype


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _describe(operand: Operand) -> str:
    if isinstance(operand, tuple):
        return operand[0]
    return f"a scalar of {type(operand).__name__}"


def scalar_of(scalar: Any) -> Any:
    """Return a scalar as that of its kind: an IntEnum, or another subclass, counts as what it is derived from.

    NumPy's have a dtype, and stay what they are; but a `numpy.bool_` is a bool.
    """
    if isinstance(scalar, np.generic):
        return bool(scalar) if isinstance(scalar, np.bool_) else scalar
    kind: Any
    for kind in (int, float, complex):
        if isinstance(scalar, kind) and type(scalar) not in (kind, bool):
            return kind.__pos__(scalar)  # which is of Python's own type
    return scalar


# Weakest first. No value counts, and a value might not fit.
_ONES: dict[Any, Any] = {bool: True, int: 1, float: 1.0, complex: 1j}


def _key(operand: Operand) -> Any:
    """Return what of an operand counts: (dtype, is it 0-d) of an array; of a scalar its kind, or its type in NumPy."""
    if operand is None or isinstance(operand, tuple):
        return operand
    return type(operand) if type(operand) in _ONES else type(scalar_of(operand))


def _counted(key: Any) -> Any:
    """Return what the rules take for it: arrays as they are, for a scalar one of its type."""
    return key if isinstance(key, tuple) else _ONES[key] if key in _ONES else key(1)


# ---- what is weak: scalars of Python, and weakly typed arrays of JAX, which count by their kind alone ----

_OF_KIND = {"b": True, "i": 1, "u": 1, "f": 1.0, "V": 1.0, "c": 1j}  # V: bfloat16


def weak_scalar(dtype: Any) -> Any:
    """Return the scalar that stands for a weakly typed array: the strongest of those that leave the dtype as it is."""
    return _OF_KIND[dtype.kind]


def as_promoted(operands: Sequence[Any]) -> list[Any]:
    """Return operands as `promote` takes them, of which weakly typed arrays have their scalar as third.

    They become that scalar. Where no array is strong, the first one counts as strong.
    """
    promoted = [x[2] if isinstance(x, tuple) and len(x) == 3 else x for x in operands]
    if not any(isinstance(x, tuple) for x in promoted):
        place = next((place for place, x in enumerate(operands) if isinstance(x, tuple)), None)
        if place is not None:
            promoted[place] = (operands[place][0], False)
    return promoted


def configuration(library: str) -> Any:
    """Return what a library's promotion depends on beside the operands."""
    return known.library(library).configuration()


def configured_by(library: str) -> Callable[[], Any] | None:
    """Return what tells the configuration of a library; None where promotion depends on none."""
    known_as = known.library(library)
    return known_as.configuration if known_as.is_configured else None


_SCALARS = ("alpha", "beta", "scale_a", "scale_b", "where_zero")  # which no array of another dtype may be


def element_of(function: str, name: str, scalar: Any, dtype: Any, warns: bool = False) -> Any:
    """Return a scalar as a 0-d NumPy array.

    OverflowError, naming the parameter, if the dtype cannot hold the integer; TypeError for a complex number in a real
    dtype. NumPy's warnings and errors of the rounding are nobody's, but with `warns` the caller's.
    """
    if type(scalar) not in _ONES:
        scalar = scalar_of(scalar)
    is_integer = isinstance(scalar, int | np.integer)
    fits = True
    if dtype.kind in "iu" and is_integer:
        limits = np.iinfo(dtype)
        fits = limits.min <= int(scalar) <= limits.max
    elif is_integer:
        fits = abs(int(scalar)) <= sys.float_info.max
        if fits and not -(2**63) <= int(scalar) < 2**64:  # NumPy makes an object of it, which bfloat16 is not made of
            scalar = float(scalar)
    elif dtype.kind != "c" and isinstance(scalar, complex | np.complexfloating):
        raise TypeError(f"{function}: {name} is {shown(scalar)}, and the result is {dtype}; accepted: a real number")
    if not fits:
        raise OverflowError(
            f"{function}: {name} is {shown(scalar)}, which {dtype} cannot hold; accepted: a value in its range"
            + ("" if name in _SCALARS else ", or an array")
        )
    if warns:
        return np.asarray(scalar).astype(dtype)
    with np.errstate(all="ignore"):
        return np.asarray(scalar).astype(dtype)


def value_of(
    function: str,
    name: str,
    scalar: Any,
    dtype: Any,
    product: Any = None,
    comparison: str | None = None,
    is_left: bool = False,
) -> tuple[bytes, str | None]:
    """Return the bytes of a scalar as an element, and the comparison that answers for it; for the compiled half.

    It is an operand as in `element_of`; a factor of a product of the dtype `product`, as in `factor_of`; or an operand
    of a comparison, as in `comparison_of`.
    """
    if product is not None:
        element = factor_of(function, name, scalar, product, dtype)
    elif comparison is not None:
        comparison, element = comparison_of(function, comparison, name, scalar, dtype, is_left)
    else:
        element = element_of(function, name, scalar, dtype)
    return element.tobytes(), comparison


# ---- comparisons, which are exact ----


def side_of(scalar: Any, dtype: Any) -> int:
    """Tell where a finite real number lies beside all that a dtype holds: -1 below, 1 above, 0 among it."""
    least = 0 if dtype.kind in ("b", "u") else -1
    if type(scalar) in (int, float) and least <= scalar <= 1:  # which all hold, as most that are compared with
        return 0
    if not isinstance(scalar, REAL):
        return 0
    if dtype.kind in "biu" and isinstance(scalar, _INTEGRAL):
        least, largest = range_of(dtype)
        return int(int(scalar) > largest) - int(int(scalar) < least)
    try:
        real = float(scalar)
    except OverflowError:
        return 1 if scalar > 0 else -1
    if dtype.kind in "biu" or not math.isfinite(real):
        return 0
    with np.errstate(over="ignore"):
        is_beyond = not np.isfinite(np.asarray(real).astype(dtype).real)
    return (1 if real > 0 else -1) if is_beyond else 0


def range_of(dtype: Any) -> tuple[Any, Any]:
    """Return the least and the largest finite number of a dtype; of a complex one, of its parts."""
    if dtype.kind == "b":
        return 0, 1
    if dtype.kind in "iu":
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    largest = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
    return -largest, largest


_TURNED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}


def beside(name: str, side: int, dtype: Any, is_left: bool) -> tuple[str, Any]:
    """Return a comparison, and a scalar that the dtype holds, which answer as `name` beside one that it does not.

    That scalar lies on `side` of all numbers of the dtype, and is the left operand or the right one. An infinity is
    still beyond it, and NaN still compares with nothing.
    """
    if dtype.kind not in "biu" and name in ("equal", "not_equal"):
        return name, float("nan")
    if dtype.kind == "c":
        return name, 0  # complex numbers have no order, as the operation will say
    seen = _TURNED.get(name, name) if is_left else name  # of the array, beside the scalar
    least, largest = range_of(dtype)
    if side > 0:
        found = "less_equal" if seen in ("less", "less_equal", "not_equal") else "greater"
    else:
        found = "greater_equal" if seen in ("greater", "greater_equal", "not_equal") else "less"
    return _TURNED[found] if is_left else found, largest if side > 0 else least


def comparison_of(function: str, name: str, parameter: str, scalar: Any, dtype: Any, is_left: bool) -> tuple[str, Any]:
    """Return the comparison that answers for any scalar, as an array of that dtype meets it, and the scalar's element.

    It is `name` itself, unless the dtype cannot hold the scalar.
    """
    side = side_of(scalar, dtype)
    if side:
        name, scalar = beside(name, side, dtype, is_left)
    return name, element_of(function, parameter, scalar, dtype)


def factor_of(function: str, name: str, factor: Any, dtype: Any, kind: Any) -> Any:
    """Return a factor of a product of `dtype` as a 0-d NumPy array of `kind`, the dtype it is added up in.

    Raises TypeError for what is no scalar, and for one that is not of the product's kind: a fraction beside integers, a
    complex number beside reals, anything but 1 beside bool.
    """
    if dtype.kind == "b" and isinstance(factor, bool | int | np.bool_ | np.integer) and factor == 1:
        return np.ones((), kind)
    kinds = {"i": _INTEGRAL, "u": _INTEGRAL, "c": REAL | complex | np.complexfloating}.get(dtype.kind, REAL)
    if dtype.kind == "b" or not isinstance(factor, kinds):
        raise TypeError(
            f"{function}: {name} is {shown(factor)} ({type(factor).__name__}), and the product is {dtype}; "
            f"accepted: {accepted_factor(dtype)}"
        )
    return element_of(function, name, factor, dtype if dtype.kind in "iu" else kind).astype(kind)


_INTEGRAL = bool | int | np.bool_ | np.integer
REAL = _INTEGRAL | float | np.floating


def accepted_factor(dtype: Any) -> str:
    """Say what scalars are factors of a product of that dtype."""
    return {"b": "1", "i": "an integer", "u": "an integer", "c": "a number"}.get(dtype.kind, "a real number")
