"""Products of host arrays that are more than `numpy.matmul`: other dtypes, factors, bias, epilogues."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from interop._operations.promotion import factor_of

__all__ = ["CUBIC", "LINEAR", "ROOT", "compute"]

_Array = np.ndarray[Any, Any]


def compute(
    a: _Array,
    b: _Array,
    out: _Array,
    dtype: Any,
    *,
    conjugates: tuple[bool, bool],
    c: _Array | None,
    alpha: Any,
    beta: Any,
    bias: _Array | None,
    epilogue: str | None,
    aux: _Array | None,
    scales: Sequence[Any],
) -> None:
    """Write epilogue(alpha * a @ b + beta * c + bias) to `out`, and what the epilogue is given to `aux`.

    16-bit and float8 operands are added up in float32, and the result is rounded once. `conjugates`: which of the
    operands are lazily conjugated. `scales`: further factors of the product.
    """
    work = np.dtype(np.float32) if dtype.itemsize < 4 and dtype.kind in "fV" else dtype
    total = _matmul(a, b, work, conjugates, alpha, dtype)
    for scale in scales:
        total = total * np.asarray(scale, work).reshape(())
    beta = factor_of("interop.matmul", "beta", beta, dtype, work)
    if c is not None and beta != 0:
        total = total + beta * c.astype(work, copy=False)
    if bias is not None:
        total = total + bias.astype(work, copy=False)
    if aux is not None:
        np.copyto(aux, total, casting="unsafe")
    if epilogue is not None:
        total = _EPILOGUES[epilogue](total)
    np.copyto(out, total, casting="unsafe")


def _matmul(a: _Array, b: _Array, work: Any, conjugates: tuple[bool, bool], alpha: Any, dtype: Any) -> Any:
    x, y = (x.astype(dtype, copy=False).astype(work, copy=False) for x in (a, b))
    x, y = (np.conjugate(x) if is_conjugated else x for x, is_conjugated in zip((x, y), conjugates, strict=True))
    factor = factor_of("interop.matmul", "alpha", alpha, dtype, work)
    if factor == 0:  # nothing of the operands, so that their NaN is none of the result's
        x, y = np.zeros_like(x), np.zeros_like(y)
    product = np.matmul(x, y)
    return product if factor == 1 else factor * product


def _relu(x: Any) -> Any:
    return np.maximum(x, 0)  # NaN stays


# Each as the sum of two floats. The result is right to a few units in the last place, even where it is small. exp
# and erfc of a rounded argument are not: what rounding takes from the argument is found, and given back.
ROOT = (0.7071067811865476, -4.833646656726457e-17)  # sqrt(1/2)
LINEAR = (1.5957691216057308, -9.96930880911092e-17)  # 2 sqrt(2/pi)
CUBIC = (0.07135481627260025, -6.175149918155315e-19)  # 0.044715 times that


def _product(x: Any, y: Any) -> tuple[Any, Any]:
    """Return a product, and its rounding error, by Dekker's algorithm: with halves of the numbers' bits."""

    def halves(z: Any) -> tuple[Any, Any]:
        scaled = 134217729.0 * z  # 2**27 + 1
        high = scaled - (scaled - z)
        return high, z - high

    product = x * y
    (a, b), (c, d) = halves(x), halves(y)
    return product, ((a * c - product) + a * d + b * c) + b * d


def _gelu(x: Any) -> Any:
    wide = np.asarray(x, np.float64)
    y = np.clip(wide, -60.0, 60.0)  # beyond, the tail is 0 or 2
    z, low = _product(y, -ROOT[0])
    low -= y * ROOT[1]
    tail: Any = np.asarray(np.frompyfunc(math.erfc, 1, 1)(z), np.float64)  # NumPy has none
    with np.errstate(under="ignore"):
        tail -= np.where(z > 0, tail * (low * (z + np.sqrt(z * z + 1.5))), 0)  # its logarithm's slope, nearly
        return np.asarray(0.5 * wide * tail).astype(x.dtype)


def _gelu_tanh(x: Any) -> Any:
    """Return x / (1 + exp(-t)). It equals x (1 + tanh(t/2)) / 2, but has no sum that cancels below 0."""
    wide = np.asarray(x, np.float64)
    y = np.minimum(np.abs(wide), 40.0)  # beyond, exp(-t) is 0
    square, square_low = _product(y, y)
    term, term_low = _product(square, CUBIC[0])
    factor = LINEAR[0] + term
    back = factor - LINEAR[0]
    factor_low = (LINEAR[0] - (factor - back)) + (term - back)
    factor_low += term_low + (CUBIC[0] * square_low + (CUBIC[1] * square + LINEAR[1]))
    t, low = _product(y, factor)
    with np.errstate(under="ignore"):
        power = np.exp(-t)
        power -= power * (low + y * factor_low)
        return np.asarray(wide * np.where(wide < 0, power, 1) / (1 + power)).astype(x.dtype)


_EPILOGUES: dict[str, Callable[[Any], Any]] = {"relu": _relu, "gelu": _gelu, "gelu_tanh": _gelu_tanh}
