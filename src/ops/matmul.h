/// The shape, dtype and layout rules of `interop.matmul`: NumPy's. Knows neither Python nor CUDA.
#pragma once

#include <interop/gemm.h>

namespace interop::ops {

/// What `a @ b` is.
struct MatmulResult {
  Shape shape;
  DLDataType dtype{};
};

/// Applies NumPy's rules to the operands. Throws TypeError for a dtype that is not served, and ValueError for shapes
/// that do not fit.
MatmulResult matmul_result(const DLTensor& a, const DLTensor& b);

/// The product to compute, of operands that fit, into `c`, which has the result's shape and dtype, and any strides.
Gemm plan_matmul(const DLTensor& a, const DLTensor& b, const DLTensor& c);

}  // namespace interop::ops
