"""Derivatives of operators of JAX arrays, beside those of JAX's own functions and by differences."""

from __future__ import annotations

import numpy as np
import pytest

import interop
from interop import _core

jax = pytest.importorskip("jax")
jnp = jax.numpy

from jax.test_util import check_grads  # noqa: E402 - after the check that there is JAX

pytestmark = pytest.mark.skipif(not _core.build_info()["jax_functions"], reason="this build has no handlers for JAX")


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed + sum(shape)).standard_normal(shape))


def alone(name, call, signature, **options):
    return interop.operator(f"tests_jax_derivatives::{name}", call, signature, **options)


def assert_same(made, expected):
    assert jax.tree.structure(made) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        assert x.shape == y.shape
        assert np.allclose(np.asarray(x), np.asarray(y), rtol=1e-9, atol=1e-9)


CASES = {
    "row_dot": ([(2, 3, 5), (5,)], lambda x, s: x @ s),
    "outer": ([(2, 3), (5,)], lambda a, s: a[..., None] * s),
    "pair_dot": ([(3, 5), (3, 5)], lambda a, b: (a * b).sum(-1)),
    "softmax": ([(2, 5)], lambda x: jax.nn.softmax(x)),
    "softmax_back": ([(2, 5), (2, 5)], lambda g, y: y * (g - (g * y).sum(-1, keepdims=True))),
    "layer": ([(4, 3), (3,), (3,)], lambda x, s, b: jnp.maximum(x * s + b, 0)),
}


def case(ops, name):
    shapes, reference = CASES[name]
    operands = [draw(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    return getattr(ops, name), reference, operands


@pytest.mark.parametrize("mode", ["fwd", "rev"])
@pytest.mark.parametrize("name", CASES)
def test_derivatives_of_two_orders_by_differences(ops, name, mode):
    op, _, operands = case(ops, name)

    def f(*operands):
        return op(*map(jnp.asarray, operands))  # differences are of NumPy arrays

    check_grads(f, operands, order=2, modes=[mode], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("transform", ["jacfwd of jacrev", "jacrev of jacrev", "jacrev of jacfwd"])
@pytest.mark.parametrize("jits", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", CASES)
def test_hessians_are_those_of_jax(ops, name, jits, transform):
    op, reference, operands = case(ops, name)
    every = tuple(range(len(operands)))

    def of(f):
        def loss(*operands):
            return (f(*operands) ** 2).sum()

        outer, _, inner = transform.partition(" of ")
        return getattr(jax, outer)(getattr(jax, inner)(loss, argnums=every), argnums=every)

    wrapped = jax.jit if jits else lambda f: f
    assert_same(wrapped(of(op))(*operands), of(reference)(*operands))


@pytest.mark.parametrize("wrap", ["jit", "checkpoint", "scan", "map", "cond", "custom_vjp", "custom_jvp", "vmap"])
@pytest.mark.parametrize("order", [1, 2])
def test_derivatives_through_what_stands_around_a_call(ops, wrap, order):
    x, s = draw(4, 5), draw(5)

    def wrapped(call):
        if wrap in ("jit", "checkpoint"):
            return getattr(jax, wrap)(call)
        if wrap == "scan":
            return lambda x, s: jax.lax.scan(lambda c, row: (c + call(row, s), call(row, s * c)), 1.0, x)[1]
        if wrap == "map":
            return lambda x, s: jax.lax.map(lambda row: call(row, s), x)
        if wrap == "cond":
            return lambda x, s: jax.lax.cond(x[0, 0] > 10, lambda x: -call(x, s), lambda x: call(x, s), x)
        if wrap == "vmap":
            return jax.vmap(call, in_axes=(0, None))
        if wrap == "custom_jvp":
            own = jax.custom_jvp(call)
            own.defjvp(lambda primals, tangents: jax.jvp(call, primals, tangents))
            return own
        own = jax.custom_vjp(call)
        own.defvjp(lambda x, s: (own(x, s), (x, s)), lambda res, g: jax.vjp(call, *res)[1](g))
        return own

    def loss(call):
        f = wrapped(call)
        value = lambda x, s: (f(x, s) ** 3).sum()  # noqa: E731
        first = jax.grad(value, argnums=(0, 1))
        return first if order == 1 else jax.grad(lambda x, s: sum((y**2).sum() for y in first(x, s)), argnums=(0, 1))

    expected = loss(lambda x, s: x @ s)(x, s)
    assert_same(loss(ops.row_dot)(x, s), expected)
    assert_same(jax.jit(loss(ops.row_dot))(x, s), expected)


def test_jax_functions_with_rules_of_their_own_inside_a_call():
    @jax.custom_jvp
    def double(x):
        return 2 * x

    double.defjvp(lambda primals, tangents: (double(*primals), 100 * tangents[0]))
    op = alone("inside", lambda x: double(x), "x[n] -> [n]", gradient=lambda g, x, y: double(g))
    x = jnp.ones(3)
    assert jax.jit(op)(x).tolist() == [2, 2, 2]
    assert jax.grad(lambda x: op(x).sum())(x).tolist() == [2, 2, 2]  # the operator's gradient, and no other


def test_linearize_vjp_and_linear_transpose(ops):
    x, s = draw(3, 5), draw(5)
    y, linear = jax.linearize(lambda x: ops.row_dot(x, s), x)
    assert_same(y, x @ s)
    assert_same(linear(2 * x), 2 * x @ s)
    (back,) = jax.linear_transpose(linear, x)(y)
    assert_same(back, y[:, None] * s)
    value, pull = jax.vjp(ops.row_dot, x, s)
    assert_same(pull(value), (value[:, None] * s, value @ x))


def test_a_call_is_not_taken_for_linear(ops):
    x, s = draw(3, 5), draw(5)
    with pytest.raises(NotImplementedError, match=r"::row_dot: JAX transposes a call of it by x, as if it was linear"):
        jax.linear_transpose(lambda x: ops.row_dot(x, s), x)(x[:, 0])


def test_only_what_is_asked_for_is_differentiated(ops):
    x, s = draw(3, 5), draw(5)
    text = str(jax.make_jaxpr(jax.grad(lambda x: ops.row_dot(x, s).sum()))(x))
    assert text.count("interop_operator_gradient[") == 1
    assert_same(jax.grad(lambda x: ops.row_dot(x, jax.lax.stop_gradient(s)).sum())(x), jnp.ones((3, 1)) * s)
    assert "interop_operator_gradient" not in str(
        jax.make_jaxpr(jax.grad(lambda s: s.sum() + 0 * ops.softmax(x).sum()))(s)
    )


def test_several_results_of_which_one_is_of_integers(ops):
    x = draw(2, 3) * 5
    (low, high), (low_dot, high_dot) = jax.jvp(ops.split, (x,), (x,))
    assert_same(low_dot, x)
    assert high_dot.dtype == jax.dtypes.float0
    assert_same(jax.grad(lambda x: (ops.split(x)[0] ** 2).sum())(x), 2 * low)
    assert_same(jax.grad(lambda x: ops.split(x)[1].sum().astype("float64"))(x), jnp.zeros((2, 3)))
    assert high.dtype == "int64"


def test_results_that_are_not_used_have_gradients_of_zeros():
    seen = []

    def gradient(g, x, first, second):
        seen.append([type(one) is not type(None) for one in g])
        return g[0] + 2 * g[1]

    op = alone("two", lambda x: (x, 2 * x), "x[n] -> [n], [n]", gradient=gradient)
    x = jnp.ones(2)
    assert jax.grad(lambda x: op(x)[0].sum())(x).tolist() == [1, 1]
    assert jax.grad(lambda x: op(x)[1].sum())(x).tolist() == [2, 2]
    assert jax.jit(jax.grad(lambda x: (op(x)[0] + op(x)[1]).sum()))(x).tolist() == [3, 3]
    assert all(all(given) for given in seen)


def test_integers_have_float0_and_none_stands_for_zeros():
    op = alone(
        "indexed",
        lambda x, k: x * k.astype(x.dtype),
        "x[n], k[n] -> [n]",
        gradient=lambda g, x, k, y: (g * k.astype(x.dtype), None),
    )
    x, k = jnp.ones(3), jnp.arange(3)
    _, pull = jax.vjp(op, x, k)
    by_x, by_k = pull(jnp.ones(3))
    assert by_x.tolist() == [0, 1, 2]
    assert by_k.dtype == jax.dtypes.float0
    nothing = alone("nothing", lambda x, y: x + 0 * y, "x[n], y[n] -> [n]", gradient=lambda g, x, y, z: (g, None))
    assert jax.grad(lambda y: nothing(x, y).sum())(x).tolist() == [0, 0, 0]


def test_complex_gradients_are_adjoints_as_in_torch(ops):
    torch = pytest.importorskip("torch")

    def gradient(g, x, s, y):  # as torch has it: by the conjugates of the factors
        return g * s.conj(), g * x.conj()

    op = alone(
        "complex",
        lambda x, s: x * s,
        "x[n], s[n] -> [n]",
        gradient=gradient,
        tangent=lambda t, i, y: t[0] * i[1] + i[0] * t[1],
    )
    x, s = draw(4) + 1j * draw(4, seed=1), draw(4, seed=2) + 1j * draw(4, seed=3)
    check_grads(lambda x, s: op(jnp.asarray(x), jnp.asarray(s)), (x, s), order=2, modes=["rev", "fwd"])
    by_op = jax.grad(lambda x: jnp.abs(op(x, s) ** 2).sum())(x)
    assert_same(by_op, jax.grad(lambda x: jnp.abs((x * s) ** 2).sum())(x))
    y = torch.tensor(np.asarray(x), requires_grad=True)
    ((y * torch.tensor(np.asarray(s))) ** 2).abs().sum().backward()
    assert np.allclose(np.asarray(by_op), y.grad.numpy().conj())  # JAX's gradients are conjugates of torch's


# ---- derivatives that are missing, or wrong ----


def test_without_derivatives_the_error_names_the_input_and_what_to_give():
    op = alone("bare", lambda x, s: x * s, "x[n], s[n] -> [n]")
    x = jnp.ones(2)
    message = (
        r"^tests_jax_derivatives::bare: JAX differentiates it by s, and it has no derivative; accepted: gradient= of "
        r"interop.operator, and tangent= for forward mode, or jax.lax.stop_gradient\(s\)\n"
    )
    for transform in (lambda: jax.grad(lambda s: op(x, s).sum())(x), lambda: jax.jvp(lambda s: op(x, s), (x,), (x,))):
        with pytest.raises(NotImplementedError, match=message):
            transform()
    assert jax.grad(lambda s: op(x, jax.lax.stop_gradient(s)).sum() + s.sum())(x).tolist() == [1, 1]


def test_with_a_gradient_alone_forward_mode_names_tangent():
    op = alone("backward", lambda x: x * x, "x[n] -> [n]", gradient=lambda g, x, y: 2 * g * x)
    x = jnp.array([1.0, 3.0])
    assert jax.grad(lambda x: op(x).sum())(x).tolist() == [2, 6]
    assert jax.grad(lambda x: jax.grad(lambda x: op(x).sum())(x).sum())(x).tolist() == [2, 2]
    assert jax.jit(jax.jacrev(jax.jacrev(lambda x: op(x).sum())))(x).tolist() == [[2, 0], [0, 2]]
    message = (
        r"^tests_jax_derivatives::backward: JAX asks for tangents by x \(jax.jvp, .* accepted: tangent= of interop"
    )
    for transform in (
        lambda: jax.jvp(op, (x,), (x,)),
        lambda: jax.jit(lambda x: jax.jvp(op, (x,), (x,)))(x),
        lambda: jax.jacfwd(op)(x),
        lambda: jax.hessian(lambda x: op(x).sum())(x),
        lambda: jax.linearize(op, x)[1](x),
    ):
        with pytest.raises(NotImplementedError, match=message):
            transform()


def test_with_a_tangent_alone_reverse_mode_transposes_it():
    op = alone("forward", lambda x: x * x, "x[n] -> [n]", tangent=lambda t, inputs, outputs: 2 * inputs[0] * t[0])
    x = jnp.array([1.0, 3.0])
    assert jax.jvp(op, (x,), (x,))[1].tolist() == [2, 18]
    assert jax.grad(lambda x: op(x).sum())(x).tolist() == [2, 6]
    assert jax.hessian(lambda x: (op(x) ** 2).sum())(x).tolist() == jax.hessian(lambda x: (x**4).sum())(x).tolist()


def test_a_tangent_over_a_function_needs_a_gradient_for_reverse_mode(ops):
    scaled = ops.functions["scaled"].returning(y="x")
    op = alone(
        "opaque", lambda x: 2 * x, "x[..., n] -> [..., n]", tangent=lambda t, i, o: scaled(t[0], 2.0, t[0].size, 1)
    )
    x = draw(2, 3)
    assert_same(jax.jvp(op, (x,), (x,))[1], 2 * x)
    with pytest.raises(
        NotImplementedError, match=r"::opaque: JAX transposes its tangent by x.*accepted: gradient= of int"
    ):
        jax.grad(lambda x: op(x).sum())(x)


@pytest.mark.parametrize(
    ("name", "returned", "error", "message"),
    [
        ("count", lambda x: (x,), ValueError, r"gradient returned a tuple of 1; accepted: 2, for the inputs \(x, s\)"),
        ("kind", lambda x: x, TypeError, r"gradient returned [\w.]+; accepted: a tuple of 2, for the inputs \(x, s\)"),
        (
            "shape",
            lambda x: (x[:1], x),
            ValueError,
            r"gradient returned an array of shape \(1,\) for x; accepted: \(2,\)",
        ),
        ("dtype", lambda x: (x, x.astype("float16")), TypeError, r"gradient returned float16 for s; accepted: float32"),
        ("value", lambda x: (x, float(x[0])), TypeError, r"gradient asks for the values of an array, which JAX traces"),
    ],
)
def test_gradients_that_do_not_fit_name_the_input(name, returned, error, message):
    op = alone(f"gradient_{name}", lambda x, s: x * s, "x[n], s[n] -> [n]", gradient=lambda g, x, s, y: returned(g))
    x = jnp.ones(2, "float32")
    for wrapped in (lambda f: f, jax.jit):
        with pytest.raises(error, match=rf"^tests_jax_derivatives::gradient_{name}: {message}"):
            wrapped(jax.grad(lambda x: op(x, x).sum()))(x)


@pytest.mark.parametrize(
    ("name", "returned", "error", "message"),
    [
        ("count", lambda x: (x,), ValueError, r"tangent returned a tuple of 1; accepted: 2, for the results"),
        (
            "shape",
            lambda x: (x, x[:1]),
            ValueError,
            r"tangent returned an array of shape \(1,\) for second; accepted: \(2,\)",
        ),
        ("dtype", lambda x: (x > 0, x), TypeError, r"tangent returned bool for first; accepted: float32"),
    ],
)
def test_tangents_that_do_not_fit_name_the_result(name, returned, error, message):
    op = alone(
        f"tangent_{name}", lambda x: (x, x), "x[n] -> first[n], second[n]", tangent=lambda t, i, o: returned(t[0])
    )
    x = jnp.ones(2, "float32")
    with pytest.raises(error, match=rf"^tests_jax_derivatives::tangent_{name}: {message}"):
        jax.jvp(op, (x,), (x,))


def test_tangents_of_inputs_without_one_are_zeros_and_none_of_integers_and_numbers():
    seen = []

    def tangent(tangents, inputs, outputs):
        seen.append([None if t is None else t.shape for t in tangents])
        return tangents[0] + tangents[1]

    op = alone("some", lambda x, y, k, by: x + y, "x[n], y[n], k[n], by -> [n]", tangent=tangent)
    x = jnp.ones(2)
    assert jax.jvp(lambda x: op(x, x * 0 + 1, jnp.arange(2), 2.0), (x,), (x,))[1].tolist() == [1, 1]
    assert seen[-1] == [(2,), (2,), None, None]


def test_a_program_keeps_what_derivatives_read(ops):
    x = draw(3, 5)
    _, linear = jax.linearize(lambda x: ops.softmax(x + 1), x)
    assert_same(linear(x), jax.jvp(lambda x: jax.nn.softmax(x), (x,), (x,))[1])
    one = jax.make_jaxpr(jax.grad(lambda x: (ops.softmax(x) ** 2).sum()))(x)
    (step,) = [eqn for eqn in one.eqns if eqn.primitive.name == "interop_operator_gradient"]
    assert len(step.invars) == 2  # the gradient of the result, and the result: not the input

    def steps(x):
        return jax.lax.scan(lambda c, _: (ops.softmax(c), None), x, length=7)[0][0, 0]

    forward, _ = [eqn for eqn in jax.make_jaxpr(jax.grad(steps))(x).eqns if eqn.primitive.name == "scan"]
    assert [x.aval.shape for x in forward.outvars].count((7, 3, 5)) == 1


def test_sizes_that_nothing_else_says_are_of_what_is_kept():
    op = alone("sizes", lambda x, w: x @ w, "x[m, k], w[k, n] -> [m, n]", gradient=lambda g, x, w, y: (None, x.T @ g))
    x, w = draw(2, 3), draw(3, 4)
    by_x, by_w = jax.grad(lambda x, w: op(x, w).sum(), argnums=(0, 1))(x, w)
    assert by_x.tolist() == jnp.zeros((2, 3)).tolist()
    assert_same(by_w, x.T @ jnp.ones((2, 4)))
    constant = alone(
        "constant", lambda x, w: x @ w, "x[m, k], w[k, n] -> [m, n]", gradient=lambda g, x, w, y: (None, None)
    )
    assert jax.vmap(jax.grad(lambda x, w: constant(x, w).sum()), in_axes=(0, None))(draw(5, 2, 3), w).shape == (5, 2, 3)
