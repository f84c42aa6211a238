"""Elementwise operations to compute: operands of every dtype, and the right answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import interop

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
DTYPES = ("bool", *INTEGERS, *FLOATS, *COMPLEX)

COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
UNARY = ("negative", "abs")
OPERATIONS = (
    *("add", "subtract", "multiply", "divide", "floor_divide", "remainder", "minimum", "maximum", "pow"),
    *UNARY,
    *COMPARISONS,
)


def dtype_of(name: str) -> np.dtype:
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def kind_of(name: str) -> str:
    """The kind of a dtype, by NumPy's letters; bfloat16, of which NumPy does not know, is a float."""
    return dtype_of(name).kind.replace("V", "f")


def serves(name: str, dtype: str) -> bool:
    """Has `name` a meaning for operands of this dtype? (Written down here once more, as DESIGN's table of dtypes.)"""
    if dtype == "bool":
        return name not in ("subtract", "negative", "floor_divide", "remainder", "pow")
    if dtype in COMPLEX:
        orders = ("minimum", "maximum", "floor_divide", "remainder", "less", "less_equal", "greater", "greater_equal")
        return name not in orders
    return True


# ---- operands ----

SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.5, 3.0, -4.0, -7.0, np.inf, -np.inf, np.nan)


COMPLEX_SPECIAL = ("add", "subtract", "negative", "abs", "equal", "not_equal")  # which the standard defines


def special_complex(name: str, dtype: str) -> list[np.ndarray]:
    """Operands of all pairs of numbers whose parts are signed zeros, infinities, NaN and an ordinary number."""
    values = np.array([0.0, -0.0, 1.5, np.inf, -np.inf, np.nan])
    numbers = np.empty(values.size**2, dtype)
    numbers.real, numbers.imag = np.repeat(values, values.size), np.tile(values, values.size)
    return [numbers] if name in UNARY else [np.repeat(numbers, numbers.size), np.tile(numbers, numbers.size)]


def integral_powers(dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bases, (n, 1), special and ordinary; integral exponents that are multiplied, (1, m); and NumPy's powers."""
    values = np.array([0.0, -0.0, 1.0, -1.0, 1.5, -2.25, 3e-30, 1e20, np.inf, -np.inf, np.nan])
    bases = np.empty(values.size**2, dtype)
    bases.real, bases.imag = np.repeat(values, values.size), np.tile(values, values.size)
    bases = np.concatenate([bases, draw((50,), dtype)])[:, None]
    exponents = np.arange(-99, 100).astype(dtype)[None]
    with np.errstate(all="ignore"):
        return bases, exponents, np.power(bases, exponents)


def same_bits(result: np.ndarray, answer: np.ndarray) -> bool:
    """Tell whether the parts are the same, with the signs of zeros, but for the bits of NaN."""
    pairs = ((result.real, answer.real), (result.imag, answer.imag))
    return result.dtype == answer.dtype and all(
        np.array_equal(x, y, equal_nan=True) and np.array_equal(np.signbit(x[y == 0]), np.signbit(y[y == 0]))
        for x, y in pairs
    )


def draw(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Random elements: of integers the whole range and small ones, zeros among them; of floats ordinary numbers."""
    rng = np.random.default_rng([seed, len(dtype), *shape])
    kind = dtype_of(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in INTEGERS:
        limits = np.iinfo(kind)
        wide = rng.integers(limits.min, limits.max, shape, kind, endpoint=True)
        small = rng.integers(max(limits.min, -3), 8, shape).astype(kind)
        return np.where(rng.integers(0, 2, shape) == 0, wide, small)
    values = rng.standard_normal(shape) * 4
    if dtype in COMPLEX:
        return np.asarray(values + 1j * rng.standard_normal(shape)).astype(kind)
    return np.where(rng.integers(0, 8, shape) == 0, 0, values).astype(kind)


# ---- the answers ----


def _wrap(value: int, dtype: np.dtype) -> int:
    bits = dtype.itemsize * 8
    value %= 1 << bits
    return value - (1 << bits) if dtype.kind == "i" and value >= 1 << (bits - 1) else value


def _integer_pow(base: int, exponent: int, bits: int) -> int:
    if exponent < 0:
        return {1: 1, -1: -1 if exponent % 2 else 1}.get(base, 0)
    return pow(base, exponent, 1 << bits)


_OF_PYTHON: dict[str, Callable[[int, int], int]] = {
    "floor_divide": lambda a, b: a // b if b else 0,
    "remainder": lambda a, b: a % b if b else 0,
}


def expected(name: str, *operands: np.ndarray, dtype: str | None = None) -> np.ndarray:
    """Return the answer, computed in `dtype`: integers by Python, 16-bit floats in float32, the rest by NumPy."""
    kind = dtype_of(dtype) if dtype else operands[0].dtype
    if name == "divide" and kind.kind in "biu":
        kind = np.dtype(np.float64)
    x = [np.asarray(a).astype(kind) for a in operands]
    with np.errstate(all="ignore"):
        if kind.kind in "iu" and name in ("floor_divide", "remainder", "pow"):
            bits = kind.itemsize * 8
            function = _OF_PYTHON.get(name, lambda a, b: _integer_pow(a, b, bits))
            pairs = np.broadcast(*x)
            values = [_wrap(function(int(a), int(b)), kind) for a, b in pairs]
            return np.array(values, kind).reshape(pairs.shape)
        function = getattr(np, {"pow": "power"}.get(name, name))
        if kind in (np.float16, BFLOAT16):
            return _narrow(function(*(a.astype(np.float32) for a in x)), kind)
        return np.asarray(function(*x))


def _narrow(values: Any, kind: np.dtype) -> np.ndarray:
    return np.asarray(values) if values.dtype == bool else np.asarray(values).astype(kind)


def check(name: str, result: np.ndarray, answer: np.ndarray, loose: bool = False) -> None:
    """Compare values, dtypes and shapes: exactly, with signs of zeros, but for what no two libraries round alike."""
    assert result.shape == answer.shape
    assert result.dtype == answer.dtype
    if result.dtype.kind in "biu":
        assert np.array_equal(result, answer)
        return
    parts = [(result.real, answer.real), (result.imag, answer.imag)] if result.dtype.kind == "c" else [(result, answer)]
    loose = loose or name == "pow" or result.dtype.kind == "c" or (name == "abs" and answer.dtype.kind == "f")
    for got, want in parts:
        wide_got, wide_want = got.astype(np.float64), want.astype(np.float64)
        if loose:
            eps = float(ml_dtypes.finfo(got.dtype).eps)
            # NumPy's own powers of complex64 are up to 40 eps from those in complex128.
            slack = 8 if name == "pow" and len(parts) > 1 else 1
            scale = float(np.max(np.abs(wide_want), initial=0, where=np.isfinite(wide_want))) if len(parts) > 1 else 0
            assert np.allclose(wide_got, wide_want, rtol=16 * slack * eps, atol=8 * slack * eps * scale, equal_nan=True)
        else:
            assert np.array_equal(wide_got, wide_want, equal_nan=True)
        if name not in ("minimum", "maximum") and (not loose or (name == "pow" and len(parts) == 1)):
            zeros = wide_want == 0
            assert np.array_equal(np.signbit(wide_got[zeros]), np.signbit(wide_want[zeros]))


def call(name: str, *operands: Any, **options: Any) -> Any:
    with np.errstate(all="ignore"):  # NumPy's warnings, which are its own where it computes
        return getattr(interop, name)(*operands, **options)


def check_calls(
    name: str,
    library: Any,
    pairs: list[tuple[np.ndarray, np.ndarray]],
    answer: np.ndarray,
    out: tuple[np.ndarray, np.ndarray],
) -> None:
    """Compare a new result, and one written to `out`, which writes nothing else; each array is a base and its view."""
    result = call(name, *(library.view(base, view) for base, view in pairs))
    check(name, library.to_numpy(result), answer)
    base, view = out
    if any(n > 1 and s == 0 for n, s in zip(view.shape, view.strides, strict=True)) and view.size:
        return
    made = library.make(base)
    written = library.view_of(made, base, view)
    assert call(name, *(library.view(*pair) for pair in pairs), out=written) is written
    view[...] = answer
    check(name, library.to_numpy(made), base)
