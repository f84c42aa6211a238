/// float16 and bfloat16 products on the tensor cores of sm_80 and later, by mma.sync. Private to src/cuda.
#pragma once

#include <interop/cuda/matmul.h>

#include <string>

namespace interop::cuda::mma {

/// Two operands of float16 or two of bfloat16, a result of their dtype or float32, on a device of compute
/// capability 8.0 or more for which this build has such code. There is something to compute, and k >= 1. One unit
/// stride in each of a and b; the addresses and all other strides are multiples of 4 bytes, of any sign, or 0. All that
/// has the result's shape may lie as it likes.
bool serves(const Gemm& gemm);

/// `serves(gemm)` is true. Accumulates in float32, in one fixed order.
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
