"""`interop.load(header=)` on the GPU: a header with kernels and what launches them, and those of cuFFT and NCCL."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import c_functions, device, headers_of_others, libraries

import interop

pytestmark = pytest.mark.usefixtures("_reader_of_headers")

HEADER = r"""
#ifndef SUM_CUH
#define SUM_CUH
#include <cuda_runtime.h>
#define BLOCK 256
namespace vectors {
__global__ void sum_kernel(const float* a, const float* b, float* c, int n);
__host__ __device__ inline int blocks(int n) { return (n + BLOCK - 1) / BLOCK; }
cudaError_t sum(const float* a, const float* b, float* c, int n, cudaStream_t stream = nullptr);
cudaError_t scale(float* x, const float* alpha, int n, cudaStream_t stream);
void sum_on_default(float* a, float* b, float* c, int n);
cudaError_t fails(float* x);
}
#endif
"""
SOURCE = r"""
#include "sum.cuh"
namespace vectors {
__global__ void sum_kernel(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
cudaError_t sum(const float* a, const float* b, float* c, int n, cudaStream_t stream) {
  if (n > 0) sum_kernel<<<blocks(n), BLOCK, 0, stream>>>(a, b, c, n);
  return cudaGetLastError();
}
cudaError_t scale(float* x, const float* alpha, int n, cudaStream_t stream) {  // by 2, or not at all
  if (*alpha == 2.0f) sum_kernel<<<blocks(n), BLOCK, 0, stream>>>(x, x, x, n);
  return cudaGetLastError();
}
void sum_on_default(float* a, float* b, float* c, int n) { sum_kernel<<<blocks(n), BLOCK>>>(a, b, c, n); }
cudaError_t fails(float*) { return cudaErrorInvalidValue; }
}
"""
N = 1000
A = np.arange(N, dtype="float32")
B = np.full(N, 10, "float32")


@pytest.fixture(scope="module")
def lib(tmp_path_factory):
    folder = tmp_path_factory.mktemp("headers")
    (folder / "sum.cuh").write_text(HEADER)
    path = c_functions.build_cuda(folder, "libvectors", SOURCE)
    return interop.load(
        path,
        header=folder / "sum.cuh",
        memory="device",
        host={"vectors::scale": ("alpha",)},
        reads={"vectors::sum_on_default": ("a", "b")},
    )


@pytest.mark.parametrize("library", libraries.DEVICE, ids=repr)
def test_functions_of_a_header_take_any_array(lib, library):
    library.load()
    a, b = library.make(A), library.make(B)
    for function in (lib.sum, lib.sum_on_default):
        c = function.returning(c="a")(a, b, N)
        assert library.is_ours(c)
        np.testing.assert_array_equal(library.to_numpy(c), A + B)


def test_host_arrays_are_computed_on_the_gpu_when_asked(lib):
    np.testing.assert_array_equal(lib.sum.returning(c="a")(A, B, N, execution="cuda"), A + B)
    plan = interop.explain(lib.sum_on_default, A, B, A.copy(), N, execution="cuda")
    assert not any(copy.startswith(("a: from", "b: from")) for copy in plan.copies)  # they are only read


def test_work_is_on_the_callers_stream(lib, cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    a, ones = cupy.zeros(N, "float32"), cupy.asarray(A)
    c = cupy.zeros(N, "float32")
    lib.sum(a, a, c, N)
    cupy.cuda.Device().synchronize()
    with stream:
        device.delay(stream.ptr)
        a[...] = ones  # behind the delay: the sum must be, too
        lib.sum(a, a, c, N)
    assert not stream.done
    stream.synchronize()
    np.testing.assert_array_equal(c.get(), 2 * A)


def test_host_and_device_pointers_are_told_apart(lib, cupy):
    x = cupy.asarray(A)
    lib.scale(x, np.array([2], "float32"), N)
    np.testing.assert_array_equal(x.get(), 2 * A)
    with pytest.raises(TypeError, match="libvectors.vectors::scale: alpha is float32.* on cuda:0"):
        lib.scale(x, cupy.array([2], "float32"), N)


def test_statuses_and_reasons(lib, cupy):
    with pytest.raises(interop.CudaError, match="vectors::fails"):
        lib.fails(cupy.zeros(1, "float32"))
    assert "it is a kernel" in lib.refused["vectors::sum_kernel"]


# ---- those of others ----


def load(header, pattern, **options):
    found = headers_of_others.find(header)
    path = found and headers_of_others.library_of(found, pattern)
    if path is None:
        pytest.skip(f"this machine has no {header}, or no {pattern} beside it")
    return interop.load(path, header=found, **options)


@pytest.fixture(scope="module")
def cufft():
    return load(
        "cufft.h",
        "libcufft.so*",
        status={"cufftResult": 0},
        host={"cufftPlan1d": ("plan",), "cufftGetVersion": ("version",)},
        device={"cufftExecC2C": ("idata", "odata")},
        reads={"cufftExecC2C": ("idata",)},
    )


@pytest.mark.parametrize("library", libraries.DEVICE, ids=repr)
def test_cufft(cufft, library):
    """On the default stream, which and the call's wait for each other."""
    library.load()
    plan = np.zeros(1, "int32")
    cufft.cufftPlan1d(plan, N, 0x29, 1)
    x = (A + 1j * B).astype("complex64")
    y = cufft.cufftExecC2C.returning(odata="idata")(int(plan[0]), library.make(x), -1)
    assert library.is_ours(y)
    np.testing.assert_allclose(library.to_numpy(y), np.fft.fft(x), rtol=1e-3, atol=1)
    cufft.cufftDestroy(int(plan[0]))


def test_a_status_of_cufft_is_raised(cufft):
    with pytest.raises(RuntimeError, match=r"returned 1 \(CUFFT_INVALID_PLAN\), a cufftResult, of which success is 0"):
        cufft.cufftDestroy(12345)
    assert "there is a stream, and no device pointer" in cufft.refused["cufftSetStream"]
    assert all(".h:" in why for why in cufft.refused.values())


def test_nccl():
    lib = load("nccl.h", "libnccl.so*", status={"ncclResult_t": 0}, host={"ncclGetVersion": ("version",)})
    version = np.zeros(1, "int32")
    lib.ncclGetVersion(version)
    assert version[0] > 20000
    assert "error" in lib.ncclGetErrorString(1)
    assert "is a pointer to pointers" in lib.refused["ncclCommInitRank"] + lib.refused["ncclCommInitAll"]
    assert all(".h:" in why for why in lib.refused.values())
