/// A stream with a limit of time, and what fills arrays on it.
#pragma once

#include <interop/cuda/check.h>
#include <interop/tensor.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>

namespace interop::tests {

inline constexpr DLDataType kFloat16{kDLFloat, 16, 1};

/// A stream that waits for no other, made on first use and kept.
inline cudaStream_t stream() {
  static const cudaStream_t made = [] {
    cudaStream_t stream;
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return stream;
  }();
  return made;
}

// ---- waiting ----

inline double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Waits for all that the stream holds; ends the program, naming `what`, where that takes longer than any of it should.
inline void finish(const std::string& what) {
  static const cudaEvent_t event = [] {
    cudaEvent_t made;
    check_cuda(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    return made;
  }();
  check_cuda(cudaEventRecord(event, stream()), "cudaEventRecord");
  const double end = seconds() + 5;
  for (;;) {
    const cudaError_t status = cudaEventQuery(event);
    if (status != cudaErrorNotReady) return check_cuda(status, what.c_str());
    if (seconds() < end) continue;
    std::printf("HANGS: %s\n", what.c_str());
    std::fflush(stdout);
    std::_Exit(3);  // nothing that waits for the device
  }
}

// ---- filling ----

/// What an array is filled with: integers in [-3, 3], uniform values in [-1, 1], or ones.
enum class Values { integers, uniform, ones };

inline __device__ float random_value(uint64_t index, uint32_t seed, Values values) {
  if (values == Values::ones) return 1;
  uint64_t x = (index + 1) * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  x ^= x >> 31;
  if (values == Values::integers) return static_cast<int>(x % 7) - 3;
  return static_cast<int32_t>(x) / 2147483648.f;
}

template <typename T>
__device__ T to(double x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(static_cast<float>(x));
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

/// Matrices of a batch. Strides in elements.
struct Strided {
  int64_t rows, columns, row_stride, column_stride;
  int batch_ndim;
  int64_t sizes[4], strides[4];
};

inline __device__ int64_t batch_offset(const Strided& x, int64_t matrix) {
  int64_t offset = 0;
  for (int i = x.batch_ndim - 1; i >= 0; --i) {
    offset += matrix % x.sizes[i] * x.strides[i];
    matrix /= x.sizes[i];
  }
  return offset;
}

template <typename T>
__global__ void fill_kernel(T* data, Strided x, int64_t matrices, uint32_t seed, Values values) {
  const int64_t count = matrices * x.rows * x.columns;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t matrix = i / (x.rows * x.columns), at = i % (x.rows * x.columns);
    data[batch_offset(x, matrix) + at / x.columns * x.row_stride + at % x.columns * x.column_stride] =
        to<T>(random_value(i, seed, values));
  }
}

/// Queues it. A matrix that is the same along a dimension is filled once.
template <typename T>
void fill(T* data, Strided x, uint32_t seed, Values values) {
  int64_t own = 1;
  for (int i = 0; i < x.batch_ndim; ++i) {
    if (x.strides[i] == 0) x.sizes[i] = 1;
    own *= x.sizes[i];
  }
  fill_kernel<<<1024, 256, 0, stream()>>>(data, x, own, seed, values);
}

}  // namespace interop::tests
