/// Products with at most 16 rows or columns, which take as long as reading the larger operand. Private to src/cuda.
#pragma once

#include <interop/gemm.h>

#include <cuda_runtime.h>

#include <cstddef>
#include <string>

namespace interop::cuda::skinny {

/// Do these kernels serve the product? Both operands have one dtype of float16, bfloat16, float32 and float64, m or n
/// is at most 16, and the device has compute capability 8.0 or later. The larger operand has a unit stride. Its address
/// and its other strides are multiples of 16 bytes, and so is its length along the unit stride, unless that is k. The
/// other arrays may have any strides. k >= 1, and the product is not so small that the general kernels are as quick.
bool serves(const Gemm& gemm);

/// How the larger operand reaches the threads. Tests and benchmarks set it; other callers leave it at `chosen`.
enum class Way { chosen, registers, shared_memory };

// The functions below require `serves(gemm)`.

/// May the larger operand go through shared memory? It may on sm_90, for float32.
bool may_stream(const Gemm& gemm);
/// The number of parts that k is split into, with partial sums in a workspace of at most `most_bytes`.
int parts(const Gemm& gemm, std::size_t most_bytes, Way way = Way::chosen);
/// The workspace for the partial sums; 0 for one part.
std::size_t workspace_bytes(const Gemm& gemm, int parts);
/// Accumulates in one fixed order, in float32 for the 16-bit floats.
void launch(const Gemm& gemm, int parts, void* workspace, cudaStream_t stream, Way way = Way::chosen);
/// "skinny 4 rows, float32".
std::string describe(const Gemm& gemm);

}  // namespace interop::cuda::skinny
