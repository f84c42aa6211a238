/// float64, complex128 and TF32 products on the tensor cores of sm_80 and later, by mma.sync. Private to src/cuda.
#pragma once

#include <interop/cuda/matmul.h>

#include <string>

namespace interop::cuda::mma_wide {

/// Do these kernels serve the product? For `exact`, both operands are float64 or both complex128; for `tf32`, both are
/// float32. The device has compute capability 8.0 or more, and this build has code for it. There is something to
/// compute, and k >= 1. All arrays may have any strides.
bool serves(const Gemm& gemm, MatmulPrecision precision);

/// Requires `serves(gemm, precision)`. float32 is rounded to TF32. Sums have the result's dtype and one fixed order;
/// each product of float64 is added, and rounded, as fma does it.
void launch(const Gemm& gemm, cudaStream_t stream);
/// About how long that takes on an H100, in microseconds.
double estimated_us(const Gemm& gemm);
/// "mma 64x128x16, float64".
std::string describe(const Gemm& gemm);

/// The tiles to choose from for this dtype, by name, for tests: all of them compute any product that is served.
int variant_count(DLDataType dtype);
const char* variant_name(DLDataType dtype, int variant);
void launch_variant(int variant, const Gemm& gemm, cudaStream_t stream);

}  // namespace interop::cuda::mma_wide
