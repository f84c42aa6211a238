"""Derivatives of the elementwise functions and of expressions of JAX arrays, by JAX, and right at the corners."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from helpers import elements, machine

import interop
from interop._operations.table import COMPARISONS, FUNCTIONS, OPERATIONS

jax = pytest.importorskip("jax")
jnp = jax.numpy

from jax.test_util import check_grads  # noqa: E402 - once it is known that there is JAX

SMOOTH = [name for name in FUNCTIONS if name not in COMPARISONS]
WIDE = [(name, dtype) for name in SMOOTH for dtype in ("float64", "complex128") if elements.serves(name, dtype)]
WRAPS = pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["bare", "jit"])
INF, NAN = np.inf, np.nan


@pytest.fixture(autouse=True)
def _where(place):
    machine.need("jax")


def ordinary(shape, dtype, seed):
    """Numbers far from zero, from each other, and from where a floor jumps."""
    rng = np.random.default_rng(seed)
    values = rng.uniform(1.1, 1.4, shape) + 2 * seed
    if dtype.startswith("complex"):
        values = values + 1j * rng.uniform(0.3, 0.6, shape)
    return jnp.asarray(values.astype(elements.dtype_of(dtype)))


def operands_of(name, dtype):
    """Operands that broadcast each other."""
    return [ordinary(shape, dtype, k) for k, shape in enumerate([(2, 1, 3), (2, 1)][: OPERATIONS[name].arity])]


def close(x, y, tolerance=1e-12):
    np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=tolerance, atol=tolerance)


# ---- what numbers say ----


@WRAPS
@pytest.mark.parametrize(("name", "dtype"), WIDE)
def test_derivatives_to_order_2(wrap, name, dtype):
    with jax.enable_x64(True):
        check_grads(wrap(getattr(interop, name)), operands_of(name, dtype), order=2, modes=["fwd", "rev"])


EXPRESSIONS = {
    "x * y + sin(x) / y": ("float64", "complex128"),
    "x ** y - abs(x) ** 2": ("float64", "complex128"),
    "where(x > y, exp(x), tanh(y)) + x % y": ("float64",),
    "real(x) * imag(y) + abs(conj(x) - y)": ("complex128",),
    "hypot(x, y) + atan2(x, y) + x // y + maximum(x, y)": ("float64",),
}


@WRAPS
@pytest.mark.parametrize(("text", "dtype"), [(text, dtype) for text, all_ in EXPRESSIONS.items() for dtype in all_])
def test_derivatives_of_expressions_to_order_2(wrap, text, dtype):
    if "sin" in text and dtype == "complex128":
        text = text.replace("sin(x)", "x")  # of reals alone
    with jax.enable_x64(True):
        check_grads(wrap(interop.elementwise(text)), operands_of("add", dtype), order=2, modes=["fwd", "rev"])


OF_JNP = {"abs": jnp.abs, "negative": jnp.negative, "pow": jnp.power}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"])
@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_of_narrow_dtypes(name, dtype):
    """In the dtype of each operand, as jax.numpy's of the same numbers in double precision."""
    if not elements.serves(name, dtype):
        return
    narrow = operands_of(name, dtype)

    def gradients(f, *operands):
        value, pull = jax.vjp(f, *operands)
        return pull(jnp.ones_like(value))

    ours = gradients(getattr(interop, name), *narrow)
    assert [x.dtype for x in ours] == [x.dtype for x in narrow]
    with jax.enable_x64(True):
        wide = "complex128" if dtype == "complex64" else "float64"
        expected = gradients(OF_JNP.get(name) or getattr(jnp, name), *(x.astype(wide) for x in narrow))
    # A few roundings, and of those that are broadcast a sum of three.
    tolerance = {"float16": 2**-10, "bfloat16": 2**-7}.get(dtype, 2**-23) * 8
    for x, y in zip(ours, expected, strict=True):
        np.testing.assert_allclose(np.asarray(x).astype(wide), y, rtol=tolerance)


# ---- corners ----

CORNERS = {
    "maximum": [((1, 1), (0.5, 0.5)), ((-0.0, 0.0), (0.5, 0.5)), ((2, 1), (1, 0)), ((INF, INF), (0.5, 0.5))],
    "minimum": [((1, 1), (0.5, 0.5)), ((2, 1), (0, 1)), ((-INF, 0), (1, 0))],
    "abs": [((0,), (0,)), ((-0.0,), (0,)), ((-2,), (-1,)), ((INF,), (1,))],
    "floor_divide": [((7, 2), (0, 0)), ((6, 2), (0, 0)), ((1, 0), (0, 0)), ((0, 0), (0, 0)), ((INF, 1), (0, 0))],
    "remainder": [
        *(((7, 2), (1, -3)), ((-7, 2), (1, 4)), ((6, 2), (1, -3)), ((0, 2), (1, 0)), ((-1, 3), (1, 1))),
        *(((-6, 2), (1, 3)), ((7, -2), (1, 4)), ((1, INF), (1, 0)), ((1, 0), (1, -INF))),
    ],
    "pow": [
        *(((0, 0), (0, 0)), ((0, 1), (1, 0)), ((0, 2), (0, 0)), ((0, 0.5), (INF, 0)), ((0, -1), (-INF, -INF))),
        *(((2, 0), (0, np.log(2))), ((NAN, 0), (0, NAN)), ((-2, 3), (12, NAN)), ((-2, 0), (0, NAN))),
    ],
    "divide": [((1, 0), (INF, -INF)), ((0, 2), (0.5, 0))],
}


@WRAPS
@pytest.mark.parametrize(("name", "case"), [(name, case) for name, cases in CORNERS.items() for case in cases])
def test_corners(wrap, name, case):
    """Forward and back; by each operand alone, for which the derivative by the other one does not count."""
    f, (at, expected) = getattr(interop, name), case
    operands = [jnp.float32(x) for x in at]
    for place, derivative in enumerate(expected):
        basis = [jnp.float32(k == place) for k in range(len(at))]
        alone = functools.partial(lambda place, x: f(*operands[:place], x, *operands[place + 1 :]), place)
        close(jax.grad(wrap(f), argnums=place)(*operands), derivative, 1e-6)
        close(jax.jvp(wrap(alone), operands[place : place + 1], [jnp.float32(1)])[1], derivative, 1e-6)
        if np.isfinite(expected).all():
            close(jax.jvp(wrap(f), operands, basis)[1], derivative, 1e-6)


@WRAPS
def test_second_derivatives_of_powers_at_corners(wrap):
    second = jax.grad(jax.grad(wrap(interop.pow)))
    for base, exponent, expected in ((0, 0, 0), (0, 1, 0), (0, 2, 2), (0, 3, 0), (3, 2, 2), (-3, 2, 2)):
        assert second(jnp.float32(base), jnp.float32(exponent)) == expected
    hessian = jax.hessian(wrap(interop.pow), argnums=(0, 1))
    close(hessian(jnp.float32(2), jnp.float32(0)), [[0, 0.5], [0.5, np.log(2) ** 2]], 1e-6)


@WRAPS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_where_zero_has_no_derivative(wrap, dtype):
    """Where the divisor is zero the result is constant."""
    f = wrap(lambda a, b: interop.divide(a, b, where_zero=7).sum())
    a, b = jnp.asarray([1, 0, 3], dtype), jnp.asarray([0, 0, 2], dtype)
    if dtype == "complex64":
        f = functools.partial(lambda f, a, b: f(a, b).real, f)
    by_a, by_b = jax.grad(f, argnums=(0, 1))(a, b)
    assert by_a.tolist() == [0, 0, 0.5]
    assert by_b.tolist() == [0, 0, -0.75]
    if dtype == "float32":
        hessian = np.asarray(jax.hessian(f, argnums=1)(a, b))
        assert hessian.tolist() == np.diag([0, 0, 0.75]).tolist()


def test_where_hides_no_infinite_derivative():
    """As in JAX: the gradient of what is not chosen is 0 times infinity."""
    assert np.isnan(jax.grad(interop.elementwise("where(x > 0, sqrt(x), 0)"))(0.0))
    assert jax.grad(interop.elementwise("where(x > 0, sqrt(where(x > 0, x, 1)), 0)"))(0.0) == 0


def test_complex_gradients_are_conjugated_as_jax_has_it():
    z = jnp.asarray([3 + 4j, 0, -2j])
    for f, own in (
        (interop.abs, jnp.abs),
        (lambda z: interop.multiply(z, z).real, lambda z: (z * z).real),
        (interop.elementwise("real(z * conj(z)) + imag(z)"), lambda z: (z * z.conj()).real + z.imag),
    ):
        ours, theirs = (jax.grad(lambda z, call=call: call(z).sum())(z) for call in (f, own))
        close(ours, theirs, 1e-6)


# ---- comparisons, integers ----


@WRAPS
def test_comparisons_inside_a_gradient(wrap):
    def f(x):
        return jnp.where(interop.less(x, 2), interop.multiply(x, x), x).sum() + interop.equal(x, 1).sum()

    assert jax.grad(wrap(f))(jnp.asarray([1.0, 2.0, 3.0])).tolist() == [2, 1, 1]
    assert jax.jvp(wrap(f), (jnp.ones(2),), (jnp.ones(2),))[1] == 4


@WRAPS
def test_integers_beside_what_is_differentiated(wrap):
    whole, x = jnp.asarray([2, 0, 3]), jnp.asarray([1.5, 0.0, -2.0])

    def f(x):
        powers = interop.pow(x, whole) + interop.floor_divide(whole, 2) + interop.pow(whole, whole)
        return (powers + interop.divide(whole, 2) * interop.elementwise("x * (n // 2) + n % 2")(x, whole)).sum()

    close(jax.grad(wrap(f))(x), [3 + 1, 0, 12 + 1.5], 1e-6)
    dtype = jax.dtypes.float0
    assert jax.grad(wrap(lambda n: interop.multiply(n, x).sum()), allow_int=True)(whole).dtype == dtype


# ---- 64 bits ----


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("name", "dtype"), WIDE)
def test_64_bits_are_kept_in_derivatives(name, dtype, wide):
    """In the x64 mode and outside it, where JAX's own arithmetic would narrow."""
    f = getattr(interop, name)
    with jax.enable_x64(True):
        operands = operands_of(name, dtype)
        seed = jnp.ones_like(f(*operands))
    exact = operands_of(name, dtype.replace("128", "64").replace("float64", "float32"))
    for call in (f, jax.jit(f)):
        with jax.enable_x64(wide):
            gradients = jax.vjp(call, *operands)[1](seed)
            mapped = jax.vmap(call)(*operands)
            (_, again), pull = jax.vjp(lambda *x, call=call: jax.jvp(call, x, x), *operands)
            second = pull((seed, seed))
        for x in (*gradients, *second):
            assert x.dtype == dtype
        assert again.dtype == mapped.dtype == seed.dtype
    own = jax.vjp(f, *exact)[1](jnp.ones_like(f(*exact)))
    for x, y in zip(gradients, own, strict=True):
        close(x, y, 1e-5)


@pytest.mark.parametrize("wide", [False, True])
def test_64_bits_are_kept_in_derivatives_of_expressions(wide):
    with jax.enable_x64(True):
        x, z = jnp.asarray(np.array([0.1, 0.2])), jnp.asarray(np.array([0.1 + 1j]))
    with jax.enable_x64(wide):
        f = interop.elementwise("x * a + sin(x) ** 3")
        (gradient,) = jax.vjp(lambda x: f(x, 0.1), x)[1](x)
        (of_complex,) = jax.vjp(interop.elementwise("abs(z) + real(z) * 0.1"), z)[1](x[:1])
        (mapped,) = jax.vmap(interop.elementwise("x * 0.1"))(x[:1])
    values = np.asarray(x)
    close(gradient, values * (0.1 + 3 * np.sin(values) ** 2 * np.cos(values)))
    close(of_complex, 0.1 * (np.conj(np.asarray(z)) / abs(np.asarray(z)) + 0.1))
    assert mapped.dtype == "float64"
