/// Float32 operands made what the TF32 kernels read: rows of k, rounded. Private to src/cuda.
#pragma once

#include <interop/cuda/matmul.h>

#include <cstddef>
#include <cstdint>

namespace interop::cuda {

constexpr int kPackedBatchDims = 4;

/// Floats that k of them take in a packed row: k, and zeros up to whole lines of the cache.
constexpr int64_t packed_plane(int64_t k) { return (k + 31) / 32 * 32; }

/// One operand of a product: matrices of (mn, k), where mn is m for a and n for b. Strides in elements.
struct Packing {
  const float* from = nullptr;
  float* to = nullptr;
  int64_t mn = 0, k = 0, mn_stride = 0, k_stride = 0;
  int batch_ndim = 0;  // dimensions that the operand varies along, the innermost last
  int64_t batch_sizes[kPackedBatchDims] = {}, batch_strides[kPackedBatchDims] = {};
  bool in_two = false;  // each element as the sum of two

  /// Floats in a row: one plane, or the high parts and then the low parts.
  int64_t row() const { return packed_plane(k) * (in_two ? 2 : 1); }
  int64_t matrices() const;
  std::size_t bytes() const { return static_cast<std::size_t>(matrices() * mn * row()) * sizeof(float); }
};

/// Queues the copies of `count` operands, 1 or 2, as one kernel: rows one after the other, then the matrices. None is
/// empty, and they have fewer than 2^31 tiles of 64 x 64 elements.
void launch_packing(const Packing* operands, int count, cudaStream_t stream);

}  // namespace interop::cuda
