"""Kernels such as users write, by their source, and what to give to them."""

from __future__ import annotations

import dataclasses

import numpy as np

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
TWICE = """
__global__ void twice(const float* a, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = 2 * a[i];
}
"""
#: The product of two matrices (16, 16) on tensor cores, by one warp.
MULTIPLY = """
#include <mma.h>
__global__ void multiply(const half* a, const half* b, float* c) {
  using namespace nvcuda;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> x;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> y;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> z;
  wmma::fill_fragment(z, 0.0f);
  wmma::load_matrix_sync(x, a, 16);
  wmma::load_matrix_sync(y, b, 16);
  wmma::mma_sync(z, x, y, z);
  wmma::store_matrix_sync(c, z, 16, wmma::mem_row_major);
}
"""


@dataclasses.dataclass(frozen=True)
class UnloadedLibrary:
    """For `_core.LoadedLibrary.load`: a library without a driver, whose kernels are itself and their symbols."""

    image: bytes
    origin: str
    has_variables: bool

    def kernel(self, symbol: str) -> tuple[UnloadedLibrary, str]:
        return self, symbol


def played(module: str, name: str, /, **attributes: object) -> type:
    """Return a type that is called as that of another library's kernels, for what is decided before any launch."""
    return type(name, (), {"__module__": module, **attributes})


SCALE = 'extern "C" __global__ void scale(const float* x, float* y, float* z, int n) {}'
PlayedRawKernel = played("cupy._core.raw", "RawKernel", name="scale", code=SCALE, enable_cooperative_groups=False)
