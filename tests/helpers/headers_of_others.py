"""Headers after the pattern of projects that wrap CUDA by hand, and where this machine has those of others."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

#: A product by tiles: a template of a kernel, macros, and what launches it.
TILED_MULTIPLY = """
#pragma once
#include <cuda_runtime.h>
#include <stdexcept>
#define TILE_WIDTH 16
#define CHECK(call) do { if ((call) != cudaSuccess) throw std::runtime_error("CUDA"); } while (0)

template <typename T>
__global__ void tiledMultiplyKernel(const T* A, const T* B, T* C, int m, int n, int k) {
  __shared__ T tile[TILE_WIDTH][TILE_WIDTH];
  if (k) { tile[threadIdx.y][threadIdx.x] = A[0]; }
}
template <typename T>
void launchTiled(const T* A, const T* B, T* C, int m, int n, int k);

/* C = A * B; all on the host, row by row. */
void tiledMultiply(float* A, float* B, float* C, int m, int n, int k);
"""
#: A product by cuBLAS.
CUBLAS_MULTIPLY = """
#ifndef CUBLAS_MULTIPLY_H
#define CUBLAS_MULTIPLY_H
#include <cublas_v2.h>
#include <vector>

class Handle {
 public:
  Handle();
  ~Handle();
  cublasHandle_t get() const { return handle; }

 private:
  cublasHandle_t handle;
};
void multiplyAll(const std::vector<float>& A, const std::vector<float>& B, std::vector<float>& C);
cublasStatus_t cuBLASMultiply(const float* A, const float* B, float* C, const float *alpha, int m, int n, int k = 1);
cublasStatus_t multiplyWith(cublasHandle_t handle, const float* A, float* C, int n);
#endif  // CUBLAS_MULTIPLY_H
"""
#: A calculator, with the kernels and what launches them in one file.
MY_CUDA = r"""
#ifndef MY_CUDA_CUH
#define MY_CUDA_CUH
#include <cuda.h>
#include <cuda_runtime.h>
#include <stdio.h>
#define gpuErrchk(ans) { gpuAssert((ans), __FILE__, __LINE__); }
inline void gpuAssert(cudaError_t code, const char *file, int line, bool abort = true) {
  if (code != cudaSuccess) { fprintf(stderr, "GPUassert: %s %s %d\n", cudaGetErrorString(code), file, line); }
}
__device__ __forceinline__ int add_on_gpu(int a, int b) { return a + b; }
__host__ __device__ int clamp(int a);
__global__ void add_kernel(int *a, int *b, int *c);
__constant__ int factors[16];
namespace pipcudemo {
  int add(int a, int b);
  int subtract(int a, int b);
  extern "C" void sum(const float* a, const float* b, float* c, int n);
}
#endif
"""
#: Elementwise operations on vectors in managed memory.
ELEMWISE = """
#ifndef ELEMWISE_H
#define ELEMWISE_H
#include <cstddef>
#include <cuvec.cuh>
namespace numcu {
typedef enum { NC_OK = 0, NC_MEMORY = 2 } nc_status;
nc_status add(float *dst, const float *src_x, const float *src_y, const std::size_t N, bool sync = true);
nc_status div(float* dst, const float* src_x, const float* src_y, std::size_t N, float zeroDivDefault,
              bool sync = true);
float *elem_add(float *dst, float *src_x, float *src_y, std::size_t N);
const char *version() noexcept;
CuVec<float> operator+(const CuVec<float>& x, const CuVec<float>& y);
}
#endif
"""
#: What a library for the host does behind these headers.
SOURCE = r"""
#include <cstddef>
void tiledMultiply(float* A, float* B, float* C, int m, int n, int k) {
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      C[i * n + j] = 0;
      for (int p = 0; p < k; ++p) C[i * n + j] += A[i * k + p] * B[p * n + j];
    }
}
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_INVALID_VALUE = 7 };
cublasStatus_t cuBLASMultiply(const float* A, const float* B, float* C, const float* alpha, int m, int n, int k) {
  if (m < 0) return CUBLAS_STATUS_INVALID_VALUE;
  for (int i = 0; i < m * n * k; ++i) C[i] = *alpha * A[i] * B[i];
  return CUBLAS_STATUS_SUCCESS;
}
namespace pipcudemo {
int add(int a, int b) { return a + b; }
int subtract(int a, int b) { return a - b; }
extern "C" void sum(const float* a, const float* b, float* c, int n) { while (n--) c[n] = a[n] + b[n]; }
}
namespace numcu {
typedef enum { NC_OK = 0, NC_MEMORY = 2 } nc_status;
nc_status add(float* d, const float* x, const float* y, const std::size_t n, bool) {
  for (std::size_t i = 0; i < n; ++i) d[i] = x[i] + y[i];
  return n ? NC_OK : NC_MEMORY;
}
nc_status div(float* d, const float* x, const float* y, std::size_t n, float zero, bool) {
  for (std::size_t i = 0; i < n; ++i) d[i] = y[i] ? x[i] / y[i] : zero;
  return NC_OK;
}
float* elem_add(float* d, float*, float*, std::size_t) { return d; }
const char* version() noexcept { return "1.2"; }
}
"""


def find(name: str) -> Path | None:
    """Return a header of the system, of a CUDA toolkit, or of one of NVIDIA's wheels; None if it is absent."""
    folders = [Path("/usr/include"), Path("/usr/include", sysconfig.get_config_var("MULTIARCH") or "")]
    folders += [Path("/usr/local/cuda/include"), *Path("/usr/local").glob("cuda-*/include")]
    folders += [folder for path in sys.path for folder in Path(path).glob("nvidia/*/include")]
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def library_of(header: Path, pattern: str) -> Path | None:
    """Return the shared library beside a header of NVIDIA's, as in lib or lib64; None if it is absent."""
    roots = [header.parents[1], *(header.parents[1] / "targets").glob("*-linux")]
    found = [file for root in roots for folder in ("lib", "lib64") for file in sorted((root / folder).glob(pattern))]
    return found[0] if found else None
