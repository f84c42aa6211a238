"""`interop.matmul` of JAX arrays: one primitive, concrete and under jit. Runs on JAX's default device, GPU or CPU.

What is refused: test_jax_matmul_refusals.py. On which device: test_jax_devices.py.
"""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest
from helpers import forms, libraries
from helpers.jax_products import SHAPES, check_product, draw

import interop
from interop.jax import _matmul, _primitive

jax = pytest.importorskip("jax")
jnp = jax.numpy

LIBRARY = libraries.by_name("jax")


# ---- values ----


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_matmul_values(a, b, x64, dtype):
    (x, a), (y, b) = draw(a, dtype), draw(b, dtype)
    with jax.enable_x64(x64):
        check_product(interop.matmul(a, b), x, y)
        check_product(jax.jit(lambda a, b: interop.matmul(a, b))(a, b), x, y)


def test_matmul_float32_is_exact():
    a = jnp.full((64, 64), 1 + 2.0**-12, "float32")  # TF32 has ten bits of fraction
    assert np.array_equal(interop.matmul(a, jnp.eye(64, dtype="float32")), a)


def test_matmul_of_views_and_reshaped_operands():
    x, a = draw((6, 8))
    for f in (lambda x: x.T, lambda x: x[::2], lambda x: x[:, ::-1], lambda x: x.reshape(2, 3, 8)):
        y = np.ascontiguousarray(np.swapaxes(f(x), -1, -2))
        check_product(interop.matmul(f(a), jnp.asarray(y)), f(x), y)
        check_product(jax.jit(lambda a, y, f=f: interop.matmul(f(a), y))(a, y), f(x), y)


def test_matmul_propagates_special_values():
    a = jnp.array([[np.inf, 1], [np.nan, 1], [0, 1]], "float32")
    c = interop.matmul(a, jnp.array([[0], [1]], "float32"))
    assert np.array_equal(c, np.float32([[np.nan], [np.nan], [1]]), equal_nan=True)


def test_matmul_result_is_not_weakly_typed():
    weak = jnp.broadcast_to(jnp.asarray(2.0), (2, 2))
    assert weak.weak_type
    for a, b in ((weak, jnp.ones((2, 2), "float32")), (weak, weak)):
        for x64 in (False, True):
            with jax.enable_x64(x64):
                c = interop.matmul(a, b)
            assert not c.weak_type
            assert c.dtype == "float32"


@pytest.mark.parametrize("x64", [False, True])
def test_matmul_promotes_mixed_dtypes(x64):
    (x, a), (y, b) = draw((2, 2), "float32"), draw((2, 2), "float64")
    with jax.enable_x64(x64):
        for f in (interop.matmul, jax.jit(lambda a, b: interop.matmul(a, b))):
            c = f(a, b)
            assert c.dtype == np.float64
            assert np.allclose(np.asarray(c), x.astype("float64") @ y, rtol=1e-14, atol=1e-15)


def test_matmul_of_weakly_typed_operands():
    """A weak operand takes the other's dtype, as JAX has it."""
    weak, whole = jnp.full((2, 2), 2.0), jnp.full((2, 2), 3)
    assert weak.weak_type
    for other in (jnp.ones((2, 2), "bfloat16"), jnp.ones((2, 2), "float16"), jnp.ones((2, 2), "int8"), whole):
        for x, y in ((weak, other), (other, weak)):
            c = interop.matmul(x, y)
            assert c.dtype == (x @ y).dtype
            assert (c == x @ y).all()
            assert interop.explain(interop.matmul, x, y).result_dtype == str(c.dtype)
            assert interop.matmul(x, y, alpha=2).dtype == c.dtype
            assert jax.jit(interop.matmul)(x, y).dtype == c.dtype


# ---- under jit ----


def primitives(jaxpr):
    for equation in jaxpr.eqns:
        inner = [value for value in equation.params.values() if hasattr(value, "jaxpr")]
        if not inner:
            yield equation.primitive.name
        for closed in inner:
            yield from primitives(closed.jaxpr)


def test_matmul_is_one_primitive():
    a, b = jnp.ones((2, 3)), jnp.ones((3, 4))
    assert list(primitives(jax.make_jaxpr(interop.matmul)(a, b).jaxpr)) == ["interop_matmul"]
    nested = jax.jit(lambda a, b: jax.jit(interop.matmul)(a, b))
    assert list(primitives(jax.make_jaxpr(nested)(a, b).jaxpr)) == ["interop_matmul"]


def test_matmul_composes_under_jit():
    (x, a), (y, b) = draw((8, 8)), draw((8, 5))

    @jax.jit
    def f(a, b):
        def step(_, c):
            return interop.matmul(a, c) / 8

        return jax.lax.fori_loop(0, 5, step, b)

    expected = y.astype("float64")
    for _ in range(5):
        expected = x.astype("float64") @ expected / 8
    for _ in range(3):
        np.testing.assert_allclose(f(a, b), expected, rtol=1e-4, atol=1e-5)


def test_matmul_of_constants_under_jit():
    (x, a), (y, b) = draw((3, 3)), draw((3, 2))
    check_product(jax.jit(lambda: interop.matmul(a, b))(), x, y)  # both concrete
    check_product(jax.jit(lambda b: interop.matmul(a, b))(b), x, y)  # one traced


def test_matmul_of_donated_operand_under_jit():
    (x, a), (y, b) = draw((16, 16)), draw((16, 16))
    f = jax.jit(lambda a, b: (interop.matmul(a, b), a + 1), donate_argnums=0)
    c, d = f(a, b)
    check_product(c, x, y)
    assert np.array_equal(d, x + 1)


def test_matmul_eager_transforms_and_tools():
    a = jnp.ones((2, 2))
    with jax.disable_jit():
        check_product(interop.matmul(a, a), np.asarray(a), np.asarray(a))
        check_product(jax.jit(interop.matmul)(a, a), np.asarray(a), np.asarray(a))
    assert jax.eval_shape(interop.matmul, a, a).shape == (2, 2)
    jaxpr = jax.make_jaxpr(interop.matmul)(a, a)
    assert np.array_equal(jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, a, a)[0], a @ a)
    # A derivative that does not pass through the product needs no rule.
    gradient = jax.grad(lambda t: t * jax.lax.stop_gradient(interop.matmul(a, a)).sum())(3.0)
    assert gradient == 8


def test_matmul_compiles_once_for_each_shape():
    compiled = _matmul._compiled(("a", "b"), None, None, "float32", None)
    compiled.clear_cache()
    for size in (5, 7):
        for scale in range(4):
            interop.matmul(jnp.full((size, size), float(scale)), jnp.ones((size, size)))
    assert compiled._cache_size() == 2


@pytest.mark.parametrize("dtype", forms.DTYPES)
def test_matmul_of_every_dtype_is_the_same_traced(dtype):
    x, y = forms.draw((2, 3, 5), dtype, 1), forms.draw((5, 4), dtype, 2)
    a, b = LIBRARY.make(x), LIBRARY.make(y)
    for f in (interop.matmul, jax.jit(lambda a, b: interop.matmul(a, b))):
        c = f(a, b)
        assert c.dtype == a.dtype
        forms.check(np.asarray(c), x, y, dtype)


@pytest.mark.parametrize("dtype", ["int8", "int64", "bfloat16", "float32", "float64", "complex64"])
def test_matmul_of_all_terms_is_the_same_traced(dtype):
    x, y = forms.draw((3, 5), dtype, 1), forms.draw((5, 4), dtype, 2)
    c, bias = forms.draw((3, 4), dtype, 3), forms.draw((4,), dtype, 4)
    arrays = [LIBRARY.make(z) for z in (x, y, c, bias)]
    epilogue = "gelu" if dtype in forms.FLOATS else None

    def product(a, b, c, bias):
        return interop.matmul(a, b, c=c, bias=bias, alpha=3, beta=2, epilogue=epilogue)

    for f in (product, jax.jit(product)):
        got = f(*arrays)
        assert got.dtype == arrays[0].dtype
        forms.check(np.asarray(got), x, y, dtype, c=c, bias=bias, alpha=3, beta=2, epilogue=epilogue)


def test_matmul_compiles_nothing_for_another_factor():
    a = jnp.ones((6, 6))
    compiled = _matmul._compiled(("a", "b", "c", "alpha", "beta"), None, None, "float32", None)
    compiled.clear_cache()
    for factor in (2, 3.5, np.float32(4), jnp.float32(5)):
        assert (interop.matmul(a, a, c=a, alpha=factor, beta=factor) == 7 * factor).all()
    assert compiled._cache_size() <= 2  # a scalar of JAX's is another kind of operand than one of NumPy's


def test_matmul_factors_may_be_traced():
    a = jnp.ones((2, 2))
    scaled = jax.jit(lambda a, alpha: interop.matmul(a, a, alpha=alpha))
    assert (scaled(a, 1.5) == 3).all()
    nan = jnp.full((2, 2), jnp.nan)
    assert (scaled(nan, 0.0) == 0).all()


def test_matmul_from_many_threads():
    x, a = draw((64, 64))
    results = [None] * 8

    def work(i):
        for _ in range(20):
            results[i] = interop.matmul(a, a)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for c in results:
        check_product(c, x, x)


# ---- what it is made of ----


def test_import_starts_no_backend():
    code = "import interop.jax, jax; jax.config.update('jax_num_cpu_devices', 2)"  # an error once a backend is up
    subprocess.run([sys.executable, "-c", code], check=True)


def lowered_for_cuda(**options):
    a, b = jax.ShapeDtypeStruct((2, 3), jnp.float32), jax.ShapeDtypeStruct((4, 3, 5), jnp.float32)
    f = jax.jit(lambda a, b: interop.matmul(a, b, **options))
    return f.trace(a, b).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(
    ("options", "backend", "precision"),
    [
        ({}, "automatic", "exact"),
        ({"backend": "tiled"}, "tiled", "exact"),
        ({"backend": "cublas", "precision": "tf32"}, "cublas", "tf32"),
        ({"precision": "tf32x3"}, "automatic", "tf32x3"),
    ],
)
def test_matmul_lowers_to_one_ffi_call_on_cuda(monkeypatch, options, backend, precision):
    monkeypatch.setattr(_primitive, "_targets", {"interop_matmul": None})  # also in a build without CUDA
    text = lowered_for_cuda(**options)
    assert text.count("custom_call") == 1
    assert "@interop_matmul" in text
    assert f'backend = "{backend}"' in text
    assert f'precision = "{precision}"' in text
    assert "-> (tensor<4x2x5xf32>" in text  # the program's result
    assert "dot" not in text


@pytest.mark.parametrize("workspace", [0, 1000])
def test_matmul_on_cuda_asks_xla_for_the_workspace(monkeypatch, workspace):
    monkeypatch.setattr(_primitive, "_targets", {"interop_matmul": None})  # also in a build without CUDA
    monkeypatch.setattr(interop._core, "matmul_workspace", lambda *_: workspace)
    text = lowered_for_cuda()
    assert text.count("custom_call") == 1
    assert ("tensor<1256xui8>" in text) == bool(workspace)  # 256 more, to align it
    assert "-> (tensor<4x2x5xf32> {jax.result_info" in text  # the program's result is the product alone


def test_what_cublas_cannot_take_is_said_where_a_program_is_lowered(monkeypatch):
    if interop._core.build_info()["cuda"] == 0:
        pytest.skip("host-only build: no kernels to choose among")
    monkeypatch.setattr(_primitive, "_targets", {"interop_matmul": None})

    def lower(shape):
        x, y = jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct((7, 3, 5), jnp.float32)
        traced = jax.jit(lambda a, b: interop.matmul(a, b, backend="cublas")).trace(x, y)
        return traced.lower(lowering_platforms=("cuda",)).as_text()

    assert "@interop_matmul" in lower((7, 2, 3))
    message = 'interop.matmul: backend="cublas" cannot take this product: its batch does not collapse to one dimension'
    with pytest.raises(ValueError, match=f"^{message}; use backend="):
        lower((4, 1, 2, 3))


def test_matmul_on_cuda_needs_the_handlers(monkeypatch):
    monkeypatch.setattr(_primitive, "_targets", {})
    with pytest.raises(interop.CudaError, match="no CUDA kernels for JAX.*built without CUDA or without XLA's headers"):
        lowered_for_cuda()
