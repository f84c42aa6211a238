"""JAX's debug_nans and debug_infs: what makes a NaN or an infinity raises, as what jax.numpy computes does."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import interop

B118 = {
    "divide": lambda a: interop.divide(a, a),
    "multiply": lambda a: interop.multiply(a + jnp_inf(a), a),
    "remainder": lambda a: interop.remainder(a, a),
    "floor_divide": lambda a: interop.floor_divide(a, a),
    "subtract": lambda a: interop.subtract(a + jnp_inf(a), a + jnp_inf(a)),
    "pow": lambda a: interop.pow(a - 1, 0.5),
    "matmul": lambda a: interop.matmul(a[:, None] + jnp_inf(a), a[None]),
    "matmul with factors": lambda a: interop.matmul(a[:, None] + jnp_inf(a), a[None], alpha=2.0),
    "expression": lambda a: interop.elementwise("x / x")(a),
}
OF_NAN = {
    "negative": lambda a: interop.negative(a),
    "abs": lambda a: interop.abs(a),
    "maximum": lambda a: interop.maximum(a, 1.0),
    "add": lambda a: interop.add(a, a),
}


def jnp_inf(a):
    return np.float32(np.inf)


@pytest.mark.parametrize("name", [*B118, *OF_NAN])
@pytest.mark.parametrize("way", ["call", "jit", "disable_jit"])
def test_debug_nans(host_jax, name, way, capfd):
    """B118 - jax-ml/jax#25299: FloatingPointError, as of jax.numpy, and no recursion."""
    call = B118.get(name) or OF_NAN[name]
    a = host_jax.numpy.full(2, 0.0 if name in B118 else np.nan, "float32")
    call = host_jax.jit(call) if way == "jit" else call
    inside = host_jax.disable_jit() if way == "disable_jit" else contextlib.nullcontext()
    with inside, host_jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        call(a)
    assert np.isnan(np.asarray(call(a))).any()  # without it, a NaN is a value


def test_debug_nans_of_calls_with_other_libraries(host_jax):
    zeros = host_jax.numpy.zeros(2)
    for call in (
        lambda: interop.divide(zeros, np.zeros(2, "f4")),
        lambda: interop.matmul(host_jax.numpy.full((1, 1), np.inf), np.zeros((1, 1), "f4")),
        lambda: interop.elementwise("x / y")(zeros, np.zeros(2, "f4")),
    ):
        assert bool(host_jax.numpy.isnan(call()).any())
        with host_jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
            call()
    with host_jax.debug_nans(True), host_jax.debug_infs(True):
        assert interop.add(zeros, np.ones(2, "f4")).tolist() == [1, 1]
        with pytest.raises(FloatingPointError, match="inf"):
            interop.divide(zeros + 1, np.zeros(2, "f4"))


@pytest.mark.parametrize("way", ["call", "jit"])
def test_debug_infs(host_jax, way, capfd):
    ones, zeros = host_jax.numpy.ones((2, 2)), host_jax.numpy.zeros((2, 2))
    large = host_jax.numpy.full((2, 2), 1e38, "float32")
    wrap = host_jax.jit if way == "jit" else lambda call: call
    for call in (lambda: wrap(interop.divide)(ones, zeros), lambda: wrap(interop.matmul)(large, large)):
        with host_jax.debug_infs(True), pytest.raises(FloatingPointError, match="inf"):
            call()
    with host_jax.debug_infs(True), host_jax.debug_nans(True):
        assert wrap(interop.matmul)(ones, ones).tolist() == [[2, 2], [2, 2]]
        assert not wrap(interop.equal)(ones, zeros).any()
        assert wrap(lambda a, b: interop.divide(a, b, where_zero=0))(ones, zeros).tolist() == [[0, 0], [0, 0]]
