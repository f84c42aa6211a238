"""`interop.load` on the GPU: a vector sum in a library that nvcc built, called with arrays of every library."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import device

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
N = 1000
A = np.arange(N, dtype="float32")
B = np.full(N, 10, "float32")


def nvcc():
    found = shutil.which("nvcc")
    wheels = [Path(folder, "nvidia/cu13/bin/nvcc") for folder in sys.path]
    return found or next((str(path) for path in wheels if path.is_file()), None)


@pytest.fixture(scope="module")
def lib(tmp_path_factory):
    compiler = nvcc()
    if compiler is None:
        pytest.skip("no nvcc")
    folder = tmp_path_factory.mktemp("load")
    (folder / "sum.cu").write_text(SOURCE)
    libraries = Path(compiler).resolve().parents[1] / "lib"
    command = [compiler, "-shared", "-Xcompiler", "-fPIC", "-arch=native", "-cudart", "static", f"-L{libraries}"]
    subprocess.run([*command, folder / "sum.cu", "-o", folder / "libsum.so"], check=True)
    return interop.load(folder / "libsum.so", DECLARATIONS)


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
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        device.delay(stream.ptr, 50)
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
