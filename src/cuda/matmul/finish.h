/// The epilogue as a kernel of its own: bias and activation, for a product in memory, in place. Private to src/cuda.
#pragma once

#include <interop/gemm.h>

typedef struct CUstream_st* cudaStream_t;

namespace interop::cuda {

/// May bias, aux and activation be left to `launch_finish`? The result is float32 or float64, so that storing the sums
/// first rounds nothing twice; c is compact, in row or column order, and aux is laid out like c.
bool can_finish(const Gemm& gemm);

/// Applies bias, aux and activation to c, which holds the product with its factors and its addend.
void launch_finish(const Gemm& gemm, cudaStream_t stream);

}  // namespace interop::cuda
