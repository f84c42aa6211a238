"""Products of JAX arrays to compute, and the check of a result. Without JAX a file of tests that has it is skipped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

SHAPES = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3, 5)),
    ((1, 1), (1, 1)),
    ((131, 257), (257, 67)),
    ((4, 2, 3), (4, 3, 5)),
    ((4, 1, 2, 3), (7, 3, 5)),
    ((2, 3), (6, 3, 5)),
    ((3,), (4, 3, 5)),
    ((2, 1, 1, 2, 3), (1, 5, 1, 3, 2)),
    ((2, 0), (0, 3)),
    ((4, 2, 0), (0, 3)),
    ((0,), (0,)),
    ((0, 3), (3, 2)),
    ((2, 3), (3, 0)),
    ((0, 2, 3), (3, 2)),
]
_TOLERANCE = {"float32": 1e-5, "float64": 1e-13}  # relative to the sum of absolute products


def draw(shape: tuple[int, ...], dtype: str = "float32", device: Any = None) -> tuple[np.ndarray, Any]:
    """Random values, the same for the same shape, as NumPy and as JAX array."""
    x = np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape).astype(dtype)
    with jax.enable_x64(True):
        return x, jax.device_put(x, device)


def check_product(c: Any, x: np.ndarray, y: np.ndarray) -> None:
    exact = np.matmul(x.astype("float64"), y.astype("float64"))
    scale = np.matmul(abs(x.astype("float64")), abs(y.astype("float64")))
    assert isinstance(c, jax.Array)
    assert c.shape == exact.shape
    assert c.dtype == x.dtype
    assert np.all(abs(np.asarray(c) - exact) <= _TOLERANCE[x.dtype.name] * scale)
