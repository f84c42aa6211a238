/// float16 and bfloat16 products on the tensor cores of sm_80 and later, by mma.sync. Private to src/cuda.
#pragma once

#include <interop/gemm.h>

#include <cuda_runtime.h>

#include <string>

#include "cuda/matmul/choosing.h"

namespace interop::cuda::mma {

/// Do these kernels serve the product? Both operands are float16 or both bfloat16, and the result has their dtype or is
/// float32. The device has compute capability 8.0 or more, and this build has code for it. There is something to
/// compute, and k >= 1. Each of a and b has one unit stride; its address and other strides are multiples of 4 bytes,
/// and the strides may be negative or 0. Arrays of the result's shape may have any strides.
bool serves(const Gemm& gemm, const Device& device);

/// The quickest of the tiles, all of which compute any product that is served.
Estimate choose(const Gemm& gemm, const Device& device);
/// Accumulates in float32, in one fixed order.
void launch_variant(int variant, const Gemm& gemm, cudaStream_t stream);
/// "mma 128x128x32, bfloat16".
std::string describe(const Gemm& gemm, int variant);

int variant_count();
const char* variant_name(int variant);

}  // namespace interop::cuda::mma
