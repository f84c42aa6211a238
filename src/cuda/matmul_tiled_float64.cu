// The tiled kernels of float64.
#include "cuda/matmul_tiled_kernel.cuh"

namespace interop::cuda::tiled {
namespace {

// clang-format off
//                              T  M  N  K  stages  warp  thread  blocks an SM
using Large = Shape<double, 128, 64, 8, 3,  64, 32,  8, 8,  2>;
using Small = Shape<double,  32, 32, 8, 4,  32, 16,  4, 4,  6>;
// clang-format on

}  // namespace

Variants float64_variants() {
  static const Variant variants[] = {variant_of<Large, true>("128x64x8", 0.70, 0.30),
                                     variant_of<Small, false>("32x32x8", 0.35, 0.50)};
  return {variants, 2};
}

}  // namespace interop::cuda::tiled
