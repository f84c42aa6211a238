/// What all elementwise kernels share of their arguments. Includes only such headers: NVRTC compiles this text as it
/// stands, with int64_t declared before it.
#pragma once

#include "cuda/elementwise/divisor.h"

namespace interop::cuda::elementwise {

/// How an input is read along the last dimension.
enum class Access : int {
  value,   ///< one value for the whole call, in the arguments
  splat,   ///< one element for a whole row
  unit,    ///< element after element
  strided  ///< with a stride
};

constexpr int kOuterDims = 5;  // of one launch; further ones are walked by the launcher
constexpr int kThreads = 256;  // of a block

}  // namespace interop::cuda::elementwise
