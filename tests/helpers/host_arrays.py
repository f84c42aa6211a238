"""Results of calls that are an `interop.Array` in host memory."""

from __future__ import annotations

import numpy as np

import interop

VALUES = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


def make(values: np.ndarray = VALUES) -> interop.Array:
    """An `interop.Array` with these values: the product of a buffer and one."""
    return interop.matmul(memoryview(values), np.eye(values.shape[-1], dtype=values.dtype))
