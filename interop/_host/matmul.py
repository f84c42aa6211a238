"""Products of host arrays that are more than `numpy.matmul`: other dtypes, factors, bias, epilogues."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from interop._operations.finish import Arithmetic, finish_dtype, gelu, gelu_tanh
from interop._operations.promotion import factor_of

__all__ = ["compute"]

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
    work = finish_dtype(dtype)
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


def _product(x: Any, y: Any) -> tuple[Any, Any]:
    """Return a product, and its rounding error, by Dekker's algorithm: with halves of the numbers' bits."""

    def halves(z: Any) -> tuple[Any, Any]:
        scaled = 134217729.0 * z  # 2**27 + 1
        high = scaled - (scaled - z)
        return high, z - high

    product = x * y
    (a, b), (c, d) = halves(x), halves(y)
    return product, ((a * c - product) + a * d + b * c) + b * d


def _erfc(x: _Array) -> Any:
    return np.asarray(np.frompyfunc(math.erfc, 1, 1)(x), np.float64)  # NumPy has none


_ARITHMETIC = Arithmetic(np, _product, lambda x, y: _product(x, -y), _erfc)


def _in_float64(function: Callable[[Arithmetic, _Array], Any]) -> Callable[[_Array], Any]:
    """Round once; what is lost on the way is no loss of the result's."""

    def rounded(x: _Array) -> Any:
        with np.errstate(under="ignore"):
            return np.asarray(function(_ARITHMETIC, np.asarray(x, np.float64))).astype(x.dtype)

    return rounded


_EPILOGUES: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: np.maximum(x, 0),  # NaN stays
    "gelu": _in_float64(gelu),
    "gelu_tanh": _in_float64(gelu_tanh),
}
