// The tiled kernels of 32-bit and 64-bit integers. Signed and unsigned ones wrap to the same bits.
#include "cuda/matmul/tiled/kernel.cuh"

namespace interop::cuda::tiled {
namespace {

// clang-format off
//                              T  M  N  K  stages  warp  thread  blocks an SM
using Large32 = Shape<uint32_t, 128, 128, 16, 2,  64, 32,  8, 8,  2>;
using Small32 = Shape<uint32_t,  32,  32, 16, 4,  32, 16,  4, 4,  8>;
using Large64 = Shape<uint64_t,  64,  64,  8, 3,  32, 32,  8, 4,  3>;
using Small64 = Shape<uint64_t,  32,  32,  8, 4,  32, 16,  4, 4,  6>;
// clang-format on

}  // namespace

Variants int32_variants() {
  static const Variant variants[] = {variant_of<Large32, true>("128x128x16", rates::kInt32_128x128),
                                     variant_of<Small32, false>("32x32x16", rates::kInt32_32x32)};
  return {variants, 2};
}

Variants int64_variants() {
  static const Variant variants[] = {variant_of<Large64, false>("64x64x8", rates::kInt64_64x64),
                                     variant_of<Small64, false>("32x32x8", rates::kInt64_32x32)};
  return {variants, 2};
}

}  // namespace interop::cuda::tiled
