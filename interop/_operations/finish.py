"""What follows a product: the dtype in which it is done, and gelu, in an array library's own arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Arithmetic", "finish_dtype", "gelu", "gelu_tanh"]


def finish_dtype(dtype: Any) -> Any:
    """Return the dtype in which a product is added up and finished: float32 for the narrower floats."""
    return np.dtype(np.float32) if dtype.itemsize < 4 and dtype.kind in "fV" else dtype


# ---- gelu ----
# The result is right to a few units in the last place, even where it is small. exp and erfc of a rounded argument are
# not: what rounding takes from the argument is found, and given back. The CUDA half has the same in finish.cuh, by fma.

# Each constant is the sum of two floats.
_ROOT = (0.7071067811865476, -4.833646656726457e-17)  # sqrt(1/2)
_LINEAR = (1.5957691216057308, -9.96930880911092e-17)  # 2 sqrt(2/pi)
_CUBIC = (0.07135481627260025, -6.175149918155315e-19)  # 0.044715 times that


@dataclass(frozen=True)
class Arithmetic:
    """What gelu needs of an array library."""

    functions: Any  #: its module of functions, such as `numpy`
    product: Any  #: (x, y) -> their product, and its rounding error
    negative_product: Any  #: the same of -x y; which factor is negated decides the sign of a NaN
    erfc: Any


def _pair(value: tuple[float, float], dtype: Any) -> tuple[Any, Any]:
    """Return a constant as the sum of two numbers of a dtype."""
    if dtype == np.float64:
        return np.float64(value[0]), np.float64(value[1])
    high = np.float32(value[0])
    return high, np.float32(value[0] - float(high))


def gelu(by: Arithmetic, x: Any) -> Any:
    """Compute x times the normal distribution function of x, of float32 or float64."""
    root, root_low = _pair(_ROOT, x.dtype)
    y = by.functions.clip(x, -60.0, 60.0)  # beyond, the tail is 0 or 2
    z, low = by.negative_product(y, root)
    low -= y * root_low
    tail = by.erfc(z)
    # The slope of its logarithm, nearly.
    tail -= by.functions.where(z > 0, tail * (low * (z + by.functions.sqrt(z * z + 1.5))), 0)
    return 0.5 * x * tail


def gelu_tanh(by: Arithmetic, x: Any) -> Any:
    """Compute x / (1 + exp(-t)). It equals x (1 + tanh(t/2)) / 2, but has no sum that cancels below 0."""
    (linear, linear_low), (cubic, cubic_low) = (_pair(value, x.dtype) for value in (_LINEAR, _CUBIC))
    y = by.functions.minimum(by.functions.abs(x), 40.0)  # beyond, exp(-t) is 0
    square, square_low = by.product(y, y)
    term, term_low = by.product(square, cubic)
    factor = linear + term
    back = factor - linear
    factor_low = (linear - (factor - back)) + (term - back)
    factor_low += term_low + (cubic * square_low + (cubic_low * square + linear_low))
    t, low = by.product(y, factor)
    power = by.functions.exp(-t)
    power -= power * (low + y * factor_low)
    return x * by.functions.where(x < 0, power, 1) / (1 + power)
