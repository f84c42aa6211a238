/// Products that lie in memory, finished in their place: bias and activation. Private to src/cuda.
#pragma once

#include <interop/gemm.h>

typedef struct CUstream_st* cudaStream_t;

namespace interop::cuda {

/// May bias, aux and activation be left to `launch_finish`? Of float32 and float64, which are not rounded once more by
/// it, where c is compact, in the order of rows or of columns, and aux like it.
bool can_finish(const Gemm& gemm);

/// Does that to c, which holds the product with its factors and its addend.
void launch_finish(const Gemm& gemm, cudaStream_t stream);

}  // namespace interop::cuda
