/// float16 and bfloat16 products on the tensor cores of sm_90. Private to src/cuda.
#pragma once

#include <interop/cuda/matmul.h>

#include <string>

namespace interop::cuda::wgmma {

/// Two operands of float16 or two of bfloat16, a result of their dtype or float32, on a device of compute capability
/// 9.0, if this build has code for it (90a). There is something to compute, and k >= 1. TMA reads a and b: one unit
/// stride in each, the other strides positive multiples of 16 bytes (0 for a broadcast batch), as are the addresses.
/// All that has the result's shape may lie as it likes.
bool serves(const Gemm& gemm);

/// `serves(gemm)` is true. Accumulates in float32, in one fixed order.
void launch(const Gemm& gemm, cudaStream_t stream);
/// About how long that takes on an H100, in microseconds.
double estimated_us(const Gemm& gemm);
/// "wgmma 128x256x64".
std::string describe(const Gemm& gemm);

/// The tiles to choose from, by name, for tests: all of them compute any product that is served.
int variant_count();
const char* variant_name(int variant);
void launch_variant(int variant, const Gemm& gemm, cudaStream_t stream);

}  // namespace interop::cuda::wgmma
