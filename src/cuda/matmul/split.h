/// Products whose k is divided into parts: the sums of the parts, added up and finished. Private to src/cuda.
#pragma once

#include <interop/gemm.h>

#include <cuda_runtime.h>

#include <cstddef>

namespace interop::cuda::tiled {

/// The most memory that the sums of the parts may take: they should stay in L2.
inline constexpr std::size_t kMostPartialBytes = std::size_t{32} << 20;

inline constexpr int kMostParts = 64;

/// Is k long enough to be divided, and are the outputs so few that their tiles may leave SMs idle?
bool may_divide(const Gemm& gemm);

/// What a product is added up in: the dtype of the sums of its parts.
inline DLDataType sum_dtype(const Gemm& gemm) { return factor_dtype(gemm.out_dtype); }

/// The bytes of the sums of so many parts: [part][matrix of the batch][row][column].
std::size_t partial_bytes(const Gemm& gemm, int parts);

/// Adds them up, in the order of the parts, and stores them as `gemm` says. It has at most kKernelBatchDims batch
/// dimensions.
void launch_sum_of_parts(const Gemm& gemm, const void* partials, int parts, cudaStream_t stream);

}  // namespace interop::cuda::tiled
