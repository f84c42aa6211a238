// The tiled kernels of elements that are narrower than their sums: those are float32, or integers of 32 bits.
#include "cuda/matmul/tiled/kernel.cuh"

namespace interop::cuda::tiled {
namespace {

// clang-format off
//                              T  M  N  K  stages  warp  thread  blocks an SM
template <typename T, typename Source>
using Large = Shape<T, 64, 64, 16, 2,  32, 32,  8, 4,  4, Source>;
template <typename T, typename Source>
using Small = Shape<T, 32, 32, 16, 2,  32, 16,  4, 4,  8, Source>;
// clang-format on

}  // namespace

Variants float16_variants() {
  static const Variant variants[] = {variant_of<Large<float, uint16_t>, false>("64x64x16", rates::kNarrow_64x64),
                                     variant_of<Small<float, uint16_t>, false>("32x32x16", rates::kNarrow_32x32)};
  return {variants, 2};
}

Variants float8_variants() {
  static const Variant variants[] = {variant_of<Large<float, uint8_t>, false>("64x64x16", rates::kNarrow_64x64),
                                     variant_of<Small<float, uint8_t>, false>("32x32x16", rates::kNarrow_32x32)};
  return {variants, 2};
}

Variants int16_variants() {
  static const Variant variants[] = {variant_of<Large<uint32_t, uint16_t>, false>("64x64x16", rates::kNarrow_64x64),
                                     variant_of<Small<uint32_t, uint16_t>, false>("32x32x16", rates::kNarrow_32x32)};
  return {variants, 2};
}

Variants int8_variants() {
  static const Variant variants[] = {variant_of<Large<uint32_t, uint8_t>, false>("64x64x16", rates::kNarrow_64x64),
                                     variant_of<Small<uint32_t, uint8_t>, false>("32x32x16", rates::kNarrow_32x32)};
  return {variants, 2};
}

}  // namespace interop::cuda::tiled
