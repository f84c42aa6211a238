/// Products with at most 16 rows or columns, which take as long as reading the larger operand. Private to src/cuda.
#pragma once

#include <interop/cuda/matmul.h>

#include <cstddef>
#include <string>

#include "cuda/matmul/choosing.h"

namespace interop::cuda::skinny {

/// Do these kernels serve the product? Both operands have one dtype of float16, bfloat16, float32 and float64, m or n
/// is at most 16, and the device has compute capability 8.0 or later. The larger operand has a unit stride. Its address
/// and its other strides are multiples of 16 bytes, and so is its length along the unit stride, unless that is k. The
/// other arrays may have any strides. k >= 1, and the product is not so small that the general kernels are as quick.
bool serves(const Gemm& gemm, const Device& device);

/// How the larger operand reaches the threads. Tests and benchmarks set it; other callers leave it at `chosen`.
enum class Way { chosen, registers, shared_memory };

// The functions below require `serves(gemm, device)`.

/// May the larger operand go through shared memory? It may on sm_90, for float32.
bool may_stream(const Gemm& gemm, const Device& device);
/// Chooses the kernel, its grid, and the number of parts that k is split into, with partial sums in a workspace of at
/// most `most_bytes`.
MatmulPlan choose(const Gemm& gemm, std::size_t most_bytes, const Device& device, Way way = Way::chosen);
/// The same, for tests and benchmarks, with at most so many parts.
MatmulPlan choose_in_parts(const Gemm& gemm, int parts, const Device& device, Way way = Way::chosen);

/// `gemm` has its few rows in a, transposed if `plan` says so. Accumulates in one fixed order, in float32 for the
/// 16-bit floats. Where `workspace` is null, k is not split.
void launch(const Gemm& gemm, const MatmulPlan& plan, void* workspace, cudaStream_t stream);
/// "skinny 4 rows, float32".
std::string describe(const Gemm& gemm, const MatmulPlan& plan);

}  // namespace interop::cuda::skinny
