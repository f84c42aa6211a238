/// Packs operands into what the tensor-core kernels of sm_90 read: rows of k that start at multiples of 128 bytes.
/// Private to src/cuda.
#pragma once

#include <interop/gemm.h>

#include <cstddef>
#include <cstdint>

typedef struct CUstream_st* cudaStream_t;

namespace interop::cuda {

/// How an element is packed. A packed row is one plane of k elements, or several planes, one after the other.
enum class Packed {
  tf32,         ///< float32 rounded to TF32
  tf32_in_two,  ///< float32 as the sum of two TF32 numbers: a plane of high parts, and one of low parts
  bits_16,      ///< unchanged
  bytes         ///< a plane for each byte of an integer, lowest first, as many as the result has bytes
};

constexpr int kPackedBatchDims = 4;

/// One operand of a product: matrices of (mn, k), where mn is m for a and n for b. Strides count elements.
struct Packing {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t mn = 0, k = 0, mn_stride = 0, k_stride = 0;
  int batch_ndim = 0;  // dimensions that the operand varies along, the innermost last
  int64_t batch_sizes[kPackedBatchDims] = {}, batch_strides[kPackedBatchDims] = {};
  Packed as = Packed::tf32;
  int item = 0;  // bytes of an element
  int planes = 1;
  bool is_bool = false;

  /// The bytes of an element in a plane.
  int packed_item() const { return as == Packed::bytes ? 1 : item; }
  /// The elements of a plane: k, padded with zeros to whole cache lines.
  int64_t plane() const;
  int64_t row() const { return planes * plane(); }
  int64_t matrices() const;
  std::size_t bytes() const { return static_cast<std::size_t>(matrices() * mn * row() * packed_item()); }
};

Packing packing_of_a(const Gemm& gemm, Packed as);
Packing packing_of_b(const Gemm& gemm, Packed as);

/// Do the batches of the operands to be packed have few enough dimensions?
bool can_pack(const Gemm& gemm, bool packs_a, bool packs_b);
/// The workspace that packing takes, in bytes.
std::size_t packed_bytes(const Gemm& gemm, bool packs_a, bool packs_b, Packed as);
/// Queues one kernel that packs the operands, and points `gemm` at the copies. Its strides then count packed elements.
void pack(Gemm& gemm, bool packs_a, bool packs_b, Packed as, void* workspace, cudaStream_t stream);

}  // namespace interop::cuda
