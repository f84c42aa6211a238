/// Products with at most 16 rows or columns, which take as long as reading the larger operand. Private to src/cuda.
#pragma once

#include <interop/gemm.h>

#include <cuda_runtime.h>

#include <cstddef>
#include <string>

namespace interop::cuda::skinny {

/// Two operands of one of float16, bfloat16, float32 and float64, m or n at most 16, on a device of compute capability
/// 8.0 or later. The larger operand has a unit stride; its other strides are multiples of 16 bytes, as are its address
/// and, where k is not the unit stride, its length along that. All else lies as it likes. k >= 1, and the product is
/// not so small that the general kernels are as quick.
bool serves(const Gemm& gemm);

/// How the larger operand reaches the threads. Tests and benchmarks say it; all else leaves it to `chosen`.
enum class Way { chosen, registers, shared_memory };

// For all below, `serves(gemm)` is true.

/// May it go through shared memory? On sm_90, for float32.
bool may_stream(const Gemm& gemm);
/// Into how many parts k is divided, whose sums stand in a workspace of at most `most_bytes`.
int parts(const Gemm& gemm, std::size_t most_bytes, Way way = Way::chosen);
/// What those parts need; 0 for one part.
std::size_t workspace_bytes(const Gemm& gemm, int parts);
/// Sums in one fixed order, in float32 for the 16-bit floats.
void launch(const Gemm& gemm, int parts, void* workspace, cudaStream_t stream, Way way = Way::chosen);
/// "skinny 4 rows, float32".
std::string describe(const Gemm& gemm);

}  // namespace interop::cuda::skinny
