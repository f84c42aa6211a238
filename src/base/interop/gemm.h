/// One batched matrix product, as the shape rules hand it to a kernel. Knows neither Python nor CUDA.
#pragma once

#include <interop/tensor.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace interop {

/// Strides of a matrix in elements; either may be zero or negative.
struct MatrixStrides {
  int64_t row = 0;
  int64_t column = 0;
};

/// One dimension of a batch: its size, and its stride in each operand, in elements.
struct BatchDim {
  int64_t size;
  int64_t a_stride;
  int64_t b_stride;
  int64_t c_stride;
  int64_t addend_stride;
  int64_t aux_stride;
};

/// The function that is applied to a product last.
enum class Activation : uint8_t {
  none,
  relu,      ///< max(x, 0); NaN stays NaN
  gelu,      ///< x times the normal distribution function of x, by erf
  gelu_tanh  ///< its well-known approximation by tanh
};

/// c[i] = activation(alpha * a[i] @ b[i] + beta * addend[i] + bias) for every i of the batch: a is (m, k), b is (k, n),
/// c, addend and aux are (m, n). `aux`, if there is one, gets the input of the activation.
///
/// Batch dimensions are outermost first, never of size 1, and already merged wherever the strides of all operands allow
/// it. A broadcast operand has stride 0. Where m, n or the batch is 0 there is nothing to do; where k is 0, the sum is
/// zero. The pointers point to the first element, every offset included. Nothing is multiplied by a factor of zero: if
/// alpha is zero, k is 0; if beta is zero, there is no addend.
struct Gemm {
  DLDataType dtype{};      ///< of a
  DLDataType b_dtype{};    ///< as wide as a's: float16 beside bfloat16, int8 beside uint8, two of float8
  DLDataType out_dtype{};  ///< of c, addend, bias and aux
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  MatrixStrides a_strides;
  MatrixStrides b_strides;
  MatrixStrides c_strides;
  bool a_conjugated = false;
  bool b_conjugated = false;
  bool scales = false;              ///< is alpha or beta anything but 1?
  ScalarValue alpha{};              ///< of `factor_dtype(out_dtype)`, if `scales`
  ScalarValue beta{};               ///< likewise; unused without an addend
  const float* factor_a = nullptr;  ///< one value in device memory that the product is multiplied by; null for 1
  const float* factor_b = nullptr;  ///< likewise
  const void* addend = nullptr;
  MatrixStrides addend_strides;
  const void* bias = nullptr;
  MatrixStrides bias_strides;  ///< one of the two is 0; the same for every matrix of the batch
  void* aux = nullptr;
  MatrixStrides aux_strides;
  Activation activation = Activation::none;

  int batch_ndim = 0;
  BatchDim batch[kMaxDims];  // 2.5 KB, mostly unused: last, so that copies leave it out, and not initialised

  Gemm() {}
  Gemm(const Gemm& other) { *this = other; }
  Gemm& operator=(const Gemm& other) {
    if (this != &other) {
      std::memcpy(static_cast<void*>(this), &other,
                  offsetof(Gemm, batch) + static_cast<std::size_t>(other.batch_ndim) * sizeof(BatchDim));
    }
    return *this;
  }

  /// Is it a product and nothing else?
  bool is_plain() const {
    return !scales && !factor_a && !factor_b && !addend && !bias && !aux && activation == Activation::none;
  }
};

/// The dtype of alpha and beta, in which a result of this dtype is accumulated, too: float32 for the narrower floats,
/// int32 or uint32 for the narrower integers, otherwise the dtype itself.
DLDataType factor_dtype(DLDataType out_dtype);

/// Sets alpha and beta from values of `factor_dtype(gemm.out_dtype)`, and drops the terms that have a factor of zero.
void set_factors(Gemm& gemm, const ScalarValue& alpha, const ScalarValue& beta);

}  // namespace interop
