/// Split-k: adds up the partial sums of a product's parts of k, and finishes it. Private to src/cuda.
#pragma once

#include <interop/gemm.h>

#include <cuda_runtime.h>

#include <cstddef>

namespace interop::cuda::tiled {

/// Is k long enough to be split, and are the outputs so few that their tiles may leave SMs idle?
bool may_divide(const Gemm& gemm);

/// The dtype of the partial sums: that in which the product accumulates.
inline DLDataType sum_dtype(const Gemm& gemm) { return factor_dtype(gemm.out_dtype); }

/// The bytes of the partial sums of `parts` parts: [part][matrix of the batch][row][column].
std::size_t partial_bytes(const Gemm& gemm, int parts);

/// Adds up the partial sums, in the order of the parts, and stores the result as `gemm` says. `gemm` has at most
/// kKernelBatchDims batch dimensions.
void launch_sum_of_parts(const Gemm& gemm, const void* partials, int parts, cudaStream_t stream);

}  // namespace interop::cuda::tiled
