"""Products of host arrays that are more than `numpy.matmul`: other dtypes, factors, bias, epilogues."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from interop._promotion import factor_of

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
    warns: bool,
) -> None:
    """Write epilogue(alpha * a @ b + beta * c + bias) to `out`, and what the epilogue is given to `aux`.

    16-bit and float8 operands are added up in float32, and the result is rounded once. `conjugates`: which of the
    operands' elements are the conjugates of what lies in memory. `scales`: further factors of the product. `warns`:
    NumPy's floating-point warnings are the caller's own.
    """
    work = np.dtype(np.float32) if dtype.itemsize < 4 and dtype.kind in "fV" else dtype
    with contextlib.nullcontext() if warns else np.errstate(all="ignore"):
        total = _product(a, b, work, conjugates, alpha, dtype)
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


def _product(a: _Array, b: _Array, work: Any, conjugates: tuple[bool, bool], alpha: Any, dtype: Any) -> Any:
    x, y = (x.astype(dtype, copy=False).astype(work, copy=False) for x in (a, b))
    x, y = (np.conjugate(x) if is_conjugated else x for x, is_conjugated in zip((x, y), conjugates, strict=True))
    factor = factor_of("interop.matmul", "alpha", alpha, dtype, work)
    if factor == 0:  # nothing of the operands, so that their NaN is none of the result's
        x, y = np.zeros_like(x), np.zeros_like(y)
    product = np.matmul(x, y)
    return product if factor == 1 else factor * product


def _relu(x: Any) -> Any:
    return np.maximum(x, 0)  # NaN stays


def _gelu(x: Any) -> Any:
    # NumPy has no erf.
    tail: Any = np.frompyfunc(math.erfc, 1, 1)(np.asarray(x, np.float64) * -math.sqrt(0.5))
    tail = np.asarray(tail, x.dtype)
    return 0.5 * x * tail


def _gelu_tanh(x: Any) -> Any:
    with np.errstate(over="ignore"):  # of the cube, where tanh is 1
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


_EPILOGUES: dict[str, Callable[[Any], Any]] = {"relu": _relu, "gelu": _gelu, "gelu_tanh": _gelu_tanh}
