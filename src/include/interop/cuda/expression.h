/// Expressions on the GPU, by kernels that are compiled at run time. Knows no Python.
#pragma once

#include <interop/cuda/kernel.h>
#include <interop/elementwise.h>

#include <string>

typedef struct CUstream_st* cudaStream_t;  // as cuda_runtime.h declares it; naming it needs no CUDA header

namespace interop::cuda {

/// The shape of the kernel that an expression takes for its arrays: by tiles, or by vectors.
struct ExpressionShape {
  int tile;    ///< elements along the side of a tile; 0: none
  int vector;  ///< elements of a vector
  int unroll;  ///< vectors that a thread has in flight at a time
};
inline bool operator==(const ExpressionShape& x, const ExpressionShape& y) {
  return x.tile == y.tile && x.vector == y.vector && x.unroll == y.unroll;
}

ExpressionShape expression_shape(const Expression& expression);

/// Queues `expression` on `stream` by a kernel of that shape and returns at once. Otherwise like `launch_elementwise`.
void launch_expression(const Expression& expression, const ExpressionShape& shape, Kernel& kernel, cudaStream_t stream);

/// Is there nothing to compute, so that no kernel is needed?
inline bool is_empty(const Expression& expression) { return expression.loop.layout == LayoutClass::empty; }

/// One line for a person: "contiguous, vectors of 4".
std::string describe(const Expression& expression);

}  // namespace interop::cuda
