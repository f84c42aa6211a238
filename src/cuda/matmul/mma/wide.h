/// float64, complex128 and TF32 products on the tensor cores of sm_80 and later, by mma.sync. Private to src/cuda.
#pragma once

#include <interop/cuda/matmul.h>

#include <cuda_runtime.h>

#include <string>

#include "cuda/matmul/choosing.h"

namespace interop::cuda::mma_wide {

/// Do these kernels serve the product? For `exact`, both operands are float64 or both complex128; for `tf32`, both are
/// float32. The device has compute capability 8.0 or more, and this build has code for it. There is something to
/// compute, and k >= 1. All arrays may have any strides.
bool serves(const Gemm& gemm, MatmulPrecision precision, const Device& device);

/// The quickest of the dtype's tiles, all of which compute any product that is served.
Estimate choose(const Gemm& gemm, const Device& device);
/// float32 is rounded to TF32. Sums have the result's dtype and one fixed order; each product of float64 is added, and
/// rounded, as fma does it.
void launch_variant(int variant, const Gemm& gemm, cudaStream_t stream);
/// "mma 64x128x16, float64".
std::string describe(const Gemm& gemm, int variant);

int variant_count(DLDataType dtype);
const char* variant_name(DLDataType dtype, int variant);

}  // namespace interop::cuda::mma_wide
