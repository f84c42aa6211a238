/// The launcher of all kernels that pass over elements. Private to src/cuda.
#pragma once

#include <interop/cuda/elementwise.h>

#include "cuda/driver/kernel.h"
#include "cuda/elementwise/args.h"

namespace interop::cuda::elementwise {

/// A kernel, and how it is called.
struct PassKernel {
  PassShape shape;
  Kernel& kernel;
  const StepArgs* step = nullptr;  ///< of a kernel that is built with the package; its inputs are two, and `Stored`
  bool swaps = false;              ///< its operands are those of the pass, exchanged
};

/// The name of a dtype that the operations read.
Stored stored_of(DLDataType dtype);

/// Queues a pass by that kernel. Throws ValueError for a pointer that is not aligned to its elements, CudaError.
void launch(const Elementwise& work, const PassKernel& with, cudaStream_t stream);

/// "contiguous, vectors of 4"
std::string describe(const Elementwise& work, const PassShape& shape);

}  // namespace interop::cuda::elementwise
