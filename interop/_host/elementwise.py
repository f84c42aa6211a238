"""Elementwise operations on host arrays: NumPy's, with this package's rules where NumPy's differ."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from interop._operations.promotion import comparison_of, element_of
from interop._operations.table import COMPARISONS, OPERATIONS

__all__ = ["compute", "ufunc_of"]

_Array = np.ndarray[Any, Any]
_BOOL = np.dtype(bool)


def compute(name: str, a: Any, b: Any, out: _Array, dtype: Any, where_zero: complex | None) -> None:
    """Write `name`(a, b) to `out`, computed in `dtype`.

    The operands are NumPy arrays, or scalars; `b` is None for unary operations.
    """
    _FUNCTIONS.get(name, _by_ufunc)(name, a, b, out, dtype, where_zero)


@functools.cache  # bounded: dtypes that are served, or equal to one
def ufunc_of(name: str, operands: tuple[Any, ...], dtype: Any, result: Any) -> tuple[Any, dict[str, Any]] | None:
    """Return NumPy's function that computes `name` in `dtype`, with what it is told.

    The operands are given by their dtypes. None where more than one function is needed.
    """
    if name == "pow" and dtype.kind == "i":
        return None
    if name in ("floor_divide", "remainder") and dtype == ml_dtypes.bfloat16:
        return None
    ufunc = getattr(np, OPERATIONS[name].numpy)
    if name == "abs" and dtype.kind == "c":
        return ufunc, {}
    if name in COMPARISONS and dtype == np.uint64 and any(x.kind == "i" for x in operands):
        return ufunc, {}  # exact, which no common dtype would be
    return ufunc, {"signature": (dtype,) * len(operands) + (result,), "casting": "unsafe"}


def _by_ufunc(name: str, a: Any, b: Any, out: _Array, dtype: Any, _where_zero: Any) -> None:
    operands = [a] if b is None else _operands(name, a, b, dtype)
    dtypes = (operands[0].dtype,) if b is None else (operands[0].dtype, operands[1].dtype)
    found = ufunc_of(name, dtypes, dtype, _BOOL if out.dtype.kind == "b" else dtype)
    assert found is not None
    ufunc, options = found
    ufunc(*operands, out=out, **options)


def _operands(name: str, a: Any, b: Any, dtype: Any) -> list[Any]:
    """Make a scalar an array of one element: a ufunc would not take it as its signature says."""
    pairs = {"a": a, "b": b}.items()
    return [x if isinstance(x, np.ndarray) else element_of(f"interop.{name}", place, x, dtype, True)
            for place, x in pairs]  # fmt: skip


def _compare(name: str, a: Any, b: Any, out: _Array, dtype: Any, _where_zero: Any) -> None:
    if not isinstance(a, np.ndarray):
        name, a = comparison_of(f"interop.{name}", name, "a", a, dtype, True)
    elif not isinstance(b, np.ndarray):
        name, b = comparison_of(f"interop.{name}", name, "b", b, dtype, False)
    _by_ufunc(name, a, b, out, dtype, None)


def _divide(name: str, a: Any, b: Any, out: _Array, dtype: Any, where_zero: complex | None) -> None:
    if where_zero is None:
        return _by_ufunc(name, a, b, out, dtype, None)
    replacement = element_of("interop.divide", "where_zero", where_zero, np.dtype(dtype), True)
    dividend, divisor = (x.astype(dtype, copy=False) for x in _operands(name, a, b, dtype))
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = np.empty_like(out)
        _by_ufunc(name, dividend, divisor, quotient, dtype, None)
    np.copyto(out, np.where(divisor == 0, replacement, quotient))
    return None


def _in_float32(name: str, a: Any, b: Any, out: _Array, dtype: Any, _where_zero: Any) -> None:
    """`//` and `%` of bfloat16: ml_dtypes gives NaN for a quotient by zero."""
    if dtype != ml_dtypes.bfloat16:
        return _by_ufunc(name, a, b, out, dtype, None)
    wide = [x.astype(dtype).astype(np.float32) for x in _operands(name, a, b, dtype)]
    np.copyto(out, getattr(np, name)(*wide).astype(dtype))
    return None


def _pow(name: str, a: Any, b: Any, out: _Array, dtype: Any, _where_zero: Any) -> None:
    if dtype.kind != "i":
        return _by_ufunc(name, a, b, out, dtype, None)
    base, exponent = (x.astype(dtype) for x in _operands(name, a, b, dtype))
    is_negative = exponent < 0
    inverse = np.where(base == 1, 1, np.where(base == -1, np.where(exponent & 1, -1, 1), 0)).astype(dtype)
    power = np.power(base, np.where(is_negative, 0, exponent).astype(dtype))
    np.copyto(out, np.where(is_negative, inverse, power))
    return None


_FUNCTIONS: dict[str, Callable[[str, Any, Any, _Array, Any, Any], None]] = {
    "divide": _divide,
    "pow": _pow,
    "floor_divide": _in_float32,
    "remainder": _in_float32,
    **dict.fromkeys(COMPARISONS, _compare),
}
