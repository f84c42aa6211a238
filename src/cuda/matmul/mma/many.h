/// Batches of small products of 16-bit floats on the tensor cores of sm_80 and later, by mma.sync. Private to src/cuda.
#pragma once

#include <interop/gemm.h>

#include <cuda_runtime.h>

#include <string>

#include "cuda/matmul/choosing.h"

namespace interop::cuda::mma_many {

/// Does this kernel serve the products? There are at least 32 of them, with m and n of at most 32, and k of at most 64.
/// All three arrays are float16 or all bfloat16, and sums are stored unchanged. Each array has a unit stride, which is
/// along the rows of the result; its length along that is a multiple of 4, and its address and other strides are
/// multiples of 8 bytes. The device has compute capability 8.0 or more, and this build has code for it.
bool serves(const Gemm& gemm, const Device& device);

/// Accumulates in float32, in one fixed order.
void launch(const Gemm& gemm, cudaStream_t stream);
/// "mma many 16x16, bfloat16".
std::string describe(const Gemm& gemm);

}  // namespace interop::cuda::mma_many
