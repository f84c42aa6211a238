/// One batched matrix product, as the shape rules hand it to a kernel. Knows neither Python nor CUDA.
#pragma once

#include <interop/tensor.h>

#include <cstdint>

namespace interop {

/// Strides of a matrix in elements; either may be zero or negative.
struct MatrixStrides {
  int64_t row = 0;
  int64_t column = 0;
};

/// One dimension of a batch: its length, and what one step along it moves in each operand, in elements.
struct BatchDim {
  int64_t size;
  int64_t a_stride;
  int64_t b_stride;
  int64_t c_stride;
};

/// c[i] = a[i] @ b[i] for every i of the batch: a is (m, k), b is (k, n), c is (m, n), all of one dtype.
///
/// Batch dimensions are outermost first, never of size 1, and already collapsed: two neighbours are one wherever all
/// three operands agree. A broadcast operand has stride 0. Where m, n or the batch is 0 there is nothing to do; where
/// k is 0, c is set to zero. The pointers name the first element, every offset included.
struct Gemm {
  DLDataType dtype{};
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  MatrixStrides a_strides;
  MatrixStrides b_strides;
  MatrixStrides c_strides;
  int batch_ndim = 0;
  BatchDim batch[kMaxDims];
};

}  // namespace interop
