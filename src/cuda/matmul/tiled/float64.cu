// The tiled kernel of float64, for small products and devices without float64 in their tensor cores.
#include "cuda/matmul/tiled/kernel.cuh"

namespace interop::cuda::tiled {
namespace {

// clang-format off
//                             T  M  N  K  stages  warp  thread  blocks an SM
using Only = Shape<double,  32, 32, 8, 4,  32, 16,  4, 4,  6>;
// clang-format on

}  // namespace

Variants float64_variants() {
  static const Variant variants[] = {variant_of<Only, false>("32x32x8", rates::kFloat64_32x32)};
  return {variants, 1};
}

}  // namespace interop::cuda::tiled
