/// The shape, dtype and layout rules of `interop.matmul`: NumPy's. Knows neither Python nor CUDA.
#pragma once

#include <interop/gemm.h>

namespace interop::ops {

/// What `a @ b` is: the product to compute, and the shape of the result.
struct MatmulResult {
  Gemm gemm;
  int ndim = 0;
  int64_t shape[kMaxDims];
};

/// Applies NumPy's rules to the operands. In the answer `gemm.c` is null and c is compact and row-major.
/// Throws TypeError for a dtype that is not served, and ValueError for shapes that do not fit.
MatmulResult plan_matmul(const DLTensor& a, const DLTensor& b);

/// The same product, written to `out`, which has the result's shape and dtype.
MatmulResult plan_matmul(const DLTensor& a, const DLTensor& b, const DLTensor& out);

}  // namespace interop::ops
