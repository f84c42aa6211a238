/// The epilogue as a kernel of its own: bias and activation, for a product in memory, in place. Private to src/cuda.
#pragma once

#include <interop/cuda/matmul.h>

namespace interop::cuda {

/// How bias, aux and activation may be left to `launch_finish`: in the order in which c is compact, where aux is laid
/// out like c. The result is float32 or float64, so that storing the sums first rounds nothing twice. Otherwise `none`.
MatmulFinish finish_of(const Gemm& gemm);

/// Applies bias, aux and activation to c, which holds the product with its factors and its addend.
void launch_finish(const Gemm& gemm, MatmulFinish finish, cudaStream_t stream);

}  // namespace interop::cuda
