// The tiled kernels of float32.
#include "cuda/matmul/tiled/kernel.cuh"

namespace interop::cuda::tiled {
namespace {

// clang-format off
//                              T  M  N  K  stages  warp  thread  blocks an SM
using Large = Shape<float,  128, 128, 16, 2,  64, 32,  8, 8,  2>;
using Medium = Shape<float,  64,  64,  8, 4,  32, 32,  8, 4,  4>;
using Narrow = Shape<float,  32,  64, 16, 4,  32, 16,  4, 4,  6>;
using Small = Shape<float,   32,  32, 16, 4,  32, 16,  4, 4,  8>;
// clang-format on

}  // namespace

Variants float32_variants() {
  static const Variant variants[] = {variant_of<Large, true>("128x128x16", rates::kFloat32_128x128),
                                     variant_of<Medium, true>("64x64x8", rates::kFloat32_64x64),
                                     variant_of<Narrow, false>("32x64x16", rates::kFloat32_32x64),
                                     variant_of<Small, false>("32x32x16", rates::kFloat32_32x32)};
  return {variants, 4};
}

}  // namespace interop::cuda::tiled
