// The tiled kernels of complex64 and complex128.
#include "cuda/matmul/tiled/kernel.cuh"

namespace interop::cuda::tiled {
namespace {

// clang-format off
//                                    T    M   N  K  stages  warp  thread  blocks an SM
using Large64 = Shape<Complex<float>,   128, 64, 8, 3,  64, 32,  8, 8,  2>;
using Medium64 = Shape<Complex<float>,   64, 64, 8, 3,  32, 32,  8, 4,  3>;
using Small64 = Shape<Complex<float>,    32, 32, 8, 4,  32, 16,  4, 4,  6>;
using Only128 = Shape<Complex<double>,   64, 32, 8, 3,  32, 16,  4, 4,  2>;
// clang-format on

}  // namespace

Variants complex64_variants() {
  static const Variant variants[] = {variant_of<Large64, false>("128x64x8", rates::kComplex64_128x64),
                                     variant_of<Medium64, false>("64x64x8", rates::kComplex64_64x64),
                                     variant_of<Small64, false>("32x32x8", rates::kComplex64_32x32)};
  return {variants, 3};
}

Variants complex128_variants() {
  static const Variant variants[] = {variant_of<Only128, false>("64x32x8", rates::kComplex128_64x32)};
  return {variants, 1};
}

}  // namespace interop::cuda::tiled
