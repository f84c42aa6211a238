/// How TMA reads the operands of a product of 16-bit floats or TF32. Private to src/cuda.
#pragma once

#include <interop/gemm.h>

#include "cuda/matmul/wgmma/launch.h"

namespace interop::cuda::wgmma {

/// One of a and b as a (mn, k) matrix for TMA: which of the two is its inner dimension, and the step of the other.
struct Layout {
  bool served = false, k_fast = false;
  int64_t outer_stride = 0;  // in elements
};

inline int64_t vector_of(const Gemm& gemm) { return 16 / item_bytes(gemm.dtype); }  // elements in 16 bytes

inline Layout layout_of(int64_t mn, int64_t k, int64_t mn_stride, int64_t k_stride, int64_t vector) {
  if (k == 1) k_stride = mn_stride == 1 ? vector : 1;  // the stride of a dimension of size 1 is not used
  if (mn == 1) mn_stride = k_stride == 1 ? vector : 1;
  if (k_stride == 1 && is_tma_stride(mn_stride, vector)) return {true, true, mn_stride};
  if (mn_stride == 1 && is_tma_stride(k_stride, vector)) return {true, false, k_stride};
  return {};
}

inline Layout layout_a(const Gemm& gemm) {
  return layout_of(gemm.m, gemm.k, gemm.a_strides.row, gemm.a_strides.column, vector_of(gemm));
}
inline Layout layout_b(const Gemm& gemm) {
  return layout_of(gemm.n, gemm.k, gemm.b_strides.column, gemm.b_strides.row, vector_of(gemm));
}

/// Does TMA read the operand? Its batch steps by `stride` of each dimension.
inline bool is_read(const Gemm& gemm, const void* data, const Layout& layout, int64_t BatchDim::* stride) {
  if (!is_tma_address(data) || !layout.served) return false;
  for (int i = 0; i < gemm.batch_ndim; ++i) {
    const int64_t step = gemm.batch[i].*stride;
    if (step != 0 && !is_tma_stride(step, vector_of(gemm))) return false;
  }
  return true;
}

inline bool is_bfloat16(const Gemm& gemm) { return gemm.dtype.code == kDLBfloat; }

inline bool has_16_bits(const Gemm& gemm) {
  const bool is_half = gemm.dtype.code == kDLFloat && gemm.dtype.bits == 16;
  if ((!is_half && !is_bfloat16(gemm)) || gemm.b_dtype != gemm.dtype) return false;
  return gemm.out_dtype == gemm.dtype || gemm.out_dtype == kFloat32;
}

}  // namespace interop::cuda::wgmma
