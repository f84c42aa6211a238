/// Operands made what the tensor-core kernels of sm_90 read: rows of k that start at multiples of 128 bytes. Private to
/// src/cuda.
#pragma once

#include <interop/gemm.h>

#include <cstddef>
#include <cstdint>

typedef struct CUstream_st* cudaStream_t;

namespace interop::cuda {

/// What each element becomes. A row has one plane of k elements, or several, one after the other.
enum class Packed {
  tf32,         ///< float32 rounded to TF32
  tf32_in_two,  ///< float32 as the sum of two: a plane of high parts, and one of low parts
  bits_16,      ///< as it is
  bytes         ///< an integer's lowest bytes, the next ones, and so on, as many as the result has
};

constexpr int kPackedBatchDims = 4;

/// One operand of a product: matrices of (mn, k), where mn is m for a and n for b. Strides in elements.
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

  /// Bytes that an element has in a plane.
  int packed_item() const { return as == Packed::bytes ? 1 : item; }
  /// Elements of a plane: k, and zeros up to whole lines of the cache.
  int64_t plane() const;
  int64_t row() const { return planes * plane(); }
  int64_t matrices() const;
  std::size_t bytes() const { return static_cast<std::size_t>(matrices() * mn * row() * packed_item()); }
};

Packing packing_of_a(const Gemm& gemm, Packed as);
Packing packing_of_b(const Gemm& gemm, Packed as);

/// Do the batches of those operands that are to be packed have few enough dimensions?
bool can_pack(const Gemm& gemm, bool packs_a, bool packs_b);
/// The workspace that this takes.
std::size_t packed_bytes(const Gemm& gemm, bool packs_a, bool packs_b, Packed as);
/// Queues the copies as one kernel, and has `gemm` read those: strides are then of packed elements.
void pack(Gemm& gemm, bool packs_a, bool packs_b, Packed as, void* workspace, cudaStream_t stream);

}  // namespace interop::cuda
