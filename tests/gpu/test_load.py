"""`interop.load` on the GPU: a vector sum in a library that nvcc built, called with arrays of every library."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import c_functions, device, graphs, libraries

import interop

SOURCE = r"""
#include <cuda_runtime.h>
__global__ void sum_kernel(const float* a, const float* b, float* c, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) c[i] = a[i] + b[i];
}
extern "C" cudaError_t sum(const float* a, const float* b, float* c, int n, cudaStream_t stream) {
  if (n > 0) sum_kernel<<<(n + 255) / 256, 256, 0, stream>>>(a, b, c, n);
  return cudaGetLastError();
}
extern "C" cudaError_t scale(float* x, const float* by, int n, cudaStream_t stream) {  // by: one number, on the host
  if (n > 0) sum_kernel<<<(n + 255) / 256, 256, 0, stream>>>(x, x, x, *by == 2.0f ? n : 0);
  return cudaGetLastError();
}
extern "C" cudaError_t too_large(float* x, cudaStream_t stream) {
  sum_kernel<<<1, 4096, 0, stream>>>(x, x, x, 1);
  return cudaGetLastError();
}
"""

DECLARATIONS = """
    cudaError_t sum(device const float* a, device const float* b, device float* c, int n, cudaStream_t stream);
    cudaError_t scale(device float* x, host const float* by, int n, cudaStream_t stream);
    cudaError_t too_large(device float* x, cudaStream_t stream);
"""
# Functions that are given no stream, and work for a while.
WITHOUT_STREAM = r"""
#include <cuda_runtime.h>
__global__ void wait_kernel(long long nanoseconds) {
  long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    __nanosleep(1000);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}
__global__ void sum_kernel(const float* a, const float* b, float* c, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) c[i] = a[i] + b[i];
}
static cudaError_t sum_on(cudaStream_t stream, const float* a, const float* b, float* c, int n, int milliseconds) {
  wait_kernel<<<1, 1, 0, stream>>>(1000000ll * milliseconds);
  sum_kernel<<<(n + 255) / 256, 256, 0, stream>>>(a, b, c, n);
  return cudaGetLastError();
}
static cudaStream_t stream_of(int which, unsigned flags) {
  static cudaStream_t streams[2];
  if (!streams[which]) cudaStreamCreateWithFlags(&streams[which], flags);
  return streams[which];
}
extern "C" cudaError_t on_default(const float* a, const float* b, float* c, int n, int milliseconds) {
  return sum_on(0, a, b, c, n, milliseconds);
}
extern "C" cudaError_t on_blocking(const float* a, const float* b, float* c, int n, int milliseconds) {
  return sum_on(stream_of(0, cudaStreamDefault), a, b, c, n, milliseconds);
}
extern "C" cudaError_t on_own(const float* a, const float* b, float* c, int n, int milliseconds) {
  const cudaStream_t stream = stream_of(1, cudaStreamNonBlocking);
  const cudaError_t status = sum_on(stream, a, b, c, n, milliseconds);
  cudaStreamSynchronize(stream);
  return status;
}
extern "C" cudaError_t elsewhere(const float* a, const float* b, float* c, int n, int milliseconds) {
  const cudaError_t status = sum_on(0, a, b, c, n, milliseconds);
  cudaSetDevice(1);
  return status;
}
"""
PARAMETERS = "device const float* a, device const float* b, device float* c, int n, int milliseconds"

N = 1000
A = np.arange(N, dtype="float32")
B = np.full(N, 10, "float32")


@pytest.fixture(scope="module")
def lib(tmp_path_factory):
    return interop.load(c_functions.build_cuda(tmp_path_factory.mktemp("load"), "libsum", SOURCE), DECLARATIONS)


@pytest.fixture(scope="module")
def without_stream(tmp_path_factory):
    """By name, functions that are given no stream, and choose one."""
    folder = tmp_path_factory.mktemp("without_stream")
    legacy = c_functions.build_cuda(folder, "liblegacy", WITHOUT_STREAM)
    per_thread = c_functions.build_cuda(folder, "libthread", WITHOUT_STREAM, "-default-stream", "per-thread")
    names = ("on_default", "on_blocking", "elsewhere")
    ordered = interop.load(legacy, "".join(f"cudaError_t {name}({PARAMETERS});" for name in names))
    return {
        "legacy": ordered.on_default,
        "per-thread": interop.load(per_thread, f"cudaError_t on_default({PARAMETERS});").on_default,
        "blocking": ordered.on_blocking,
        "own": interop.load(legacy, f"cudaError_t on_own({PARAMETERS});", streams="own").on_own,
        "elsewhere": ordered.elsewhere,
    }


DEFAULT_STREAMS = ("legacy", "per-thread", "blocking")
WITH_STREAMS = ("torch", "cupy", "numba")


def test_sum_of_every_library(lib, device_library):
    add = lib.sum.returning(c="a")
    result = add(device_library.make(A), device_library.make(B), N)
    assert device_library.is_ours(result)
    np.testing.assert_array_equal(device_library.to_numpy(result), A + B)


def test_a_given_array_is_written(lib, device_view_library):
    a, b, c = (device_view_library.make(x) for x in (A, B, np.zeros(N, "float32")))
    assert lib.sum(a, b, c, N) is None
    np.testing.assert_array_equal(device_view_library.to_numpy(c), A + B)


def test_it_runs_on_the_callers_stream(lib, cupy):
    a, b, c = cupy.zeros(N, "float32"), cupy.asarray(B), cupy.zeros(N, "float32")
    ones = cupy.asarray(A)
    lib.sum(a, b, c, N)  # modules are loaded
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        device.delay(stream.ptr)
        a[...] = ones  # behind the delay: the sum must be, too
        lib.sum(a, b, c, N)
    assert not stream.done
    stream.synchronize()
    np.testing.assert_array_equal(c.get(), A + B)


def test_stream_is_given(lib, cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    a, b = cupy.asarray(A), cupy.asarray(B)
    result = lib.sum.returning(c="a")(a, b, N, stream=stream)
    stream.synchronize()
    np.testing.assert_array_equal(result.get(), A + B)


def test_host_arrays_are_computed_on_the_gpu_when_asked(lib):
    result = lib.sum.returning(c="a")(A, B, N, execution="cuda")
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, A + B)
    c = np.zeros(N, "float32")
    lib.sum(A, B, c, N, execution="cuda")
    np.testing.assert_array_equal(c, A + B)


def test_device_and_host_pointers_in_one_function(lib, cupy):
    x = cupy.asarray(A)
    lib.scale(x, np.array([2], "float32"), N)
    np.testing.assert_array_equal(x.get(), 2 * A)
    with pytest.raises(TypeError, match=r"libsum.scale: by is float32.* on cuda:0; accepted: .* in host memory"):
        lib.scale(x, cupy.array([2], "float32"), N)


def test_a_host_array_is_no_device_pointer(lib, cupy):
    with pytest.raises(TypeError, match=r"libsum.sum: a is .* on cpu; accepted: .* on a CUDA device"):
        lib.sum(A, B, A.copy(), N)
    with pytest.raises(TypeError, match="b is in host memory"):
        lib.sum(cupy.asarray(A), B, cupy.asarray(A), N)


def test_views_are_refused(lib, cupy):
    x = cupy.zeros(2 * N, "float32")
    with pytest.raises(ValueError, match=r"libsum.sum: b is .*strides \(2,\).*accepted: a C-contiguous"):
        lib.sum(cupy.asarray(A), x[::2], cupy.asarray(A), N)


def test_a_returned_error_is_raised(lib, cupy):
    # The runtimes of CUDA 12 and 13 have different names for a block that is too large.
    names = "cudaErrorInvalidConfiguration|CUDA_ERROR_INVALID_VALUE"
    with pytest.raises(interop.CudaError, match=f"libsum.too_large: ({names})"):
        lib.too_large(cupy.zeros(1, "float32"))
    lib.sum(cupy.asarray(A), cupy.asarray(B), cupy.zeros(N, "float32"), N)  # the context still works


def test_inputs_may_go_at_once(lib, jax):
    add = lib.sum.returning(c="a")
    result = add(jax.numpy.asarray(A), jax.numpy.asarray(B), N)
    np.testing.assert_array_equal(np.asarray(result), A + B)
    assert isinstance(result, jax.Array)


def test_a_managed_array_is_no_host_pointer(lib, cupy):
    managed = cupy.ndarray((1,), "float32", cupy.cuda.malloc_managed(4))
    with pytest.raises(TypeError, match="libsum.scale: by is .*accepted: .* in host memory"):
        lib.scale(cupy.asarray(A), managed, N)


# ---- given results ----


def test_a_given_result_has_the_shape_of_its_rule(lib, device_view_library):
    whole = np.zeros(2 * N, "float32")
    a, b = device_view_library.make(A), device_view_library.make(B)
    for rule in ("a", lambda a, b, n: n):
        add = lib.sum.returning(c=rule)
        for view in (whole[: N // 2], whole[: N + 1], whole[:N].reshape(N, 1), whole[:1]):
            c = device_view_library.view(whole, view)
            for call in (add, lambda *args, **results: interop.explain(add, *args, **results)):  # noqa: B023
                with pytest.raises(ValueError, match=r"^libsum.sum: c has shape .*; accepted: .*\(1000,\)"):
                    call(a, b, N, c=c)
            assert not device_view_library.to_numpy(c).any()
        with pytest.raises(ValueError, match=r"^libsum.sum: c is .*strides \(2,\).*accepted: a C-contiguous"):
            add(a, b, N, c=device_view_library.view(whole, whole[::2]))
        c = device_view_library.view(whole, whole[N:])
        assert add(a, b, n=N, c=c) is c
        np.testing.assert_array_equal(device_view_library.to_numpy(c), A + B)


def test_a_given_result_has_the_shape_of_its_rule_on_the_host(lib):
    add = lib.sum.returning(c="a")
    whole = np.zeros(2 * N, "float32")
    for c in (whole[: N // 2], whole, whole[:N].reshape(1, N)):
        with pytest.raises(ValueError, match=r"^libsum.sum: c has shape .*; accepted: .*\(1000,\)"):
            add(A, B, N, c=c, execution="cuda")
    assert not whole.any()
    add(A, B, N, c=whole[N:], execution="cuda")
    np.testing.assert_array_equal(whole, [0] * N + [*(A + B)])


# ---- functions that are given no stream ----


LONGER = (
    3 * device.DELAY_MS
)  # than the functions themselves wait before they read: one that does not wait reads too early


def racing(function, side, **options):
    """Return what the side stream has in `c` right after the call, where all that it needs came right before."""
    a, b, c = side.make(np.zeros(N, "float32")), side.make(B), side.make(np.zeros(N, "float32"))
    snapshot = device.Snapshot((N,))
    with side.current():
        function(a, b, c, N, 0, **options)  # modules are loaded
        device.synchronize()
        device.fill(side.library.pointer(c), 0, N, side.handle)
        device.delay(side.handle, LONGER)
        device.fill(side.library.pointer(a), 3, N, side.handle)
        function(a, b, c, N, device.DELAY_MS, **options)
        was_busy = device.is_busy(side.handle)
        snapshot.take(side.library.pointer(c), side.handle)
    return snapshot.values(), was_busy


def on_gpu(name):
    library = libraries.by_name(name, "cuda")
    library.load()
    return library


@pytest.mark.parametrize("name", WITH_STREAMS)
@pytest.mark.parametrize("which", DEFAULT_STREAMS)
def test_a_function_without_a_stream_is_ordered_with_the_callers(without_stream, which, name):
    values, was_busy = racing(without_stream[which], device.Side(on_gpu(name)))
    assert (values == 13).all()
    assert was_busy  # the host has not waited


@pytest.mark.parametrize("which", DEFAULT_STREAMS)
def test_a_function_without_a_stream_is_ordered_with_a_stream_that_is_given(without_stream, which):
    side = device.Side(on_gpu("torch"))
    values, was_busy = racing(without_stream[which], side, stream=side.handle)
    assert (values == 13).all()
    assert was_busy


@pytest.mark.parametrize("stream", [device.LEGACY, device.PER_THREAD])
@pytest.mark.parametrize("which", DEFAULT_STREAMS)
def test_a_function_without_a_stream_is_ordered_with_default_streams(without_stream, which, stream, torch):
    side = device.Side(on_gpu("torch"))
    a, b, c = side.make(np.zeros(N, "float32")), side.make(B), side.make(np.zeros(N, "float32"))
    snapshot = device.Snapshot((N,))
    without_stream[which](a, b, c, N, 0)
    device.synchronize()
    device.fill(c.data_ptr(), 0, N, stream)
    device.synchronize()
    with side.current():
        device.delay(side.handle, LONGER)
        device.fill(a.data_ptr(), 3, N, side.handle)
        without_stream[which](a, b, c, N, device.DELAY_MS, stream=stream)
        snapshot.take(c.data_ptr(), stream)
    assert (snapshot.values() == 13).all()


@pytest.mark.parametrize("which", DEFAULT_STREAMS)
def test_inputs_of_a_function_without_a_stream_may_go_at_once(without_stream, which, jax):
    add = without_stream[which].returning(c="a")
    add(jax.numpy.asarray(A), jax.numpy.asarray(B), N, 0)
    result = add(jax.numpy.asarray(A), jax.numpy.asarray(B), N, device.DELAY_MS)
    others = [jax.numpy.full(N, 7, "float32") for _ in range(8)]  # in the memory of the inputs, were it free
    np.testing.assert_array_equal(np.asarray(result), A + B)
    del others


@pytest.mark.parametrize("which", [*DEFAULT_STREAMS, "own"])
def test_host_arrays_of_a_function_without_a_stream(without_stream, which):
    add = without_stream[which].returning(c="a")
    for milliseconds in (0, 100):
        np.testing.assert_array_equal(add(A, B, N, milliseconds, execution="cuda"), A + B)
    c = np.zeros(N, "float32")
    without_stream[which](A, B, c, N, 100, execution="cuda")
    np.testing.assert_array_equal(c, A + B)


@pytest.mark.parametrize("name", WITH_STREAMS)
def test_the_host_waits_before_a_function_with_streams_of_its_own(without_stream, name):
    values, was_busy = racing(without_stream["own"], device.Side(on_gpu(name)))
    assert (values == 13).all()
    assert not was_busy


@pytest.mark.parametrize("which", [*DEFAULT_STREAMS, "own"])
def test_a_function_without_a_stream_is_not_captured(without_stream, which, torch):
    function = without_stream[which]
    x, c = torch.ones(N, device="cuda"), torch.zeros(N, device="cuda")
    function(x, x, torch.empty_like(c), N, 0)
    torch.cuda.synchronize()
    with graphs.captured(torch) as graph:
        y = x + 1
        for call in (function, lambda *args: interop.explain(function, *args)):
            with pytest.raises(ValueError, match=r"^lib\w+.on_\w+: .* captured .*; accepted: .* type cudaStream_t"):
                call(x, x, c, N, 0)
    graph.replay()  # the capture was not broken
    torch.cuda.synchronize()
    assert (y == 2).all()
    assert not c.any()


def test_host_arrays_are_not_captured(lib, torch):
    x = torch.ones(N, device="cuda")
    with graphs.captured(torch) as graph:
        y = x + 1
        with pytest.raises(
            ValueError, match="^libsum.sum: execution is given, and the call's stream is being captured"
        ):
            lib.sum.returning(c="a")(A, B, N, stream=torch.cuda.current_stream(), execution="cuda")
    graph.replay()
    torch.cuda.synchronize()
    assert (y == 2).all()


def test_explain_says_how_a_function_without_a_stream_is_ordered(without_stream, lib, torch):
    x = torch.ones(N, device="cuda")
    arguments = (x, x, torch.zeros_like(x), N)
    with torch.cuda.stream(torch.cuda.Stream()):
        waits = interop.explain(without_stream["legacy"], *arguments, 0).waits
        assert waits == (
            "the legacy default stream, where the C function works, waits for the call's, which then waits for it",
        )
        waits = interop.explain(without_stream["own"], *arguments, 0).waits
        assert waits == ("the host waits for the call's stream, as the C function has streams of its own",)
        assert interop.explain(lib.sum, *arguments).waits == ()
    assert interop.explain(without_stream["legacy"], *arguments, 0, stream=device.LEGACY).waits == ()


@pytest.mark.multi_gpu
@pytest.mark.usefixtures("two_cuda_devices")
def test_a_function_may_leave_another_device_current(without_stream, torch):
    function, stream = without_stream["elsewhere"], device.new_stream()
    a, b, c = (torch.from_numpy(x).to("cuda:0") for x in (np.zeros(N, "float32"), B, np.zeros(N, "float32")))
    snapshot = device.Snapshot((N,))
    try:
        function(a, b, c, N, 0, stream=stream)
        device.synchronize()
        device.fill(c.data_ptr(), 0, N, stream)
        device.delay(stream)
        device.fill(a.data_ptr(), 3, N, stream)
        function(a, b, c, N, device.DELAY_MS, stream=stream)
        snapshot.take(c.data_ptr(), stream)
        assert (snapshot.values() == 13).all()
    finally:
        torch.cuda.set_device(0)


def test_a_stream_of_any_size_is_named(lib, cupy):
    x = cupy.asarray(A)
    with pytest.raises(ValueError, match="^libsum.sum: stream is an integer of 16610 bits; accepted: a CUDA stream"):
        lib.sum(x, x, x, N, stream=10**5000)
