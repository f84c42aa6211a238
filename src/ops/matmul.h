/// The shape, dtype and layout rules of `interop.matmul`: NumPy's. Knows neither Python nor CUDA.
#pragma once

#include <interop/gemm.h>

namespace interop::ops {

/// The dtypes that a product serves, as an error message lists them.
inline constexpr const char* kMatmulDtypes =
    "bool, int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64, complex64, complex128, float8_e4m3fn, "
    "float8_e5m2";

bool is_float8(DLDataType dtype);

/// Throws TypeError for operands of a dtype that is not served, and for float8 beside anything else.
void check_matmul_dtypes(DLDataType a, DLDataType b);

/// The shape and dtype of `a @ b`.
struct MatmulResult {
  Shape shape;
  DLDataType dtype{};
};

/// Applies NumPy's rules to the operands of a product that is to have this dtype. Throws TypeError for operands of a
/// dtype that is not served, for a float8 result, and for float8 operands with a result other than float16, bfloat16
/// and float32. Throws ValueError for shapes that do not fit.
MatmulResult matmul_result(const DLTensor& a, const DLTensor& b, DLDataType dtype);

/// Do the kernels read operands of these dtypes directly, for a result of that dtype? Others are converted first.
bool reads_matmul(DLDataType a, DLDataType b, DLDataType result);

/// The terms of a product besides its operands; null for an absent one.
struct MatmulTerms {
  const DLTensor* c = nullptr;  ///< the addend
  const DLTensor* bias = nullptr;
  const DLTensor* aux = nullptr;
  Activation activation = Activation::none;
};

/// Throws TypeError and ValueError for terms that do not fit a result of this shape and dtype: another dtype, a shape
/// that does not broadcast to it, a bias that runs along more than rows or columns, an activation of integers. The last
/// `matrix_ndim` dimensions of the shape are the product's own: 2, minus the number of operands that are vectors.
void check_terms(const MatmulTerms& terms, const Shape& shape, int matrix_ndim, DLDataType dtype);

/// The product to compute, of operands and terms that fit, into `out`, which has the result's shape and dtype, and any
/// strides. The factors are 1.
Gemm plan_matmul(const DLTensor& a, const DLTensor& b, const DLTensor& out, const MatmulTerms& terms = {});

}  // namespace interop::ops
