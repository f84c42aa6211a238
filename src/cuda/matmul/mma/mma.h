/// float16 and bfloat16 products on the tensor cores of sm_80 and later, by mma.sync. Private to src/cuda.
#pragma once

#include <interop/cuda/matmul.h>

#include <string>

namespace interop::cuda::mma {

/// Do these kernels serve the product? Both operands are float16 or both bfloat16, and the result has their dtype or is
/// float32. The device has compute capability 8.0 or more, and this build has code for it. There is something to
/// compute, and k >= 1. Each of a and b has one unit stride; its address and other strides are multiples of 4 bytes,
/// and the strides may be negative or 0. Arrays of the result's shape may have any strides.
bool serves(const Gemm& gemm);

/// Requires `serves(gemm)`. Accumulates in float32, in one fixed order.
void launch(const Gemm& gemm, cudaStream_t stream);
/// About how long that takes on an H100, in microseconds.
double estimated_us(const Gemm& gemm);
/// "mma 128x128x32, bfloat16".
std::string describe(const Gemm& gemm);

/// The tiles to choose from, by name, for tests: all of them compute any product that is served.
int variant_count();
const char* variant_name(int variant);
void launch_variant(int variant, const Gemm& gemm, cudaStream_t stream);

}  // namespace interop::cuda::mma
