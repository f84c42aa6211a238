"""C functions and kernels of traced JAX arrays: what they compute on the CPU, and what is refused."""

from __future__ import annotations

import ctypes.util
import pickle

import numpy as np
import pytest
from helpers import c_functions
from helpers.kernels import ADD, TRANSPOSE

import interop
from interop import _core

jax = pytest.importorskip("jax")
jnp = jax.numpy

from jax.sharding import PartitionSpec as P  # noqa: E402 - after the check that there is JAX

jax.config.update("jax_num_cpu_devices", 8)  # before JAX starts: it has one otherwise

pytestmark = [
    pytest.mark.skipif(not _core.build_info()["jax_functions"], reason="this build has no handlers for JAX"),
    pytest.mark.usefixtures("host_jax"),
]

for_cuda = pytest.mark.skipif(not _core.build_info()["jax_ffi"], reason="this build has no kernels for JAX")

SOURCE = r"""
#include <complex.h>
#include <stdint.h>

void sum(const float* a, const float* b, float* c, int n) { for (int i = 0; i < n; ++i) c[i] = a[i] + b[i]; }
void split(const double* x, double* low, int64_t* high, int n) {
  for (int i = 0; i < n; ++i) { high[i] = (int64_t)x[i]; low[i] = x[i] - high[i]; }
}
void copy3(const float* x, float* y) { for (int i = 0; i < 3; ++i) y[i] = x[i]; }
void scaled(const float* x, const float* by, float* y, int n) { for (int i = 0; i < n; ++i) y[i] = *by * x[i]; }
void numbers(const float* x, double* y, int8_t a, uint64_t b, float c, double d, _Bool e) {
  y[0] = a; y[1] = b; y[2] = c; y[3] = d; y[4] = e;
}
int checked(const float* x, float* y, int fails) { y[0] = x[0]; return fails ? 7 : 0; }
void rotate(const double complex* x, double complex* y, int n) { for (int i = 0; i < n; ++i) y[i] = x[i] * I; }
void update(float* x, int n) { for (int i = 0; i < n; ++i) ++x[i]; }
int count(const float* x, int n) { return n; }
void bytes(const void* x, int n, unsigned char* y) { for (int i = 0; i < n; ++i) y[i] = ((const unsigned char*)x)[i]; }
void signs(const float* x, int* y, int n) { for (int i = 0; i < n; ++i) y[i] = (x[i] > 0) - (x[i] < 0); }
void counted(const int* n, float* y, int count) { for (int i = 0; i < count; ++i) y[i] = n[i]; }
float first(const float* x) { return *x; }
void on_gpu(const float* x, float* y) { y[0] = x[0]; }
void mixed(const float* x, float* y, const float* by) { y[0] = x[0]; }
struct handle* open_(void) { return 0; }
void with_handle(struct handle* h, const float* x, float* y) { y[0] = x[0]; }
"""
DECLARATIONS = """
    void sum(host const float* a, host const float* b, host float* c, int n);
    void split(host const double* x, host double* low, host int64_t* high, int n);
    void copy3(host const float* x, host float* y);
    void scaled(host const float* x, host const float* by, host float* y, int n);
    void numbers(host const float* x, host double* y, int8_t a, uint64_t b, float c, double d, bool e);
    code checked(host const float* x, host float* y, int fails);
    void rotate(host const cuDoubleComplex* x, host cuDoubleComplex* y, int n);
    void update(host float* x, int n);
    void bytes(host const void* x, int n, host unsigned char* y);
    void signs(host const float* x, host int* y, int n);
    void counted(host const int* n, host float* y, int count);
    float first(host const float* x);
    void on_gpu(device const float* x, device float* y);
    void mixed(host const float* x, device float* y, device const float* by);
    struct handle* open_();
    void with_handle(struct handle* h, host const float* x, host float* y);
"""
PREAMBLE = "typedef int code; struct handle;"
X = np.arange(6, dtype="float32")


@pytest.fixture(scope="module")
def lib(tmp_path_factory):
    path = c_functions.build(SOURCE, tmp_path_factory.mktemp("functions") / "libown.so")
    return interop.load(path, PREAMBLE + DECLARATIONS, status={"code": 0})


@pytest.fixture
def add(lib):
    return lib.sum.returning(c="a")


def compiled(f, *args):
    """Return the text of the compiled program, which has no call of Python."""
    text = jax.jit(f).lower(*args).compile().as_text()
    assert "callback" not in text
    return text


# ---- values ----


def test_a_function_is_called_by_the_program(add):
    def f(x):
        return 2 * add(x, x + 1, x.size)

    x = jnp.asarray(X)
    np.testing.assert_array_equal(jax.jit(f)(x), 2 * (2 * X + 1))
    assert compiled(f, x).count('custom_call_target="interop_function"') == 1
    np.testing.assert_array_equal(f(x), 2 * (2 * X + 1))  # concrete arrays: at once, as without JAX


def test_arguments_by_name_and_of_numpy(add):
    f = jax.jit(lambda x: add(n=3, a=x, b=X[:3]))
    np.testing.assert_array_equal(f(jnp.ones(3)), X[:3] + 1)


def test_several_results_wide_dtypes_and_a_shape_that_is_a_function(lib):
    split = lib.split.returning(high=lambda x, n: n, low="x")
    x = np.array([1.5, 2.25, -3.0])
    with jax.enable_x64(True):
        low, high = jax.jit(lambda x: split(x, x.size))(jnp.asarray(x))
    assert (str(low.dtype), str(high.dtype)) == ("float64", "int64")
    np.testing.assert_array_equal(low, x - np.trunc(x))
    np.testing.assert_array_equal(high, np.trunc(x))


def test_numbers_are_those_of_c(lib):
    numbers = lib.numbers.returning(y=lambda *_: 5)
    x = jnp.ones(1)
    with jax.enable_x64(True):
        y = jax.jit(lambda x: numbers(x, -3, 2**64 - 1, np.float32(0.1), 0.1, True))(x)
    assert y.tolist() == [-3, float(2**64 - 1), float(np.float32(0.1)), 0.1, 1]


def test_other_numbers_are_another_program(add):
    f = jax.jit(lambda x, n: add(x, x, n), static_argnums=1)
    x = jnp.asarray(X)
    np.testing.assert_array_equal(f(x, 6), 2 * X)
    assert f(x, 2).tolist()[:2] == [0, 2]
    text = [f.lower(x, n).as_text() for n in (6, 2)]
    assert text[0] != text[1]


def test_no_numbers_a_pointer_to_one_and_any_dtype(lib):
    assert jax.jit(lib.copy3.returning(y="x"))(jnp.ones(3)).tolist() == [1, 1, 1]
    scaled = lib.scaled.returning(y="x")
    f = jax.jit(lambda x, by: scaled(x, by, x.size))
    np.testing.assert_array_equal(f(jnp.asarray(X), jnp.float32(3)), 3 * X)
    view = lib.bytes.returning(y=lambda x, n: n)
    assert jax.jit(lambda x: view(x, 4))(jnp.ones(1, "int32")).tolist() == [1, 0, 0, 0]


def test_complex_and_empty_arrays(lib, add):
    rotate = lib.rotate.returning(y="x")
    x = np.array([1 + 2j, 3])
    with jax.enable_x64(True):
        np.testing.assert_array_equal(jax.jit(lambda x: rotate(x, 2))(jnp.asarray(x)), x * 1j)
    assert jax.jit(lambda x: add(x, x, 0))(jnp.ones((0, 3))).shape == (0, 3)


def test_what_is_not_compact_is_made_so(lib):
    copy = lib.copy3.returning(y="x")
    x = jnp.asarray(X.reshape(2, 3))
    f = jax.jit(lambda x: copy(x.T[::-1, 1]))
    np.testing.assert_array_equal(f(x), X.reshape(2, 3).T[::-1, 1])


# ---- transforms ----


def test_scan_loops_conditions_and_remat(add):
    x = jnp.asarray(X)

    def twice(x):
        return add(x, x, x.size)

    carried, sums = jax.jit(lambda x: jax.lax.scan(lambda c, _: (twice(c), c.sum()), x, None, length=3))(x)
    np.testing.assert_array_equal(carried, 8 * X)
    assert sums.tolist() == [15, 30, 60]
    np.testing.assert_array_equal(jax.jit(lambda x: jax.lax.fori_loop(0, 2, lambda _, c: twice(c), x))(x), 4 * X)
    f = jax.jit(lambda x, doubles: jax.lax.cond(doubles, twice, lambda x: x, x))
    np.testing.assert_array_equal(f(x, True), 2 * X)
    np.testing.assert_array_equal(f(x, False), X)
    np.testing.assert_array_equal(jax.checkpoint(twice)(x), 2 * X)
    np.testing.assert_array_equal(jax.lax.map(twice, jnp.stack([x, x])), np.stack([2 * X] * 2))
    with jax.disable_jit():
        np.testing.assert_array_equal(jax.lax.map(twice, jnp.stack([x, x])), np.stack([2 * X] * 2))


def test_what_is_not_differentiated_is_computed_under_grad(add):
    x = jnp.asarray(X)
    grad = jax.grad(lambda x: (x * add(jax.lax.stop_gradient(x), x.shape[0] * jnp.ones(6), 6)).sum())(x)
    np.testing.assert_array_equal(grad, X + 6)


@pytest.mark.parametrize("under_jit", [False, True])
def test_integers_have_no_derivative(lib, under_jit):
    signs, counted = lib.signs.returning(y="x"), lib.counted.returning(y="n")

    def f(x, n):
        return (x * signs(x, 6) * counted(n, 6)).sum()

    x, n = jnp.asarray(X) - 2.5, jnp.full(6, 3)
    grad = jax.grad(jax.jit(f) if under_jit else f, allow_int=True)
    np.testing.assert_array_equal(grad(x, n), 3 * np.sign(x))
    value, tangent = jax.jvp(f, (x, n), (x, np.zeros(6, jax.dtypes.float0)))
    assert value == tangent == 3 * abs(np.asarray(x)).sum()


@pytest.mark.parametrize("under_jit", [False, True])
def test_derivatives_name_the_operator(add, under_jit):
    def f(x):
        return add(jnp.ones(6), x, 6).sum()

    f = jax.jit(f) if under_jit else f
    words = r"libown.sum: JAX differentiates the call by b.*accepted: jax.lax.stop_gradient\(b\), or interop.operator"
    for transform in (jax.grad(f), lambda x: jax.jvp(f, (x,), (x,)), jax.hessian(f)):
        with pytest.raises(NotImplementedError, match=words):
            transform(jnp.asarray(X))


def test_vmap_names_the_operator(add):
    words = "libown.sum: jax.vmap maps b, .*; accepted: jax.lax.map, .* interop.operator"
    for f in (add, jax.jit(add, static_argnums=2)):
        with pytest.raises(NotImplementedError, match=words):
            jax.vmap(lambda a, b, f=f: f(a, b, 6), in_axes=(None, 0))(jnp.asarray(X), jnp.ones((2, 6)))
    unmapped = jax.vmap(lambda x: x + add(jnp.asarray(X), jnp.asarray(X), 6))
    np.testing.assert_array_equal(unmapped(jnp.ones((2, 6))), np.stack([2 * X + 1] * 2))


# ---- several devices ----


@pytest.fixture
def mesh():
    return jax.make_mesh((2,), ("x",), devices=jax.devices("cpu")[:2])


def test_each_device_calls_it_in_shard_map(add, mesh):
    f = jax.shard_map(lambda x: add(x, x, x.size), mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    x = jax.device_put(jnp.asarray(X), jax.sharding.NamedSharding(mesh, P("x")))
    result = jax.jit(f)(x)
    np.testing.assert_array_equal(result, 2 * X)
    assert {tuple(shard.data.shape) for shard in result.addressable_shards} == {(3,)}
    mixed = jax.shard_map(lambda x: add(x, jnp.ones(3), 3), mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    np.testing.assert_array_equal(jax.jit(mixed)(x), X + 1)


def test_a_program_over_several_devices_is_refused(add, mesh):
    x = jax.device_put(jnp.asarray(X), jax.sharding.NamedSharding(mesh, P("x")))
    words = r"libown.sum: the program is for 2 devices, .*; accepted: the call inside jax.shard_map .* interop.operator"
    with pytest.raises(NotImplementedError, match=words):
        jax.jit(lambda x: add(x, x, 6))(x)


# ---- refusals ----


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda lib, x: lib.sum(x, x, x, 6), r"sum: c is written to.*; accepted: sum.returning\(c=\.\.\.\)"),
        (lambda lib, x: lib.sum.returning(c="a")(x, x, 6, c=x), r"sum: c= cannot be used with JAX arrays"),
        (lambda lib, x: lib.update(x, 6), r"update: x is written to"),
        (lambda lib, x: lib.first(x), r"first: a C function that returns a value cannot .*'float first"),
        (lambda lib, x: lib.sum.returning(c="a")(x, x, x.size + x[0]), "n is a traced value of JAX.* of no dimension"),
        (lambda lib, x: lib.sum.returning(c="a")(x, x, 2.5), r"sum: n is float; accepted: an integer"),
        (lambda lib, x: lib.sum.returning(c="a")(x, x.astype("int32"), 6), r"b is int32 of shape \(6,\); accepted: f"),
        (lambda lib, x: lib.sum.returning(c="a")(x, [1.0], 6), r"sum: b is list; accepted with traced arrays of JAX"),
        (lambda lib, x: lib.sum.returning(c="a")(x, x), r"takes 3 arguments \(a, b, n\), 2 were given"),
        (
            lambda lib, x: lib.sum.returning(c=lambda a, b, n: int(a[0]))(x, x, 6),
            r"sum: the shape of c depends on the values of an array, which JAX traces; accepted: a function of shapes",
        ),
        (lambda lib, x: lib.sum.returning(c=lambda a, b, n: (a[0],))(x, x, 6), "the shape of c depends on the values"),
        (lambda lib, x: lib.sum.returning(c=lambda a, b, n: (1.5,))(x, x, 6), "c has the size float; accepted: an int"),
        (lambda lib, x: lib.with_handle.returning(y="x")(lib.open_(), x), r"with_handle: h is a handle, 'handle\*'"),
    ],
)  # fmt: skip
def test_type_errors(lib, call, words):
    with pytest.raises(TypeError, match=words):
        jax.jit(lambda x: call(lib, x))(jnp.asarray(X))


def test_value_errors(lib):
    x = jnp.asarray(X)
    with pytest.raises(ValueError, match="the shape of c has the size -1; accepted: 0 to"):
        jax.jit(lambda x: lib.sum.returning(c=lambda *_: -1)(x, x, 6))(x)
    on_gpu = lib.on_gpu.returning(y="x")
    with pytest.raises(ValueError, match="on_gpu: x is a pointer to device memory, and JAX computes .* on the CPU"):
        jax.jit(on_gpu)(x)
    with pytest.raises(ValueError, match="on_gpu: stream= cannot be used inside jax.jit"):
        jax.jit(lambda x: on_gpu(x, stream=1))(x)
    with pytest.raises(ValueError, match="on_gpu: execution= cannot be used inside jax.jit"):
        jax.jit(lambda x: on_gpu(x, execution="cuda"))(x)


@for_cuda
def test_a_pointer_to_host_memory_is_refused_on_a_gpu(add):
    with pytest.raises(ValueError, match=r"sum: a is a pointer to host memory, and JAX computes .* on a GPU; accepted"):
        lowered(lambda x: add(x, x, 6), (6,))


def test_symbolic_shapes_are_refused(add):
    (n,) = jax.export.symbolic_shape("n")
    with pytest.raises(NotImplementedError, match=r"sum: a has the symbolic shape \(n,\)"):
        jax.export.export(jax.jit(lambda x: add(x, x, 6)))(jax.ShapeDtypeStruct((n,), "float32"))


def test_a_failure_is_raised_where_the_result_is_used(lib):
    checked = lib.checked.returning(y=lambda *_: 1)
    f = jax.jit(lambda x, fails: checked(x, fails), static_argnums=1)
    assert f(jnp.ones(1), 0).tolist() == [1]
    with pytest.raises(jax.errors.JaxRuntimeError, match="libown.checked returned 7, a code, of which success is 0"):
        f(jnp.ones(1), 1).block_until_ready()


def test_a_function_without_arrays_is_refused():
    libm = interop.load(ctypes.util.find_library("m"), "double hypot(double x, double y);")
    with pytest.raises(TypeError, match="hypot: a C function that returns a value cannot be traced by JAX"):
        jax.jit(libm.hypot)(3.0, 4.0)


# ---- kernels, of which a GPU's program is made without one ----


def lowered(f, *shapes):
    operands = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    return jax.jit(f).trace(*operands).lower(lowering_platforms=("cuda",)).as_text()


def test_a_kernel_on_the_cpu_is_an_error():
    add = interop.kernel(ADD, "add", threads="a").returning(c="a")
    with pytest.raises(ValueError, match=r"kernel\('add'\): a kernel runs on a GPU, and JAX .* on the CPU"):
        jax.jit(lambda x: add(x, x, 6))(jnp.asarray(X))


@for_cuda
@pytest.mark.parametrize(
    ("options", "call", "launch"),
    [
        ({"threads": "a"}, {}, [4, 1, 1, 256, 1, 1, 0, 0, 0, 0, 0, 0]),
        ({"grid": 7, "block": (32, 2), "shared": 128}, {}, [7, 1, 1, 32, 2, 1, 0, 0, 0, 128, 0, 0]),
        ({"threads": lambda a, b, n: a.shape}, {"block": 100}, [10, 1, 1, 100, 1, 1, 0, 0, 0, 0, 0, 0]),
        ({"threads": "a", "cluster": 3, "cooperative": True}, {}, [6, 1, 1, 256, 1, 1, 3, 1, 1, 0, 1, 0]),
        ({"grid": lambda a, b, n: (n, 2)}, {}, [1000, 2, 1, 256, 1, 1, 0, 0, 0, 0, 0, 0]),
        ({}, {"threads": "c"}, [4, 1, 1, 256, 1, 1, 0, 0, 0, 0, 0, 0]),
        ({"grid": 1, "dependent_launch": True}, {}, [1, 1, 1, 256, 1, 1, 0, 0, 0, 0, 0, 1]),
        ({"grid": 1}, {"dependent_launch": True}, [1, 1, 1, 256, 1, 1, 0, 0, 0, 0, 0, 1]),
    ],
)
def test_the_launch_is_that_of_the_shapes(options, call, launch):
    add = interop.kernel(ADD, "add", **options).returning(c="a")
    text = lowered(lambda a, b: add(a, b, 1000, **call), (1000,), (1000,))
    assert f"launch = dense<{launch}> : tensor<12xi64>" in text
    assert "callback" not in text


@for_cuda
def test_views_and_their_dimensions():
    transpose = interop.kernel(TRANSPOSE, "transpose<float>", threads=lambda x: x.shape, block=(16, 16))
    transpose = transpose.returning(y=lambda x: x.shape[::-1])
    assert "tensor<20x30xf32>) -> tensor<30x20xf32>" in lowered(transpose, (20, 30))
    with pytest.raises(ValueError, match=r"x has shape \(20,\); accepted: 2 dimensions, as it is a view"):
        lowered(transpose, (20,))
    flat = interop.kernel(TRANSPOSE, "transpose<float>", grid=1).returning(y=lambda x: 3)
    with pytest.raises(ValueError, match=r"y has shape \(3,\); accepted: 2 dimensions"):
        lowered(flat, (20, 30))


def test_a_launch_by_values_is_an_error():
    add = interop.kernel(ADD, "add", grid=lambda a, b, n: a[0]).returning(c="a")
    with pytest.raises(TypeError, match="the launch depends on the values of an array, which JAX traces"):
        lowered(lambda x: add(x, x, 6), (6,))
    with pytest.raises(ValueError, match="neither grid nor threads is given"):
        lowered(lambda x: interop.kernel(ADD, "add").returning(c="a")(x, x, 6), (6,))


@for_cuda
def test_the_same_source_is_the_same_call_and_another_is_not():
    def key(source, **options):
        add = interop.kernel(source, "add", **options).returning(c="a")
        return lowered(lambda x: add(x, x, 6), (6,)).partition('function = "')[2].partition('"')[0]

    assert key(ADD, grid=1) == key(ADD, grid=lambda *_: 2)
    assert key(ADD, grid=1) != key(ADD + "\n", grid=1)
    assert key(ADD, grid=1) != key(ADD, grid=1, options={"use_fast_math": True})
    assert key(ADD, grid=1).startswith("add-")


# ---- graph_safe ----


@for_cuda
def test_xlas_graphs_have_the_functions_that_are_said_to_be_safe(lib):
    path, declared = lib._library.path, "void on_gpu(device const float* x, device float* y, cudaStream_t stream);"
    for safe, target in (((), "interop_function"), (("on_gpu",), "interop_function_in_graphs")):
        loaded = interop.load(path, declared, graph_safe=safe)
        for function in (loaded.on_gpu, pickle.loads(pickle.dumps(loaded.on_gpu))):
            assert f"@{target}(" in lowered(function.returning(y="x"), (1,))


def test_graph_safe_is_said_of_functions_with_a_stream(lib):
    path, declared = lib._library.path, "void on_gpu(device const float* x, device float* y);"
    for safe, error, match in (
        ("on_gpu", TypeError, "interop.load: graph_safe is str; accepted: a tuple of names"),
        ((1,), TypeError, "interop.load: graph_safe has an element of int"),
        (("on_gpu",), ValueError, "graph_safe: 'on_gpu' is no function with a cudaStream_t; accepted: none"),
        (["sum"], ValueError, "graph_safe: 'sum' is no function with a cudaStream_t"),
    ):
        with pytest.raises(error, match=match):
            interop.load(path, declared, graph_safe=safe)
