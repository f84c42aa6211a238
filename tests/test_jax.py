"""`interop.matmul` of JAX arrays: one primitive, concrete and under jit. Runs on JAX's default device, GPU or CPU."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading

import numpy as np
import pytest
from helpers import forms, libraries, machine

import interop

jax = pytest.importorskip("jax")
jax.config.update("jax_num_cpu_devices", 4)  # before JAX starts: what several devices do is tested on the CPU

import jax.numpy as jnp  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from interop.jax import _calls, _matmul  # noqa: E402

LIBRARY = libraries.by_name("jax")

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
TOLERANCE = {"float32": 1e-5, "float64": 1e-13}  # relative to the sum of absolute products


@pytest.fixture
def cpus():
    devices = jax.devices("cpu")
    assert len(devices) >= 4
    return devices


def draw(shape, dtype="float32", device=None):
    """Random values, the same for the same shape, as NumPy and as JAX array."""
    x = np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape).astype(dtype)
    with jax.enable_x64(True):
        return x, jax.device_put(x, device)


def check_product(c, x, y):
    exact = np.matmul(x.astype("float64"), y.astype("float64"))
    scale = np.matmul(abs(x.astype("float64")), abs(y.astype("float64")))
    assert isinstance(c, jax.Array)
    assert c.shape == exact.shape
    assert c.dtype == x.dtype
    assert np.all(abs(np.asarray(c) - exact) <= TOLERANCE[x.dtype.name] * scale)


# ---- values ----


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_matmul_values(a, b, x64, dtype):
    (x, a), (y, b) = draw(a, dtype), draw(b, dtype)
    with jax.enable_x64(x64):
        check_product(interop.matmul(a, b), x, y)
        check_product(jax.jit(lambda a, b: interop.matmul(a, b))(a, b), x, y)


def test_matmul_stays_on_its_device(cpus):
    for device in [*cpus, jax.devices()[0]]:
        (x, a), (y, b) = draw((2, 3), device=device), draw((3, 4), device=device)
        c = interop.matmul(a, b)
        assert c.devices() == {device}
        check_product(c, x, y)


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


@pytest.mark.parametrize("name", ["out", "aux"])
def test_matmul_refuses_to_write_to_jax_arrays(name):
    a = jnp.ones((2, 2))
    with pytest.raises(TypeError, match=f"{name}= cannot be used with JAX arrays, which are immutable; use the result"):
        interop.matmul(a, a, epilogue="relu", **{name: np.ones((2, 2), "float32")})


def test_matmul_refuses_terms_that_do_not_fit():
    a = jnp.ones((2, 2))
    for options, exception, match in (
        ({"c": jnp.ones(3)}, ValueError, r"c has shape \(3,\); accepted: one that broadcasts"),
        ({"bias": a}, ValueError, r"bias has shape \(2, 2\); accepted: a row"),
        ({"epilogue": "tanh"}, ValueError, "epilogue is 'tanh'"),
        ({"beta": 2}, ValueError, "beta is given, and there is no c"),
        ({"scale_a": 2.0}, ValueError, "scale_a is given, and the operands are float32"),
        ({"dtype": "int8"}, TypeError, "dtype is int8, and the operands are float32"),
        ({"alpha": 1j}, TypeError, "alpha is 1j .* accepted: a real number"),
    ):
        with pytest.raises(exception, match=match):
            interop.matmul(a, a, **options)
        with pytest.raises(exception, match=match):
            jax.jit(lambda a, options=options: interop.matmul(a, a, **options))(a)


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
    monkeypatch.setattr(_calls, "_targets", {"interop_matmul": None})  # also in a build without CUDA
    text = lowered_for_cuda(**options)
    assert text.count("custom_call") == 1
    assert "@interop_matmul" in text
    assert f'backend = "{backend}"' in text
    assert f'precision = "{precision}"' in text
    assert "-> (tensor<4x2x5xf32>" in text  # the program's result
    assert "dot" not in text


@pytest.mark.parametrize("workspace", [0, 1000])
def test_matmul_on_cuda_asks_xla_for_the_workspace(monkeypatch, workspace):
    monkeypatch.setattr(_calls, "_targets", {"interop_matmul": None})  # also in a build without CUDA
    monkeypatch.setattr(interop._core, "matmul_workspace", lambda *_: workspace)
    text = lowered_for_cuda()
    assert text.count("custom_call") == 1
    assert ("tensor<1256xui8>" in text) == bool(workspace)  # 256 more, to align it
    assert "-> (tensor<4x2x5xf32> {jax.result_info" in text  # the program's result is the product alone


def test_what_cublas_cannot_take_is_said_where_a_program_is_lowered(monkeypatch):
    if interop._core.build_info()["cuda"] == 0:
        pytest.skip("host-only build: no kernels to choose among")
    monkeypatch.setattr(_calls, "_targets", {"interop_matmul": None})

    def lower(shape):
        x, y = jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct((7, 3, 5), jnp.float32)
        traced = jax.jit(lambda a, b: interop.matmul(a, b, backend="cublas")).trace(x, y)
        return traced.lower(lowering_platforms=("cuda",)).as_text()

    assert "@interop_matmul" in lower((7, 2, 3))
    message = 'interop.matmul: backend="cublas" cannot take this product: its batch does not collapse to one dimension'
    with pytest.raises(ValueError, match=f"^{message}; use backend="):
        lower((4, 1, 2, 3))


def test_matmul_on_cuda_needs_the_handlers(monkeypatch):
    monkeypatch.setattr(_calls, "_targets", {})
    with pytest.raises(interop.CudaError, match="no CUDA kernels for JAX.*built without CUDA or without XLA's headers"):
        lowered_for_cuda()


# ---- what is refused, and in which words ----


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((2, 3), (4, 2), r"a has shape \(2, 3\) and b has shape \(4, 2\): the inner dimensions 3 and 4 differ"),
        ((3,), (4,), r"a has shape \(3,\) and b has shape \(4,\): the inner dimensions 3 and 4 differ"),
        ((2, 2, 3), (3, 3, 2), r"a has shape \(2, 2, 3\) and b has shape \(3, 3, 2\): the batch dimensions 2 and 3"),
        ((), (2, 2), r"a is 0-d"),
        ((2, 2), (), r"b is 0-d"),
    ],
)
def test_matmul_refuses_shapes(a, b, message):
    a, b = jnp.ones(a), jnp.ones(b)
    for f in (interop.matmul, jax.jit(lambda a, b: interop.matmul(a, b))):
        with pytest.raises(ValueError, match=f"^interop.matmul: {message}"):
            f(a, b)


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2fnuz", "int4"])
def test_matmul_refuses_dtypes(dtype):
    a, good = jnp.zeros((2, 2), dtype), jnp.zeros((2, 2), "float32")
    for f in (interop.matmul, jax.jit(lambda a, b: interop.matmul(a, b))):
        with pytest.raises(TypeError, match=rf"^interop.matmul: a is {dtype}; accepted: bool, int8 to int64, "):
            f(a, good)
        with pytest.raises(TypeError, match=rf"^interop.matmul: b is {dtype}; accepted: bool, int8 to int64, "):
            f(good, a)


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


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
@pytest.mark.parametrize(
    ("dtype", "factor", "error", "message"),
    [
        ("int8", np.float32(0.5), TypeError, "is an array of float32, and the product is int8; accepted: an integer"),
        ("int8", np.int32(300), TypeError, "is an array of int32, and the product is int8; accepted: an integer"),
        ("float32", np.complex64(1j), TypeError, "is an array of complex64, and the product is float32; accepted: a r"),
        (
            "float32",
            np.ones((5, 1, 1)),
            ValueError,
            r"has the shape \(5, 1, 1\); accepted: a scalar, or an array of no",
        ),
    ],
)
def test_matmul_refuses_factors_that_are_arrays_of_another_kind(wrap, dtype, factor, error, message):
    x = jnp.ones((2, 2), dtype)
    for name in ("alpha", "beta"):
        call = wrap(lambda f, name=name: interop.matmul(x, x, c=x, **{name: f}))
        with pytest.raises(error, match=f"interop.matmul: {name} {message}"):
            call(jnp.asarray(factor))
    for operand, other in ((jnp.ones((2, 2), bool), jnp.asarray(True)), (x, jax.random.key(0))):
        with pytest.raises(TypeError, match="interop.matmul: alpha is an array of "):
            interop.matmul(operand, operand, alpha=other)


def test_matmul_refuses_random_keys():
    keys = jax.random.split(jax.random.key(0), 3)
    for f in (interop.matmul, jax.jit(lambda a, b: interop.matmul(a, b))):
        with pytest.raises(TypeError, match=r"^interop.matmul: a is .*; accepted: "):
            f(keys, jnp.ones(3))


def test_matmul_refuses_out():
    a = jnp.ones((2, 2))
    for f in (interop.matmul, jax.jit(lambda a, b, out: interop.matmul(a, b, out=out))):
        with pytest.raises(TypeError, match=r"JAX arrays.*immutable"):
            f(a, a, out=a)


def test_matmul_refuses_stream_and_execution_under_jit():
    a = jnp.ones((2, 2))
    with pytest.raises(ValueError, match=r"stream= cannot be used inside jax.jit"):
        jax.jit(lambda a: interop.matmul(a, a, stream=1))(a)
    with pytest.raises(ValueError, match=r"execution= cannot be used inside jax.jit"):
        jax.jit(lambda a: interop.jax.matmul(a, a, execution="cuda"))(a)


def test_matmul_refuses_device_options_on_the_cpu(cpus):
    a = jax.device_put(np.ones((2, 2), "float32"), cpus[0])
    for f in (interop.matmul, jax.jit(interop.matmul, static_argnames="backend")):
        with pytest.raises(ValueError, match="backend='tiled' is for device arrays; JAX computes these on the CPU"):
            f(a, a, backend="tiled")
    with pytest.raises(ValueError, match=r"stream= is for device arrays, but a and b are JAX arrays on .*0"):
        interop.matmul(a, a, stream=1)
    with pytest.raises(ValueError, match=r"execution='cuda', but a and b are JAX arrays on .*jax.device_put"):
        interop.jax.matmul(a, a, execution="cuda")
    for precision in ("tf32", "tf32x3"):
        assert interop.matmul(a, a, precision=precision)[0, 0] == 2  # leave to round, where there is nothing to gain


def test_matmul_refuses_deleted_arrays():
    a, b = jnp.ones((2, 2)), jnp.ones((2, 2))
    interop.matmul(a, b)
    b.delete()
    with pytest.raises(BufferError, match=r"b: the JAX array has been deleted or donated; JAX says: .*deleted"):
        interop.matmul(a, b)
    c = jnp.ones((2, 2))
    jax.jit(lambda x: x + 1, donate_argnums=0)(c)
    if c.is_deleted():
        with pytest.raises(BufferError, match="a: the JAX array has been deleted or donated"):
            interop.matmul(c, a)


def test_matmul_refuses_two_devices(cpus):
    a, b = (jax.device_put(np.ones((2, 2), "float32"), device) for device in cpus[1:3])
    with pytest.raises(ValueError, match=r"a is on .*1 and b is on .*2; put both on one device with jax.device_put"):
        interop.matmul(a, b)


def test_matmul_refuses_an_uncommitted_array_elsewhere(cpus):
    with jax.default_device(cpus[0]):
        a = jnp.ones((2, 2))  # which jnp would copy silently
    with pytest.raises(ValueError, match=r"a is on .*0 and b is on .*1;"):
        interop.matmul(a, jax.device_put(np.ones((2, 2), "float32"), cpus[1]))


def test_matmul_refuses_host_memory_of_a_device(cpus):
    a = jax.device_put(np.ones((2, 2), "float32"), cpus[0])
    pinned = jax.device_put(a, a.sharding.with_memory_kind("pinned_host"))
    with pytest.raises(ValueError, match="b is in JAX's host memory; move it first"):
        interop.matmul(a, pinned)


# ---- several devices ----


@pytest.fixture(params=["Auto", "Explicit"])
def mesh(cpus, request):
    axis_types = (getattr(jax.sharding.AxisType, request.param),)
    return Mesh(np.array(cpus[:4]), ("x",), axis_types=axis_types)


@pytest.mark.parametrize("spec", [P("x", None), P(None, None)])
def test_matmul_refuses_arrays_on_several_devices(mesh, spec):
    wide = jax.device_put(np.ones((4, 4), "float32"), NamedSharding(mesh, spec))
    one = jax.device_put(np.ones((4, 4), "float32"), jax.devices("cpu")[0])
    with pytest.raises(ValueError, match=r"^interop.matmul: a is on 4 devices, NamedSharding.*jax.shard_map"):
        interop.matmul(wide, wide)
    with pytest.raises(ValueError, match=r"^interop.matmul: b is on 4 devices"):
        interop.matmul(one, wide)
    with pytest.raises(ValueError, match=r"^interop.matmul: this jax.jit runs on 4 devices; .*jax.shard_map"):
        jax.jit(lambda a: interop.matmul(a, a))(wide)


@pytest.mark.parametrize("check_vma", [True, False])
def test_matmul_inside_shard_map(mesh, check_vma):
    (x, a), (y, b) = draw((8, 6), device=jax.devices("cpu")[0]), draw((6, 5), device=jax.devices("cpu")[0])
    f = jax.shard_map(
        lambda a, b: interop.matmul(a, b), mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"), check_vma=check_vma
    )
    c = jax.jit(f)(
        jax.device_put(a, NamedSharding(mesh, P("x"))),
        jax.device_put(b, NamedSharding(mesh, P())),
    )
    assert len(c.devices()) == 4
    check_product(c, x, y)


def test_matmul_inside_shard_map_varies_where_an_operand_does(mesh):
    def f(a, b):
        return interop.matmul(a, b)

    for specs in ((P("x"), P()), (P(), P(None, "x"))):
        a, b = (jax.device_put(np.ones((4, 4), "float32"), NamedSharding(mesh, spec)) for spec in specs)
        with pytest.raises(ValueError, match="out_specs"):  # JAX's own check: the blocks of the product differ
            jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=P())(a, b)


def test_matmul_under_a_mesh_of_one_device(cpus):
    for kind in (jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit):
        mesh = Mesh(np.array(cpus[:1]), ("x",), axis_types=(kind,))
        (x, a), (y, b) = (draw(shape, device=NamedSharding(mesh, P())) for shape in ((2, 3), (4, 3, 5)))
        check_product(interop.matmul(a, b), x, y)
        check_product(jax.jit(lambda a, b: interop.matmul(a, b) * 1)(a, b), x, y)
        with jax.set_mesh(mesh):
            check_product(interop.matmul(a, b), x, y)
            check_product(jax.jit(lambda a, b: interop.matmul(a, b) * 1)(a, b), x, y)


# ---- transforms that have no rule yet ----


def total(a, b):
    return interop.matmul(a, b).sum()


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_matmul_refuses_vmap(wrap):
    f = wrap(lambda a, b: interop.matmul(a, b))
    with pytest.raises(NotImplementedError, match=r"^interop.matmul: jax.vmap is not supported yet"):
        jax.vmap(f)(jnp.ones((3, 2, 2)), jnp.ones((3, 2, 2)))
    with pytest.raises(NotImplementedError, match=r"^interop.matmul: jax.vmap is not supported yet"):
        jax.vmap(f, in_axes=(None, 2))(jnp.ones((2, 2)), jnp.ones((2, 2, 3)))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
@pytest.mark.parametrize(
    "transform",
    [
        lambda f, a: jax.grad(f)(a, a),
        lambda f, a: jax.grad(f, argnums=1)(a, a),
        lambda f, a: jax.jvp(f, (a, a), (a, a)),
        lambda f, a: jax.vjp(f, a, a),
        lambda f, a: jax.linearize(f, a, a),
        lambda f, a: jax.hessian(f)(a, a),
        lambda f, a: jax.linear_transpose(lambda x: f(x, a), a)(1.0),
    ],
)
def test_matmul_refuses_derivatives(wrap, transform):
    with pytest.raises(NotImplementedError, match=r"^interop.matmul: derivatives .* are not supported yet"):
        transform(wrap(total), jnp.ones((2, 2)))


def test_matmul_derivatives_through_custom_vjp():
    @jax.custom_vjp
    def product(a, b):
        return interop.matmul(a, b)

    product.defvjp(
        lambda a, b: (interop.matmul(a, b), (a, b)),
        lambda saved, g: (interop.matmul(g, saved[1].T), interop.matmul(saved[0].T, g)),
    )
    (_, a), (_, b) = draw((2, 3)), draw((3, 4))
    ours = jax.grad(lambda a, b: product(a, b).sum(), argnums=(0, 1))(a, b)
    theirs = jax.grad(lambda a, b: jnp.matmul(a, b, precision="highest").sum(), argnums=(0, 1))(a, b)
    for x, y in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)


def test_matmul_refuses_symbolic_shapes():
    scope = jax.export.symbolic_shape("n, 3")
    with pytest.raises(NotImplementedError, match=r"a has the symbolic shape .*not supported yet"):
        jax.export.export(jax.jit(lambda a, b: interop.matmul(a, b)))(
            jax.ShapeDtypeStruct(scope, jnp.float32), jax.ShapeDtypeStruct((3, 2), jnp.float32)
        )


# ---- on a GPU ----


@pytest.fixture
def gpu(cuda_device):
    try:
        return jax.devices("cuda")[0]
    except RuntimeError as error:
        machine.skip("jax+cuda", f"this JAX sees no GPU: {error}")


def batch_ndim(x, y):
    """Over how many strides the batch of a product of compact arrays runs; 0 where there is nothing to add up."""
    if x.size == 0 or y.size == 0:
        return 0
    shape = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x, y = (np.broadcast_to(z, shape + z.shape[-2:]) for z in (x, y))
    repeats = [(x.strides[i] == 0, y.strides[i] == 0) for i in range(len(shape)) if shape[i] > 1]
    return len([*itertools.groupby(repeats)])  # dimensions that repeat the same operands merge


@pytest.mark.gpu
@pytest.mark.parametrize("backend", [None, "tiled", "cublas"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("a", "b"), [*SHAPES, ((1000, 517), (517, 1003)), ((9, 64, 100), (100, 65))])
def test_matmul_backends_on_gpu(gpu, a, b, dtype, backend):
    (x, a), (y, b) = draw(a, dtype, gpu), draw(b, dtype, gpu)
    if backend == "cublas" and batch_ndim(x, y) > 1:
        with pytest.raises(ValueError, match='backend="cublas" cannot take this product: its batch'):
            interop.matmul(a, b, backend=backend)
        return
    c = interop.matmul(a, b, backend=backend)
    assert c.devices() == {gpu}
    check_product(c, x, y)
    check_product(jax.jit(lambda a, b: interop.matmul(a, b, backend=backend))(a, b), x, y)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", [None, "tiled", "cublas"])
@pytest.mark.parametrize("precision", [None, "tf32", "tf32x3"])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(0, 3, 2), (2, 0, 3), (16, 16, 16), (512, 512, 512), (513, 512, 512), (64, 8192, 64), (1, 513, 1)]
)
def test_xla_is_asked_for_the_workspace_that_plans_need(gpu, cupy, m, k, n, backend, precision):
    if backend == "cublas" and precision == "tf32x3":
        return  # refused
    a, b = cupy.ones((m, k), "float32"), cupy.ones((k, n), "float32")
    needed = interop.explain(interop.matmul, a, b, backend=backend, precision=precision).workspace_bytes
    asked = interop._core.matmul_workspace(((m, k), "float32"), ((k, n), "float32"), "float32", backend, precision)
    assert needed <= asked <= 32 << 20
    exact_tiled = backend == "tiled" and not precision and k < 2048
    if exact_tiled or 0 in (m, k, n) or (m == 16 and not backend):
        assert asked == 0
    x = np.random.default_rng(0).integers(-2, 3, (m, k)).astype("float32")
    y = np.random.default_rng(1).integers(-2, 3, (k, n)).astype("float32")
    c = interop.matmul(jax.device_put(x, gpu), jax.device_put(y, gpu), backend=backend, precision=precision)
    assert np.array_equal(c, x @ y)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", [None, "tiled"])
def test_matmul_tf32_only_when_asked_on_gpu(gpu, backend):
    a = jax.device_put(np.full((512, 512), 1 + 2.0**-12, "float32"), gpu)
    eye = jax.device_put(np.eye(512, dtype="float32"), gpu)
    assert np.array_equal(interop.matmul(a, eye, backend=backend), a)
    np.testing.assert_allclose(interop.matmul(a, eye, precision="tf32", backend=backend), a, rtol=2.0**-10)
    np.testing.assert_allclose(interop.matmul(a, eye, precision="tf32x3", backend=backend), a, rtol=2.0**-20)


@pytest.mark.gpu
def test_matmul_inside_a_long_jit_on_gpu(gpu):
    """Enough operations for XLA to use a CUDA graph; run often, with other work between, on fresh buffers."""
    (x, a), (y, b) = draw((300, 300), device=gpu), draw((300, 300), device=gpu)

    @jax.jit
    def f(a, b):
        for _ in range(8):
            b = jnp.tanh(interop.matmul(a, b) / 300)
        return b

    expected = y.astype("float64")
    for _ in range(8):
        expected = np.tanh(x.astype("float64") @ expected / 300)
    kept = []
    for i in range(20):
        kept.append(f(a, b))
        kept.append(jnp.full((257, 300), float(i)))
    for c in kept[::2]:
        np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.gpu
def test_matmul_makes_the_stream_wait_on_gpu(gpu, cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    a = jax.device_put(np.full((8192, 8192), 1, "float32"), gpu)
    interop.matmul(a, a, backend="tiled").block_until_ready()
    for _ in range(3):
        c = interop.matmul(a, a, backend="tiled", stream=stream)
        assert not c.is_ready()  # the host has not waited
        pointer = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(c.unsafe_buffer_pointer(), c.nbytes, c), 0)
        with stream:  # reads the memory itself, so that nothing else can order it
            seen = cupy.ndarray(c.shape, cupy.float32, pointer)[-1, -64:].copy()
        stream.synchronize()
        assert bool((seen == 8192).all())
        del c


@pytest.mark.gpu
def test_matmul_execution_on_gpu(gpu):
    a = jax.device_put(np.ones((2, 2), "float32"), gpu)
    assert interop.jax.matmul(a, a, execution="cuda")[0, 0] == 2
    assert interop.jax.matmul(a, a, execution=f"cuda:{gpu.local_hardware_id}")[0, 0] == 2
    with pytest.raises(ValueError, match="execution='cuda:97', but a and b are JAX arrays on cuda:"):
        interop.jax.matmul(a, a, execution="cuda:97")


@pytest.mark.gpu
def test_matmul_refuses_cpu_and_gpu_arrays_together(gpu, cpus):
    a, b = (jax.device_put(np.ones((2, 2), "float32"), device) for device in (gpu, cpus[0]))
    with pytest.raises(ValueError, match=r"a is on cuda:0 and b is on .*(?i:cpu).*; put both on one device"):
        interop.matmul(a, b)


# ---- debug_nans, debug_infs ----

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


# ---- interop.jax.matmul with what is not JAX's ----


def test_arrays_of_other_libraries_are_refused_by_name(host_jax, torch):
    x = host_jax.numpy.ones((2, 2))
    for other, kind in (
        (np.ones((2, 2), "float32"), "numpy.ndarray"),
        (torch.ones(2, 2), "torch.Tensor"),
        (1.0, "float"),
    ):
        for arguments, name in (((other, x), "a"), ((x, other), "b"), ((other, other), "a")):
            with pytest.raises(TypeError, match=rf"^interop.jax.matmul: {name} is {kind}; accepted: an array of JAX"):
                interop.jax.matmul(*arguments)
        for name in ("c", "bias"):
            with pytest.raises(TypeError, match=rf"^interop.jax.matmul: {name} is {kind}; accepted: an array of JAX"):
                interop.jax.matmul(x, x, **{name: other})
    for option in ("backend", "precision"):
        with pytest.raises(ValueError, match=rf"^interop.matmul: {option} is 'tf16'; accepted: None"):
            interop.jax.matmul(x, x, **{option: "tf16"})
        with pytest.raises(ValueError, match=rf"^interop.matmul: {option} is \[\]; accepted: None"):
            interop.jax.matmul(x, x, **{option: []})
