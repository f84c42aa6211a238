"""Derivatives and batches of products of JAX arrays, beside JAX's own product and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.jax_products import SHAPES

import interop
from interop import _core

jax = pytest.importorskip("jax")
jnp = jax.numpy

from jax.test_util import check_grads  # noqa: E402 - after the check that there is JAX

EPILOGUES = (None, "relu", "gelu", "gelu_tanh")


@pytest.fixture
def device(place):
    return jax.devices(place)[0]


@pytest.fixture
def wide():
    with jax.enable_x64(True):
        yield


def draw(device, *shape, dtype="float64", seed=0):
    rng = np.random.default_rng(seed + sum(shape))
    x = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        x = x + 1j * rng.standard_normal(shape)
    return jax.device_put(x.astype(dtype), device)


def as_jax(f):
    """Take NumPy arrays, too, with which derivatives are found by differences."""
    return lambda *operands: f(*map(jnp.asarray, operands))


# ---- derivatives ----


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize(("a", "b"), [shapes for shapes in SHAPES if math.prod(shapes[0]) < 100])
def test_derivatives_of_two_orders_by_differences(wide, device, a, b, dtype):
    operands = draw(device, *a, dtype=dtype), draw(device, *b, dtype=dtype, seed=1)
    check_grads(as_jax(interop.matmul), operands, order=2, modes=["fwd", "rev"], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_derivatives_by_every_term(wide, device, dtype, epilogue):
    if epilogue and dtype == "complex128":
        pytest.skip("epilogues are of real numbers")
    shapes = (3, 4), (4, 2), (3, 2), (2,), (), ()
    terms = [draw(device, *shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes)]

    def call(a, b, c, bias, alpha, beta):
        return interop.matmul(a, b, c=c, bias=bias, alpha=alpha, beta=beta, epilogue=epilogue)

    check_grads(as_jax(call), terms, order=2, modes=["fwd", "rev"], atol=1e-3, rtol=1e-3)


def test_a_scale_of_float8_operands_has_a_derivative_and_they_have_none(device):
    a = jax.device_put(jnp.full((16, 16), 0.5, "float8_e4m3fn"), device)

    def total(scale, a):
        return interop.matmul(a, a, dtype="float32", scale_a=scale).sum()

    assert jax.grad(total)(jax.device_put(jnp.float32(2), device), a) == 16**3 / 4
    message = r"^interop.matmul: a is float8_e4m3fn, and products are not differentiable by float8 operands; accepted: "
    for transform in (lambda: jax.grad(total, argnums=1)(2.0, a), lambda: jax.jvp(lambda x: total(2.0, x), (a,), (a,))):
        with pytest.raises(TypeError, match=message):
            transform()


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: jax.jacfwd(f, argnums=(0, 1)),
        lambda f: jax.jacrev(f, argnums=(0, 1)),
        lambda f: jax.hessian(lambda a, b: (f(a, b) ** 3).sum(), argnums=(0, 1)),
        lambda f: jax.grad(lambda a, b: jnp.sin(jax.grad(lambda b: f(a, b).sum())(b)).sum()),
        lambda f: jax.vmap(jax.grad(lambda a, b: f(a, b).sum(), argnums=(0, 1)), in_axes=(0, None)),
        lambda f: jax.grad(lambda a, b: jax.vmap(f, in_axes=(1, None))(a, b.T).sum(), argnums=(0, 1)),
        lambda f: jax.grad(lambda a, b: jax.checkpoint(lambda a, b: jnp.sin(f(jnp.cos(f(a, b)), a)))(a, b).sum()),
        lambda f: jax.grad(lambda a, b: jax.lax.scan(lambda x, _: (f(x, b), None), a, None, length=3)[0].sum()),
        lambda f: lambda a, b: jax.linear_transpose(lambda x: f(x, b), a)(f(a, b)),
        lambda f: lambda a, b: jax.jvp(jax.grad(lambda a, b: (f(a, b) ** 2).sum()), (a, b), (b, a)),
        lambda f: lambda a, b: jax.linearize(f, a, b)[1](b, a),
    ],
)
def test_transforms_and_their_compositions_are_those_of_jax(wide, device, transform):
    a, b = draw(device, 3, 3), draw(device, 3, 3, seed=1)
    expected = jax.tree.leaves(transform(jnp.matmul)(a, b))
    for wrap in (lambda f: f, jax.jit):
        found = jax.tree.leaves(wrap(transform(interop.matmul))(a, b))
        for got, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-10)


def test_custom_derivatives_around_and_inside(wide, device):
    @jax.custom_jvp
    def tripled(a, b):
        return interop.matmul(a, b)

    @tripled.defjvp
    def rule(primals, tangents):
        out, tangent = jax.jvp(interop.matmul, primals, tangents)
        return out, 3 * tangent

    @jax.custom_vjp
    def doubled(a):
        return a * 1

    doubled.defvjp(lambda a: (a, None), lambda _, g: (2 * g,))
    a, b = draw(device, 3, 4), draw(device, 4, 2)
    plain = jax.grad(lambda a: interop.matmul(a, b).sum())(a)
    np.testing.assert_allclose(jax.grad(lambda a: tripled(a, b).sum())(a), 3 * plain)
    np.testing.assert_allclose(jax.grad(lambda a: doubled(interop.matmul(doubled(a), b)).sum())(a), 4 * plain)


# ---- batches ----


@pytest.mark.parametrize(
    ("a", "b", "axes"),
    [
        ((7, 3, 4), (7, 4, 2), (0, 0)),
        ((7, 3, 4), (4, 2), (0, None)),
        ((3, 4), (4, 2, 7), (None, 2)),
        ((3, 7, 4), (4, 7, 2), (1, 1)),
        ((7, 4), (7, 4), (0, 0)),
        ((4, 7), (4, 2), (1, None)),
        ((4,), (4, 7), (None, 1)),
        ((5, 1, 3, 4), (6, 4, 2), (0, 0)[:1] + (None,)),
        ((5, 3, 4), (2, 5, 4, 2), (0, 1)),
        ((3, 4), (6, 7, 4, 2), (None, 1)),
    ],
)
def test_batches_are_those_of_jax(device, a, b, axes):
    x, y = draw(device, *a, dtype="float32"), draw(device, *b, dtype="float32", seed=1)
    expected = jax.vmap(lambda a, b: jnp.matmul(a, b, precision="highest"), in_axes=axes)(x, y)
    for wrap in (lambda f: f, jax.jit):
        got = wrap(jax.vmap(lambda a, b: interop.matmul(a, b), in_axes=axes))(x, y)
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    twice = jax.vmap(jax.vmap(interop.matmul, in_axes=axes), in_axes=(None, 0))(x, jnp.stack([y, 2 * y]))
    np.testing.assert_allclose(twice[1], 2 * expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "int32", "bool"])
def test_batches_of_integers_are_exact(device, dtype):
    x = np.random.default_rng(0).integers(0, 5, (6, 8, 8)).astype(dtype)
    got = jax.vmap(interop.matmul)(*(jax.device_put(x, device),) * 2)
    assert got.dtype == dtype
    assert np.array_equal(np.asarray(got), np.matmul(x, x))


def test_a_batch_of_factors(device):
    a, alphas = draw(device, 3, 3, dtype="float32"), draw(device, 4, dtype="float32")
    got = jax.vmap(lambda alpha: interop.matmul(a, a, alpha=alpha))(alphas)
    np.testing.assert_allclose(got, np.asarray(alphas)[:, None, None] * np.asarray(a @ a), rtol=1e-4, atol=1e-5)


# ---- dtypes ----


def test_gradients_have_the_dtypes_of_the_operands(device):
    a, b = draw(device, 2, 2, dtype="bfloat16"), draw(device, 2, 2, dtype="bfloat16")
    wide = jax.grad(lambda a, b: interop.matmul(a, b, dtype="float32").sum(), argnums=(0, 1))(a, b)
    mixed = jax.grad(lambda a, b: interop.matmul(a, b).real.sum(), argnums=(0, 1))
    assert [x.dtype.name for x in wide] == ["bfloat16", "bfloat16"]
    operands = draw(device, 2, 2, dtype="float32"), draw(device, 2, 2, dtype="complex64")
    assert [x.dtype.name for x in mixed(*operands)] == ["float32", "complex64"]


@pytest.mark.parametrize("shared", [0, 1])
def test_the_gradient_of_a_shared_operand_is_added_up_in_float32(device, shared):
    """In bfloat16, 512 terms of 1 would add up to 256."""
    stack, one = jnp.ones((512, 2, 2), "bfloat16"), jnp.ones((2, 2), "bfloat16")
    operands = [jax.device_put(x, device) for x in ((one, stack) if shared == 0 else (stack, one))]
    gradient = jax.grad(lambda a, b: interop.matmul(a, b).astype("float32").sum(), argnums=shared)(*operands)
    assert gradient.dtype == "bfloat16"
    assert np.array_equal(np.asarray(gradient).astype("float32"), np.full((2, 2), 1024))


def test_wide_arrays_stay_so_without_the_mode_for_them(device):
    with jax.enable_x64(True):
        a = jax.device_put(np.full((3, 2, 2), 1 + 2.0**-40), device)
    assert jax.vmap(interop.matmul)(a, a).dtype == "float64"
    (gradient,) = jax.vjp(lambda x: interop.matmul(x, x), a)[1](a)
    assert gradient.dtype == "float64"
    assert float(gradient[0, 0, 0]) != 4  # as float32 would have it


# ---- where derivatives bend ----


def test_the_derivative_by_a_factor_of_0_is_not_hidden(wide, device):
    a, b, c = draw(device, 3, 4), draw(device, 4, 2), draw(device, 3, 2)
    by_alpha = jax.grad(lambda alpha: interop.matmul(a, b, alpha=alpha).sum())
    by_beta = jax.grad(lambda beta: interop.matmul(a, b, c=c, beta=beta).sum())
    zero = jax.device_put(jnp.asarray(0.0), device)
    np.testing.assert_allclose(by_alpha(zero), (a @ b).sum(), rtol=1e-12)
    np.testing.assert_allclose(by_beta(zero), c.sum(), rtol=1e-12)
    mixed = jax.grad(lambda alpha: jax.grad(lambda a: interop.matmul(a, b, alpha=alpha).sum())(a).sum())
    np.testing.assert_allclose(mixed(zero), 3 * b.sum(), rtol=1e-12)


def test_a_factor_of_0_takes_infinities_and_their_tangents(device):
    a = jax.device_put(jnp.full((2, 2), jnp.inf), device)
    out, tangent = jax.jvp(lambda a: interop.matmul(a, a, alpha=0.0), (a,), (jnp.ones_like(a),))
    assert np.array_equal(np.asarray(out), np.zeros((2, 2)))
    assert np.array_equal(np.asarray(tangent), np.zeros((2, 2)))
    by_c = jax.grad(lambda c: interop.matmul(a, a, c=c, alpha=0.0).sum())(jnp.ones_like(a))
    assert np.array_equal(np.asarray(by_c), np.ones((2, 2)))


def slopes(epilogue, values, device):
    zero = jax.device_put(jnp.zeros((1, 1)), device)

    def f(x):
        return interop.matmul(zero, zero, c=x.reshape(1, 1), epilogue=epilogue)[0, 0]

    points = [jax.device_put(jnp.float32(x), device) for x in values]
    return [float(jax.grad(f)(x)) for x in points], [float(jax.grad(jax.grad(f))(x)) for x in points]


def test_relu_has_no_slope_at_0(device):
    assert slopes("relu", [-1, 0, 2], device) == ([0, 0, 1], [0, 0, 0])


@pytest.mark.parametrize("epilogue", ["gelu", "gelu_tanh"])
def test_the_slope_of_gelu_is_finite_everywhere(device, epilogue):
    values = [1e20, -1e20, 40, -40, 5, -5, 0.5, -0.5, 0]

    def exact(x):  # float64, by differences of what is smooth
        if epilogue == "gelu":
            first = 0.5 * math.erfc(-x / math.sqrt(2)) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
            return first, math.exp(-x * x / 2) / math.sqrt(2 * math.pi) * (2 - x * x)
        k = math.sqrt(2 / math.pi)
        t, dt, ddt = k * (x + 0.044715 * x**3), k * (1 + 0.134145 * x * x), k * 0.26829 * x
        th = math.tanh(t)
        sech = 1 - th * th
        first = 0.5 * (1 + th) + 0.5 * x * sech * dt
        return first, sech * dt + 0.5 * x * (-2 * th * sech * dt * dt + sech * ddt)

    first, second = slopes(epilogue, values, device)
    expected = [exact(max(min(x, 30), -30)) for x in values]
    np.testing.assert_allclose(first, [x for x, _ in expected], rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(second, [x for _, x in expected], rtol=1e-4, atol=5e-6)


def test_debug_nans_looks_into_gradients(device):
    a = jax.device_put(jnp.ones((2, 2)), device)
    with jax.debug_nans(True):
        jax.grad(lambda a: interop.matmul(a, a, epilogue="gelu").sum())(a)
        with pytest.raises(FloatingPointError):
            jax.grad(lambda a: interop.matmul(a, jnp.full((2, 2), jnp.nan)).sum())(a)


# ---- what is compiled ----


@pytest.mark.skipif(not _core.build_info()["jax_ffi"], reason="this build has no kernels for JAX")
@pytest.mark.parametrize(
    ("transform", "calls"),
    [
        (lambda: lambda a, b: interop.matmul(a, b), 1),
        (lambda: jax.grad(lambda a, b: (interop.matmul(a, b) ** 2).sum(), argnums=(0, 1)), 3),
        (lambda: jax.vmap(interop.matmul, in_axes=(0, None)), 1),
        (lambda: jax.vmap(jax.grad(lambda a, b: (interop.matmul(a, b) ** 2).sum(), argnums=(0, 1))), 3),
    ],
)
def test_on_cuda_every_product_is_ours(transform, calls):
    shape = (5, 8, 8)
    operand = jax.ShapeDtypeStruct(shape, "float32")
    text = jax.jit(transform()).trace(operand, operand).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("custom_call @interop_matmul(") == calls
    assert "dot_general" not in text
    assert "transpose" not in text.replace("transpose_a", "").replace("transpose_b", "")  # no operand is copied
    assert "callback" not in text


@pytest.mark.gpu
def test_the_compiled_gradient_on_a_gpu_has_our_calls_alone(cuda_device):
    a = jax.device_put(jnp.ones((64, 64)), jax.devices("cuda")[0])
    f = jax.jit(jax.grad(lambda a, b: (interop.matmul(a, b) ** 2).sum(), argnums=(0, 1)))
    text = f.lower(a, a).compile().as_text()
    assert text.count('custom_call_target="interop_matmul"') == 3
    assert "cublas" not in text
    assert " dot(" not in text
    assert "callback" not in text


# ---- export ----


@pytest.mark.skipif(not _core.build_info()["jax_ffi"], reason="this build has no kernels for JAX")
def test_a_product_is_exported_for_a_gpu_where_its_call_is_named():
    import interop.jax

    f = jax.jit(jax.grad(lambda a: interop.matmul(a, a).sum()))
    a = jax.ShapeDtypeStruct((4, 4), "float32")
    exported = jax.export.export(f, platforms=("cuda",), disabled_checks=interop.jax.disabled_checks())(a)
    assert exported.platforms == ("cuda",)
    with pytest.raises(ValueError, match="interop_matmul"):
        jax.export.export(f, platforms=("cuda",))(a)


def test_an_exported_gradient_is_the_gradient(device):
    f = jax.jit(jax.grad(lambda a: (interop.matmul(a, a) ** 2).sum()))
    a = draw(device, 4, 4, dtype="float32")
    platform = "cuda" if device.platform == "gpu" else "cpu"
    exported = jax.export.export(f, platforms=(platform,), disabled_checks=interop.jax.disabled_checks())(a)
    found = jax.export.deserialize(exported.serialize()).call(a)
    np.testing.assert_allclose(found, f(a), rtol=1e-6)
