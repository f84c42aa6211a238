/// Elementwise operations on the GPU. Knows no Python.
#pragma once

#include <interop/elementwise.h>

#include <string>

typedef struct CUstream_st* cudaStream_t;  // as cuda_runtime.h declares it; naming it needs no CUDA header

namespace interop::cuda {

/// Queues out = op(a, b) on `stream` and returns at once; nothing is launched where there is nothing to do. The context
/// of the operands' device is current. `out` may be an input itself, element for element; no other memory is shared.
/// Throws ValueError for a pointer that is not aligned to its elements, and CudaError if the launch fails.
void launch_elementwise(const Elementwise& operation, cudaStream_t stream);

/// One line for a person: "contiguous, vectors of 16 bytes, float32".
std::string describe(const Elementwise& operation);

}  // namespace interop::cuda
