"""Operators under jax.vmap: over leading axes at once, over all else one after the other."""

from __future__ import annotations

import numpy as np
import pytest

import interop
from interop import _core

jax = pytest.importorskip("jax")
jnp = jax.numpy

pytestmark = pytest.mark.skipif(not _core.build_info()["jax_functions"], reason="this build has no handlers for JAX")


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed + sum(shape)).standard_normal(shape))


def assert_same(made, expected):
    for x, y in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        assert x.shape == y.shape
        assert np.allclose(np.asarray(x), np.asarray(y), rtol=1e-9, atol=1e-9)


def softmax_back(g, y):
    return y * (g - (g * y).sum(-1, keepdims=True))


CASES = {
    "row_dot": ([(2, 3, 5), (5,)], lambda x, s: x @ s),
    "pair_dot": ([(3, 5), (3, 5)], lambda a, b: (a * b).sum(-1)),
    "softmax_back": ([(5,), (5,)], softmax_back),
    "layer": ([(4, 3), (3,), (3,)], lambda x, s, b: jnp.maximum(x * s + b, 0)),
    "product": ([(2, 3), (3, 4)], lambda x, w: x @ w),
}


def places(name):
    """Every operand mapped or not, along each of its dimensions."""
    shapes = CASES[name][0]
    axes = [[None, 0, *((len(shape), -1) if k == 0 else ())] for k, shape in enumerate(shapes)]
    grid = [()]
    for choices in axes:
        grid = [(*head, choice) for head in grid for choice in choices]
    return [in_axes for in_axes in grid if any(axis is not None for axis in in_axes)]


GRID = [(name, in_axes) for name in CASES for in_axes in places(name)]


def mapped(name, in_axes, size=2):
    shapes = CASES[name][0]
    operands = []
    for seed, (shape, axis) in enumerate(zip(shapes, in_axes, strict=True)):
        own = list(shape)
        if axis is not None:
            own.insert(axis if axis >= 0 else len(own), size)
        operands.append(draw(*own, seed=seed))
    return operands


@pytest.mark.parametrize(("name", "in_axes"), GRID)
def test_each_argument_is_mapped_along_each_axis(ops, name, in_axes):
    op, reference = getattr(ops, name), CASES[name][1]
    operands = mapped(name, in_axes)
    for wrapped in (lambda f: f, jax.jit):
        assert_same(wrapped(jax.vmap(op, in_axes))(*operands), jax.vmap(reference, in_axes)(*operands))
    assert_same(jax.vmap(op, in_axes, out_axes=-1)(*operands), jax.vmap(reference, in_axes, out_axes=-1)(*operands))


@pytest.mark.parametrize(("name", "in_axes"), [x for x in GRID if x[0] in ("row_dot", "layer", "softmax_back")])
def test_gradients_of_each_example(ops, name, in_axes):
    op, reference = getattr(ops, name), CASES[name][1]
    operands = mapped(name, in_axes)
    every = tuple(range(len(operands)))

    def each(f):
        return jax.vmap(jax.grad(lambda *operands: (f(*operands) ** 2).sum(), argnums=every), in_axes)

    assert_same(each(op)(*operands), each(reference)(*operands))
    assert_same(jax.jit(each(op))(*operands), each(reference)(*operands))

    def total(f):
        return jax.grad(lambda *operands: (jax.vmap(f, in_axes)(*operands) ** 2).sum(), argnums=every)

    assert_same(total(op)(*operands), total(reference)(*operands))

    def tangents(f):
        return jax.vmap(lambda *operands: jax.jvp(f, operands, operands), in_axes)

    assert_same(tangents(op)(*operands), tangents(reference)(*operands))


def test_maps_within_maps_and_none_of_their_elements(ops):
    x, s = draw(2, 3, 4, 5), draw(3, 5)
    nested = jax.vmap(jax.vmap(ops.row_dot), in_axes=(0, None))
    assert_same(nested(x, s), jax.vmap(jax.vmap(lambda x, s: x @ s), in_axes=(0, None))(x, s))
    assert jax.vmap(ops.row_dot, in_axes=(0, None))(jnp.zeros((0, 3, 5)), s[0]).shape == (0, 3)
    assert jax.vmap(ops.row_dot, in_axes=(None, 0))(x[0, 0], jnp.zeros((0, 5))).shape == (0, 4)
    hessians = jax.vmap(jax.hessian(lambda x, s: (ops.softmax(x) * s).sum()), in_axes=(0, None))(x[0, 0], s[0])
    assert_same(
        hessians, jax.vmap(jax.hessian(lambda x, s: (jax.nn.softmax(x) * s).sum()), in_axes=(0, None))(x[0, 0], s[0])
    )


def test_leading_axes_are_one_call_and_all_else_a_loop(ops):
    x, s = draw(4, 3, 5), draw(4, 5)

    def text(in_axes, *operands):
        return jax.jit(jax.vmap(ops.row_dot, in_axes)).lower(*operands).as_text()

    assert "stablehlo.while" not in text((0, None), x, s[0])
    assert "stablehlo.while" not in text((1, None), x, s[0])
    assert "stablehlo.while" in text((None, 0), x, s)
    loops = interop.operator("tests_jax_vmap::loops", lambda x: 2 * x, "x[..., n] -> [..., n]", batching="loop")
    assert "stablehlo.while" in jax.jit(jax.vmap(loops)).lower(x).as_text()
    assert_same(jax.vmap(loops)(x), 2 * x)


def test_two_results_are_mapped(ops):
    x = draw(3, 4, 2) * 5
    low, high = jax.vmap(ops.split, in_axes=2, out_axes=(0, 1))(x)
    assert_same(low, jnp.moveaxis(x - jnp.trunc(x), 2, 0))
    assert_same(high, jnp.moveaxis(jnp.trunc(x).astype("int64"), 2, 1))


def test_a_gradient_over_a_function_is_called_for_each_example(ops):
    outer, dot = ops.functions["outer"].returning(y=lambda a, s, rows, n: (*a.shape, n)), ops.functions["row_dot"]
    total = dot.returning(y=lambda x, s, rows, n: (rows,))

    def gradient(g, x, s, y):  # of C functions, which no vmap knows
        rows, n = g.size, s.shape[0]
        return outer(g, s, rows, n), total(x.reshape(rows, n).T, g.reshape(rows), n, rows)

    op = interop.operator(
        "tests_jax_vmap::over_functions", lambda x, s: x @ s, "x[..., n], s[n] -> [...]", gradient=gradient
    )
    x, s = draw(4, 3, 5), draw(5)

    def each(f):
        return jax.vmap(jax.grad(lambda x, s: (f(x, s) ** 2).sum(), argnums=(0, 1)), in_axes=(0, None))(x, s)

    assert_same(each(op), each(lambda x, s: x @ s))


def test_a_gradient_over_operations_of_jax_is_mapped_at_once(ops):
    x, s = draw(4, 3, 5), draw(5)
    each = jax.vmap(jax.grad(lambda x, s: ops.row_dot(x, s).sum(), argnums=1), in_axes=(0, None))
    text = jax.jit(each).lower(x, s).as_text()
    assert "stablehlo.while" not in text
    assert_same(each(x, s), x.sum(1))


def test_a_size_that_depends_on_how_many_leading_there_are_is_mapped_one_by_one():
    op = interop.operator(
        "tests_jax_vmap::counts",
        lambda x: jnp.zeros((*x.shape[:-1], x.size // x.shape[-1])) + x[..., :1],
        "x[..., n] -> [..., k]",
        sizes={"k": lambda leading: leading},
    )
    x = jnp.arange(6.0).reshape(2, 3)
    assert op(x).shape == (2, 2)
    assert jax.vmap(op)(x).shape == (2, 1)
