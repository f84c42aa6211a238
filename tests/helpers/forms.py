"""Products of every dtype with all that `interop.matmul` adds to them, and how near to the answer a result must be."""

from __future__ import annotations

import functools
import math
from decimal import Context, Decimal, getcontext, localcontext
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

import interop
from helpers import products

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
DTYPES = ("bool", *INTEGERS, *FLOATS, *COMPLEX)
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
EPILOGUES = ("relu", "gelu", "gelu_tanh")

_UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
_UNIT_ROUNDOFF |= {"complex64": 2.0**-23, "complex128": 2.0**-52}
_SUMMED_IN = {"float16": "float32", "bfloat16": "float32"}


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)


def draw(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Random elements: integers of the whole range, floats of all signs."""
    rng = np.random.default_rng([seed, *shape])
    kind = numpy_dtype(dtype)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        return rng.integers(limits.min, limits.max, shape, kind, endpoint=True)
    if kind.kind == "b":
        return rng.random(shape) < 0.2
    if kind.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(kind)
    return rng.standard_normal(shape).astype(kind)


def poison(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """An output before it is written: what no result has."""
    kind = numpy_dtype(dtype)
    return np.full(shape, {"b": True, "i": -99, "u": 99}.get(kind.kind, math.nan)).astype(kind)


def special(dtype: str, sides: tuple[int, int, int] = (8, 2, 5)) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Operands with infinities, NaN, subnormal and huge numbers, and their product; m, k, n beyond these are zeros."""
    kind = numpy_dtype(dtype)
    limits = ml_dtypes.finfo(kind)
    tiny, huge = float(limits.smallest_subnormal), float(limits.max)
    m, k, n = sides
    x, y = np.zeros((m, k), kind), np.zeros((k, n), kind)
    x[:8, :2] = [[math.inf, 1], [math.nan, 1], [0, 1], [tiny, 0], [-tiny, tiny], [huge, 0], [-huge, 0], [huge, huge]]
    y[:2, :5] = [[0, 1, math.inf, 2, 0.5], [1, 1, 1, 0, 0.5]]
    work = np.float32 if kind.itemsize < 4 else kind
    with np.errstate(all="ignore"):
        return x, y, (x.astype(work)[:, :, None] * y.astype(work)).sum(1).astype(kind)


@st.composite
def strided(
    draw: Any, shape: tuple[int, ...], dtype: str, negative: bool = False, distinct: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Draw a base and a view of it as `products.strided` does, in any dtype; with `distinct`, of no element twice."""
    base, narrow = draw(products.strided(shape, "int8", negative, not distinct))
    wide = base.astype(numpy_dtype(dtype))
    start = narrow.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    strides = [step * wide.itemsize for step in narrow.strides]
    return wide, np.lib.stride_tricks.as_strided(wide.reshape(-1)[start:], shape, strides)


def _high(x: Any) -> np.ndarray:
    """Elements in a precision beyond what any product is computed in; integers as Python's own."""
    x = np.asarray(x)
    if x.dtype.kind in "iu":
        return x.astype(object)
    if x.dtype.kind == "b":
        return x.astype(np.int64)
    return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)


def _apply(epilogue: str | None, x: np.ndarray) -> np.ndarray:
    if epilogue is None:
        return x
    if epilogue == "relu":
        return np.maximum(x, 0)
    y = x.astype(np.float64)
    if epilogue == "gelu":
        return 0.5 * y * np.vectorize(math.erfc, otypes=[float])(-y / math.sqrt(2))
    return 0.5 * y * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))


# ---- gelu, exactly ----


def gelu_arguments(dtype: str) -> np.ndarray:
    """256 numbers that every dtype has, or nearly: most of them where little is left of the sum in 1 + tanh(x)."""
    x = np.concatenate([np.linspace(-40, -14, 30), np.linspace(-14, 3, 200), np.geomspace(3, 40, 24), [0.0, -1e-3]])
    coarse = x.astype(ml_dtypes.float8_e4m3fn if dtype in FLOAT8 else ml_dtypes.bfloat16)
    return coarse.astype(np.float64).astype(numpy_dtype(dtype) if dtype not in FLOAT8 else np.float32)


@functools.cache
def _pi() -> Decimal:
    """By Machin's formula, to 800 digits."""

    def arctan_of_inverse(n: int) -> Decimal:
        total = term = Decimal(1) / n
        k = 1
        while abs(term) > Decimal(10) ** -800:
            term /= -n * n
            k += 2
            total += term / k
        return total

    with localcontext(Context(prec=810)):
        return 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))


@functools.cache
def _gelu_in_decimals(x: float, epilogue: str) -> Decimal:
    if x > 14:
        return Decimal(x)  # and 40 digits of it are
    # erf's series grows to exp(x^2 / 2) before it shrinks, and all but exp(-x^2 / 2) of it cancels.
    with localcontext(Context(prec=int(0.4343 * x * x) + 60)):
        value, pi = Decimal(x), +_pi()
        if epilogue == "gelu_tanh":
            inner = (2 / pi).sqrt() * (value + Decimal("0.044715") * value**3)
            return value / (1 + (-2 * inner).exp())
        z = value / Decimal(2).sqrt()
        square, total, term, k = z * z, z, z, 0
        while abs(term) > Decimal(10) ** -(getcontext().prec - 4):
            k += 1
            term *= -square / k
            total += term / (2 * k + 1)
        return value * (1 + 2 / pi.sqrt() * total) / 2


def gelu_error(result: np.ndarray, x: np.ndarray, epilogue: str, flushes: bool = False) -> float:
    """How many units in the last place of its dtype a gelu of `x` is off, at most, beside 64 of the least number.

    `flushes`: that is the least normal one, as what is below it may be 0, also on the way.
    """
    limits = ml_dtypes.finfo(result.dtype)
    floor = 64 * float(limits.tiny if flushes else limits.smallest_subnormal)
    worst = 0.0
    for got, argument in zip(result.ravel().tolist(), x.ravel().tolist(), strict=True):
        exact = _gelu_in_decimals(float(argument), epilogue)
        exponent = max(math.frexp(float(exact))[1] - 1, int(limits.minexp))
        error = abs(Decimal(float(got)) - exact) - Decimal(floor)
        worst = max(worst, float(error / Decimal(2) ** (exponent - int(limits.nmant))))
    return worst


def check(
    result: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    dtype: str,
    *,
    c: np.ndarray | None = None,
    alpha: Any = 1,
    beta: Any = 1,
    bias: np.ndarray | None = None,
    epilogue: str | None = None,
    unit_roundoff: float | None = None,
) -> None:
    """Exact for integers and bool; else within the bound of sums in any order, in float32 for the narrower floats."""
    kind = numpy_dtype(dtype)
    assert result.dtype == kind
    left, right = _high(x), _high(y)
    total = np.matmul(left, right)
    if kind.kind == "b":
        assert np.array_equal(result, total != 0)
        return
    total = total * alpha if alpha != 0 else total * 0
    magnitude = abs(alpha) * np.matmul(abs(left), abs(right))
    for term in (None if c is None or beta == 0 else _high(c) * beta, None if bias is None else _high(bias)):
        if term is not None:
            total, magnitude = total + term, magnitude + abs(term)
    assert result.shape == np.shape(total)
    if kind.kind in "iu":
        wrapped = np.asarray(total, object) % 2 ** (8 * kind.itemsize)
        assert np.array_equal(result.astype(object) % 2 ** (8 * kind.itemsize), wrapped)
        return
    expected = _apply(epilogue, total)
    u = unit_roundoff or _UNIT_ROUNDOFF[_SUMMED_IN.get(dtype, dtype)]
    smallest = float(ml_dtypes.finfo(kind).smallest_subnormal) if kind.kind in "fV" else 0.0
    bound = (x.shape[-1] + 8) * u * magnitude * 1.2 + _UNIT_ROUNDOFF[dtype] * abs(expected) * 1.01 + smallest
    error = abs(_high(result) - expected)
    assert np.all(error <= bound), f"off by up to {np.max(error / np.maximum(bound, 1e-300)):.3g} of the bound"


# ---- on a device ----


def matmul(a: Any, b: Any, *, backend: str | None, **options: Any) -> Any:
    """The product; None where cuBLASLt was asked for by name and says that it cannot."""
    try:
        return interop.matmul(a, b, backend=backend, **options)
    except ValueError as error:
        if backend != "cublas" or 'backend="cublas" cannot take this product: ' not in str(error):
            raise
    return None


def made(library: Any, x: np.ndarray) -> Any:
    try:
        return library.make(x)
    except (TypeError, ValueError, AttributeError, KeyError, NotImplementedError) as error:
        pytest.skip(f"{library!r} has no {x.dtype}: {error}")


def operands(library: Any, shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: str) -> tuple[Any, ...]:
    x, y = draw(shapes[0], dtype, 1), draw(shapes[1], dtype, 2)
    return made(library, x), made(library, y), x, y
