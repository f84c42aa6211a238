/// float64, complex128 and TF32 products on the tensor cores of sm_80 and later, by mma.sync. Private to src/cuda.
#pragma once

#include <interop/cuda/matmul.h>

#include <string>

namespace interop::cuda::mma_wide {

/// Two operands of float64 or two of complex128, for `exact`; two of float32, for `tf32`. On a device of compute
/// capability 8.0 or more for which this build has such code. There is something to compute, and k >= 1. All arrays may
/// lie as they like.
bool serves(const Gemm& gemm, MatmulPrecision precision);

/// `serves(gemm, precision)` is true; float32 is rounded to TF32. Sums of the result's dtype, in one fixed order; each
/// product of float64 is added, and rounded, as fma does it.
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
