"""Calls in a program of JAX's between slow work of XLA's on either side: who is not in its order gets old memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["A", "N", "assert_in_order"]

N = 1 << 20
A = np.arange(N, dtype="float32") % 1024


def _slow(jax: Any, x: Any) -> Any:
    """Return `x` again, after some hundred milliseconds on the GPU, in memory that held something else before."""
    half = jax.lax.fori_loop(0, 20000, lambda _, c: c + 1, x)
    return jax.lax.fori_loop(0, 20000, lambda _, c: c - 1, half)


def assert_in_order(jax: Any, call: Callable[[Any], Any]) -> None:
    """What `call` reads is made by XLA just before, and what it makes, 2 x, is read by XLA just after."""
    f = jax.jit(lambda x: _slow(jax, call(_slow(jax, x))))
    x = jax.numpy.asarray(A)
    assert "callback" not in f.lower(x).compile().as_text()
    for repeat in range(3):
        np.testing.assert_array_equal(f(x + repeat), 2 * (A + repeat))
