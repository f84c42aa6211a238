"""`interop.kernel` on the GPU: kernels written once, launched with arrays of every library."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from helpers import device, elements, graphs, libraries, machine

import interop
from interop import _kernel

N = 1000
A = np.arange(N, dtype="float32")
B = np.full(N, 10, "float32")

ADD = """
__global__ void add(const float* a, const float* b, float* c, long long n) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
"""
TRANSPOSE = """
#include <interop/view.cuh>
template <typename T>
__global__ void transpose(interop::View<const T, 2> x, interop::View<T, 2> y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
  if (i < x.size(0) && j < x.size(1)) y(j, i) = x(i, j);
}
"""


@pytest.fixture(autouse=True)
def _compiler():
    machine.need("nvrtc")
    machine.need("cuda_core")


@pytest.fixture
def _cuda_headers():
    if not _kernel._cuda_headers():
        pytest.skip("CUDA's own headers are not installed")


@pytest.fixture
def add():
    return interop.kernel(ADD, "add", threads="a")


# ---- values ----


def test_sum_of_every_library(add, device_library):
    result = add.returning(c="a")(device_library.make(A), device_library.make(B), N)
    assert device_library.is_ours(result)
    np.testing.assert_array_equal(device_library.to_numpy(result), A + B)


def test_a_given_array_is_written(add, device_view_library):
    a, b, c = (device_view_library.make(x) for x in (A, B, np.zeros(N, "float32")))
    assert add(a, b, c, N) is None
    np.testing.assert_array_equal(device_view_library.to_numpy(c), A + B)
    assert add.returning(c="a")(a, b, N, c=b) is b
    np.testing.assert_array_equal(device_view_library.to_numpy(b), A + B)


def test_libraries_in_one_call(add, torch, cupy, jax):
    a, b, c = torch.from_numpy(A).cuda(), jax.numpy.asarray(B), cupy.zeros(N, "float32")
    add(a, b, c, N)
    np.testing.assert_array_equal(c.get(), A + B)


@pytest.mark.parametrize(
    "launch",
    [
        {"threads": "c"},
        {"threads": N},
        {"threads": (N, 1, 1), "block": (64, 1)},
        {"grid": 4},
        {"grid": (np.int64(32), 1), "block": 32},
        {"grid": lambda a, b, c, n: -(-a.shape[0] // 256)},
        {"threads": lambda a, b, c, n: (n,)},
    ],
)
def test_ways_to_launch(cupy, launch):
    for made, options in ((interop.kernel(ADD, "add", **launch), {}), (interop.kernel(ADD, "add", grid=1), launch)):
        c = cupy.zeros(N, "float32")
        made(cupy.asarray(A), cupy.asarray(B), c, N, **options)
        np.testing.assert_array_equal(c.get(), A + B)


def test_the_call_says_how_it_is_launched(cupy):
    made = interop.kernel(ADD, "add")
    a, b, c = cupy.asarray(A), cupy.asarray(B), cupy.zeros(N, "float32")
    with pytest.raises(ValueError, match="neither grid nor threads is given; accepted: one of them"):
        made(a, b, c, N)
    with pytest.raises(ValueError, match="grid and threads are given"):
        made(a, b, c, N, grid=1, threads=1)
    with pytest.raises(ValueError, match="block is 0; accepted"):
        made(a, b, c, N, grid=1, block=0)
    assert not c.any()
    made(a, b, c, N, threads=N, block=128)
    np.testing.assert_array_equal(c.get(), A + B)


def test_nothing_to_launch(add, cupy):
    empty = cupy.zeros(0, "float32")
    assert add.returning(c="a")(empty, empty, 0).shape == (0,)
    c = cupy.zeros(N, "float32")
    add(cupy.asarray(A), cupy.asarray(B), c, N, grid=(0, 3))
    assert not c.any()


def test_several_results(cupy):
    source = """
    __global__ void split(const double* x, double* low, long long* high) {
      const int i = threadIdx.x;
      high[i] = (long long)floor(x[i]);
      low[i] = x[i] - high[i];
    }
    """
    split = interop.kernel(source, "split", grid=1, block=3).returning(high=lambda x: x.shape, low="x")
    x = cupy.asarray([1.25, -0.5, 7.0])
    low, high = split(x)
    assert low.tolist() == [0.25, 0.5, 0.0]
    assert high.tolist() == [1, -1, 7]
    given = cupy.zeros(3, "int64")
    low, high = split(x, high=given)
    assert high is given
    assert given.tolist() == [1, -1, 7]


# ---- parameters ----


NUMBERS = {
    "bool": ("bool", True),
    "int8_t": ("int8", -128),
    "uint8_t": ("uint8", 255),
    "short": ("int16", -3),
    "unsigned short": ("uint16", 65535),
    "int": ("int32", -(2**31)),
    "unsigned": ("uint32", 2**32 - 1),
    "long long": ("int64", -(2**63)),
    "size_t": ("uint64", 2**64 - 1),
    "float": ("float32", 2.5),
    "double": ("float64", np.float64(0.1)),
    "__half": ("float16", -1.5),
    "__nv_bfloat16": ("bfloat16", np.float32(3)),
    "cuComplex": ("complex64", 1 - 2j),
    "cuDoubleComplex": ("complex128", np.complex128(0.5j)),
}
NUMBERS_SOURCE = """
#include <cuComplex.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
using int8_t = signed char;
using uint8_t = unsigned char;
template <typename T>
__global__ void put(char first, T value, T* y, char last) { if (first == 1 && last == 2) *y = value; }
"""


@pytest.mark.usefixtures("_cuda_headers")
@pytest.mark.parametrize("c_type", NUMBERS)
def test_numbers_arrive(torch, c_type):
    dtype, value = NUMBERS[c_type]
    library = libraries.by_name("torch", "cuda")
    y = library.make(np.zeros(1, elements.dtype_of(dtype)))
    put = interop.kernel(NUMBERS_SOURCE, f"put<{c_type}>", grid=1, block=1)
    put(1, value, y, 2)
    assert library.to_numpy(y)[0] == np.asarray(value).astype(elements.dtype_of(dtype))


def test_many_parameters(cupy):
    declared = ", ".join(f"const double* x{i}, double a{i}" for i in range(40))
    terms = " + ".join(f"*x{i} * a{i}" for i in range(40))
    made = interop.kernel(f"__global__ void f({declared}, double* y) {{ *y = {terms}; }}", "f", grid=1, block=1)
    y = cupy.zeros(1)
    given = [value for i in range(40) for value in (cupy.full(1, float(i)), i + 1)]
    made(*given, y)
    assert y.item() == sum(i * (i + 1) for i in range(40))


@pytest.mark.parametrize("dtype", ["float32", "int8", "complex128"])
def test_views_have_any_strides(device_view_library, dtype):
    c_type = {"float32": "float", "int8": "signed char", "complex128": "double2"}[dtype]
    signature = {"signature": "interop::View<const double _Complex, 2> x, interop::View<double _Complex, 2> y"}
    options = signature if dtype == "complex128" else {}
    transpose = interop.kernel(
        TRANSPOSE, f"transpose<{c_type}>", threads=lambda x, y: x.shape, block=(16, 8), **options
    )
    base = elements.draw((40, 30), dtype, 0)
    for view in (base, base.T, base[::2, 3:], base[1:, ::3].T, np.broadcast_to(base[5], (7, 30)), base[::-1, ::-2]):
        if not device_view_library.negative and min(view.strides) < 0:
            continue
        x = device_view_library.view(base, view)
        target = np.zeros((view.shape[1], 2 * view.shape[0]), dtype)
        y = device_view_library.view(target, target[:, ::2])
        transpose(x, y)
        np.testing.assert_array_equal(device_view_library.to_numpy(y), view.T)


def test_views_of_jax_arrays(jax):
    transpose = interop.kernel(TRANSPOSE, "transpose<float>", threads=lambda x: x.shape, block=(16, 8))
    made = transpose.returning(y=lambda x: x.shape[::-1])
    x = jax.numpy.arange(12, dtype="float32").reshape(3, 4)
    np.testing.assert_array_equal(np.asarray(made(x)), np.asarray(x).T)


def test_a_pointer_takes_no_view(add, cupy):
    x, y = cupy.asarray(A), cupy.zeros(2 * N, "float32")[::2]
    with pytest.raises(ValueError, match=r"interop.kernel\('add'\): b is .*strides \(2,\).*accepted: a C-contiguous"):
        add(x, y, x.copy(), N)
    with pytest.raises(ValueError, match=r"c is .*strides \(2,\)"):
        add(x, x, y, N)
    assert not y.any()


def test_a_view_has_the_declared_dimensions(cupy):
    transpose = interop.kernel(TRANSPOSE, "transpose<float>", grid=1)
    with pytest.raises(
        ValueError, match=r"x is float32 of shape \(5,\).*accepted: a float32 array of shape \(\*, \*\)"
    ):
        transpose(cupy.zeros(5, "float32"), cupy.zeros((5, 1), "float32"))


def test_what_is_refused(add, cupy, jax):
    x = cupy.asarray(A)
    with pytest.raises(TypeError, match="b is float64 .*; accepted: a C-contiguous float32 array on a CUDA device"):
        add(x, cupy.zeros(N), x, N)
    with pytest.raises(TypeError, match="b is in host memory"):
        add(x, A, x, N)
    with pytest.raises(TypeError, match="c is .*, which is immutable"):
        add(x, x, jax.numpy.zeros(N, "float32"), N)
    np.testing.assert_array_equal(x.get(), A)


def test_host_arrays_are_computed_on_the_gpu_when_asked(add):
    result = add.returning(c="a")(A, B, N, execution="cuda")
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, A + B)
    transpose = interop.kernel(TRANSPOSE, "transpose<float>", threads=lambda x, y: x.shape, block=(16, 8))
    x, y = A.reshape(40, 25), np.zeros((25, 80), "float32")[:, ::2]
    transpose(x[:, ::2], y[:13], execution="cuda")
    np.testing.assert_array_equal(y[:13], x[:, ::2].T)
    assert not y[13:].any()


def test_a_given_result_has_the_shape_of_its_rule(add, device_view_library):
    whole = np.zeros(2 * N, "float32")
    a, b = device_view_library.make(A), device_view_library.make(B)
    for rule in ("a", lambda a, b, n: n, lambda a, b, n: (np.int64(n),)):
        made = add.returning(c=rule)
        for view in (whole[: N // 2], whole[: N + 1], whole[:N].reshape(N, 1), whole[:1]):
            c = device_view_library.view(whole, view)
            for call in (made, lambda *args, **results: interop.explain(made, *args, **results)):  # noqa: B023
                with pytest.raises(
                    ValueError, match=r"^interop.kernel\('add'\): c has shape .*; accepted: .*\(1000,\)"
                ):
                    call(a, b, N, c=c)
            assert not device_view_library.to_numpy(c).any()
        with pytest.raises(ValueError, match=r"c is .*strides \(2,\).*accepted: a C-contiguous"):
            made(a, b, N, c=device_view_library.view(whole, whole[::2]))
        with pytest.raises(TypeError, match="c is float64 .*accepted: a C-contiguous float32"):
            made(a, b, N, c=device_view_library.make(np.zeros(N)))
        c = device_view_library.view(whole, whole[N:])
        assert made(a, n=N, c=c, b=b) is c
        np.testing.assert_array_equal(device_view_library.to_numpy(c), A + B)


def test_a_given_result_has_the_shape_of_its_rule_on_the_host(add):
    made = add.returning(c="a")
    whole = np.zeros(2 * N, "float32")
    for c in (whole[: N // 2], whole, whole[:N].reshape(1, N)):
        with pytest.raises(ValueError, match=r"c has shape .*; accepted: .*\(1000,\)"):
            made(A, B, N, c=c, execution="cuda")
    assert not whole.any()
    made(A, B, N, c=whole[N:], execution="cuda")
    np.testing.assert_array_equal(whole, [0] * N + [*(A + B)])


def test_a_given_view_has_the_shape_of_its_rule(cupy):
    transpose = interop.kernel(TRANSPOSE, "transpose<float>", threads=lambda x: x.shape, block=(16, 8))
    made = transpose.returning(y=lambda x: x.shape[::-1])
    x = cupy.arange(12, dtype="float32").reshape(3, 4)
    whole = cupy.zeros((8, 8), "float32")
    for y in (whole[:3, :4], whole[:4, :2], whole):
        with pytest.raises(ValueError, match=r"y has shape .*; accepted: the shape that returning\(\) says, \(4, 3\)"):
            made(x, y=y)
    assert not whole.any()
    y = whole[::2, 1:7:2]  # any strides
    assert made(x, y=y) is y
    assert (y == x.T).all()
    assert whole.sum() == x.sum()


def test_a_view_that_is_made_has_the_declared_dimensions(cupy):
    transpose = interop.kernel(TRANSPOSE, "transpose<float>", threads=lambda x: x.shape, block=(16, 8))
    x = cupy.arange(12, dtype="float32").reshape(3, 4)
    for shape, text in ((12, r"\(12,\)"), ((), r"\(\)"), ((4, 3, 1), r"\(4, 3, 1\)")):
        made = transpose.returning(y=lambda x: shape)  # noqa: B023
        for call in (made, lambda x: interop.explain(made, x)):  # noqa: B023
            with pytest.raises(ValueError, match=f"the shape of y is {text}; accepted: 2 dimensions"):
                call(x)
    source = "#include <interop/view.cuh>\n__global__ void f(const float* x, interop::View<float, 2> y) {}"
    with pytest.raises(ValueError, match=r"the shape of y is \(3,\); accepted: 2 dimensions"):
        interop.kernel(source, "f", grid=1).returning(y="x")(cupy.zeros(3, "float32"))


def test_host_arrays_are_told_of_execution(add):
    with pytest.raises(TypeError, match=r'a is float32 .* on cpu; accepted: .* or execution="cuda"'):
        add(A, B, A.copy(), N)


# ---- the launch ----


SHARED = """
extern "C" __global__ void reverse(const float* x, float* y, int n) {
  extern __shared__ float kept[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) kept[i] = x[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = kept[n - 1 - i];
}
extern "C" __global__ void own(float* y) {
  __shared__ float kept[10000];
  for (int i = threadIdx.x; i < 10000; i += blockDim.x) kept[i] = i;
  __syncthreads();
  extern __shared__ float more[];
  more[threadIdx.x] = kept[threadIdx.x + 9000];
  __syncthreads();
  y[threadIdx.x] = more[threadIdx.x];
}
"""


def test_shared_memory_beyond_what_every_kernel_may_have(cupy):
    reverse = interop.kernel(SHARED, "reverse", grid=1)
    for n in (1000, 15000, 12500, 100):  # 60 KB are more than 48
        x = cupy.arange(n, dtype="float32")
        y = cupy.zeros(n, "float32")
        reverse(x, y, n, shared=4 * n)
        assert (y == x[::-1]).all()
    y = cupy.zeros(256, "float32")
    interop.kernel(SHARED, "own", grid=1, block=256, shared=12000)(y)  # 12000 beside 40000
    assert (y == cupy.arange(9000, 9256)).all()


def test_too_much_of_anything_is_named(add, cupy):
    x = cupy.zeros(N, "float32")
    reverse = interop.kernel(SHARED, "reverse", grid=1)
    for made, options, message in (
        (
            reverse,
            {"shared": 10**6},
            r"shared is 1000000 bytes, beside 0 that .*; accepted: up to \d+",
        ),
        (reverse, {"block": (2048, 1, 1)}, r"block is \(2048, 1, 1\); accepted: up to \(1024, 1024, 64\)"),
        (reverse, {"block": (64, 32)}, r"block is \(64, 32, 1\), 2048 threads; accepted: up to 1024"),
        (reverse, {"grid": (1, 70000)}, r"grid is \(1, 70000, 1\); accepted: up to \(2147483647, 65535, 65535\)"),
    ):
        with pytest.raises(ValueError, match=r"interop.kernel\('reverse'\): " + message):
            made(x, x, 1, **options)
    source = "__global__ void __launch_bounds__(128) f(float* x) {}"
    with pytest.raises(ValueError, match="block is .*, 256 threads; accepted: up to 128, by the device, the kernel's"):
        interop.kernel(source, "f", grid=1)(x)
    add(x, x, x, N)  # the context still works


def test_a_first_call_in_a_capture_that_needs_much_shared_memory(torch):
    reverse = interop.kernel(SHARED, "reverse", grid=1)
    x, y = torch.arange(20000, device="cuda", dtype=torch.float32), torch.zeros(20000, device="cuda")
    with graphs.captured(torch) as graph:
        reverse(x, y, 20000, shared=80000)  # compiled, loaded and allowed in the capture
    assert not y.any()
    graph.replay()
    assert (y == x.flip(0)).all()


CLUSTER = """
extern "C" __global__ void ranks(int* y) {
  unsigned rank, size;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  y[blockIdx.x] = 100 * size + rank;
}
"""


def has_clusters():
    info = interop._core.machine_info()["devices"][0]
    return info["compute_capability"] >= (9, 0)


def test_clusters(cupy):
    if not has_clusters():
        pytest.skip("this GPU has no clusters of thread blocks")
    y = cupy.zeros(16, "int32")
    ranks = interop.kernel(CLUSTER, "ranks", grid=16, block=32)
    ranks(y, cluster=2)
    assert y.tolist() == [200, 201] * 8
    ranks(y, cluster=(8, 1, 1))
    assert y.tolist() == [*range(800, 808)] * 2
    ranks(y, cluster=16)  # more than is portable
    assert y.tolist() == [*range(1600, 1616)]
    y.fill(-1)
    ranks(y, threads=5 * 32, cluster=4)  # 5 blocks are 2 clusters
    assert y.tolist() == [*range(400, 404)] * 2 + [-1] * 8
    with pytest.raises(ValueError, match=r"grid is \(16, 1, 1\); accepted: whole clusters, of \(3, 1, 1\) blocks"):
        ranks(y, cluster=3)
    with pytest.raises(ValueError, match=r"cluster is \(32, 1, 1\); accepted: up to 8 blocks"):
        ranks(y, grid=32, cluster=32)


COOPERATIVE = """
#include <cooperative_groups.h>
extern "C" __global__ void total(const float* x, float* partial, float* y) {
  partial[blockIdx.x] = x[blockIdx.x];
  cooperative_groups::this_grid().sync();
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    *y = 0;
    for (int i = 0; i < gridDim.x; ++i) *y += partial[i];
  }
}
"""


@pytest.mark.usefixtures("_cuda_headers")
def test_cooperative_launches(cupy):
    total = interop.kernel(COOPERATIVE, "total", cooperative=True, block=32)
    x = cupy.arange(64, dtype="float32")
    y = cupy.zeros(1, "float32")
    total(x, cupy.zeros(64, "float32"), y, grid=64)
    assert y.item() == 64 * 63 / 2
    large = cupy.zeros(10**6, "float32")
    with pytest.raises(ValueError, match=r"grid is .*1000000 blocks; accepted: up to \d+, which run at once"):
        total(large, large, y, grid=10**6)


# ---- streams, captures, lifetime ----


def test_it_runs_on_the_callers_stream(add, cupy):
    a, b, c = cupy.zeros(N, "float32"), cupy.asarray(B), cupy.zeros(N, "float32")
    ones = cupy.asarray(A)
    add(a, b, c, N)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        device.delay(stream.ptr, 50)
        a[...] = ones  # behind the delay: the sum must be, too
        add(a, b, c, N)
    assert not stream.done
    stream.synchronize()
    np.testing.assert_array_equal(c.get(), A + B)


def test_stream_is_given(add, torch):
    stream = torch.cuda.Stream()
    a, b = torch.from_numpy(A).cuda(), torch.from_numpy(B).cuda()
    result = add.returning(c="a")(a, b, N, stream=stream)
    stream.synchronize()
    np.testing.assert_array_equal(result.cpu().numpy(), A + B)


def test_inputs_may_go_at_once(add, jax):
    result = add.returning(c="a")(jax.numpy.asarray(A), jax.numpy.asarray(B), N)
    np.testing.assert_array_equal(np.asarray(result), A + B)
    assert isinstance(result, jax.Array)


def test_a_first_call_in_a_capture(torch):
    source = ADD.replace("a[i] + b[i]", "a[i] * b[i] + 3")  # which no other test has compiled
    multiply = interop.kernel(source, "add", threads="a").returning(c="a")
    a, b = torch.from_numpy(A).cuda(), torch.from_numpy(B).cuda()
    with graphs.captured(torch) as graph:
        c = multiply(a, b, N)
    a.fill_(2)
    graph.replay()
    assert (c == 2 * b + 3).all()


def test_kernels_are_loaded_from_the_cache(tmp_path, cupy):
    code = textwrap.dedent("""
        import cupy, interop
        from interop._cuda import nvrtc
        if {cached}:
            nvrtc.compile_source = None
        f = interop.kernel("__global__ void f(int* x) {{ *x = 7; }}", "f", grid=1, block=1)
        x = cupy.zeros(1, "int32")
        f(x)
        assert x.item() == 7
    """)
    environment = {**os.environ, "INTEROP_CACHE_DIR": str(tmp_path)}
    for cached in (False, True):
        command = [sys.executable, "-c", code.format(cached=cached)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr


def test_explain(add, cupy):
    c = cupy.zeros(N, "float32")
    plan = interop.explain(add, cupy.asarray(A), cupy.asarray(B), c, N, block=128)
    assert plan.function == "interop.kernel('add')"
    assert [argument.name for argument in plan.arguments] == ["a", "b", "c"]
    assert plan.algorithm.startswith("add(const float* a, ")
    assert plan.algorithm.endswith(", grid (8, 1, 1), block (128, 1, 1)")
    assert not c.any()
    made = interop.explain(add.returning(c="a"), cupy.asarray(A), cupy.asarray(B), N, threads=lambda a, b, n: n)
    assert made.result_shape == (N,)
    assert "grid (4, 1, 1)" in made.algorithm


# ---- faults ----


def test_a_fault_is_reported_as_what_it_is(tmp_path, cupy):
    code = textwrap.dedent("""
        import os, time, cupy, interop
        source = 'extern "C" __global__ void bad(long long* x) { *(int*)1234567890123456ll = 1; }'
        bad = interop.kernel(source, "bad", grid=1, block=1)
        good = interop.kernel("__global__ void good(long long* x) { *x = 3; }", "good", grid=1, block=1)
        x = cupy.zeros(1, "int64")
        good(x)
        bad(x)
        time.sleep(0.5)
        for call in (lambda: good(x), lambda: interop.add(x, x, out=x)):
            try:
                call()
            except interop.CudaError as error:
                message = str(error)
                assert "an earlier asynchronous error: CUDA_ERROR_ILLEGAL_ADDRESS" in message, message
                assert "(the last kernel that a user wrote was interop.kernel('bad'))" in message, message
                assert "CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer" in message, message
                assert "the context can run nothing more" in message, message
            else:
                raise AssertionError("no error")
        print("reported", flush=True)
        os._exit(0)
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "reported\n"


@pytest.mark.multi_gpu
def test_it_runs_on_the_device_of_the_arrays(add, cupy, two_cuda_devices):
    for k in (*two_cuda_devices, two_cuda_devices[0]):
        with cupy.cuda.Device(k):
            result = add.returning(c="a")(cupy.asarray(A), cupy.asarray(B), N)
            assert result.device.id == k
            np.testing.assert_array_equal(result.get(), A + B)
