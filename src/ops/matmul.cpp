/// NumPy's rules for a matrix product: vectors, matrices, stacks of matrices with broadcasting.
#include "ops/matmul.h"

#include <interop/error.h>

#include <algorithm>

namespace interop::ops {
namespace {

/// An operand as a stack of matrices: a vector gets the dimension that its place in the product needs.
struct Stack {
  int64_t rows, columns;
  MatrixStrides strides;
  int batch_ndim;
};

Stack left_stack(const DLTensor& a) {
  const int d = a.ndim;
  if (d == 1) return {1, a.shape[0], {0, a.strides[0]}, 0};
  return {a.shape[d - 2], a.shape[d - 1], {a.strides[d - 2], a.strides[d - 1]}, d - 2};
}

Stack right_stack(const DLTensor& b) {
  const int d = b.ndim;
  if (d == 1) return {b.shape[0], 1, {b.strides[0], 0}, 0};
  return {b.shape[d - 2], b.shape[d - 1], {b.strides[d - 2], b.strides[d - 1]}, d - 2};
}

void check_dtypes(const DLTensor& a, const DLTensor& b) {
  const auto served = [](DLDataType dtype) { return dtype == kFloat32 || dtype == kFloat64; };
  if (!served(a.dtype) || !served(b.dtype)) {
    const bool first = !served(a.dtype);
    throw TypeError(std::string("interop.matmul: ") + (first ? "a" : "b") + " is " +
                    dtype_name(first ? a.dtype : b.dtype) + "; accepted: float32, float64");
  }
  if (a.dtype != b.dtype) {
    throw TypeError("interop.matmul: a is " + dtype_name(a.dtype) + " and b is " + dtype_name(b.dtype) +
                    "; accepted: two arrays of one dtype");
  }
}

void check_rank(const char* name, const DLTensor& x) {
  if (x.ndim == 0) {
    throw ValueError(std::string("interop.matmul: ") + name + " is 0-d, shape (); accepted: one dimension or more");
  }
}

std::string both_shapes(const DLTensor& a, const DLTensor& b) {
  return "interop.matmul: a has shape " + shape_text(a) + " and b has shape " + shape_text(b) + ": ";
}

/// The step of `x` along batch dimension `i` of `batch_ndim`: 0 where x is broadcast.
int64_t batch_stride(const DLTensor& x, int own_batch_ndim, int batch_ndim, int i) {
  const int j = i - (batch_ndim - own_batch_ndim);
  return j < 0 || x.shape[j] == 1 ? 0 : x.strides[j];
}

int64_t batch_size(const DLTensor& x, int own_batch_ndim, int batch_ndim, int i) {
  const int j = i - (batch_ndim - own_batch_ndim);
  return j < 0 ? 1 : x.shape[j];
}

/// Appends one batch dimension, or widens the last one where all three operands step through both alike.
void append_batch(Gemm& gemm, const BatchDim& dim) {
  if (dim.size == 1) return;
  if (gemm.batch_ndim > 0) {
    BatchDim& last = gemm.batch[gemm.batch_ndim - 1];
    if (last.a_stride == dim.a_stride * dim.size && last.b_stride == dim.b_stride * dim.size &&
        last.c_stride == dim.c_stride * dim.size) {
      last = {last.size * dim.size, dim.a_stride, dim.b_stride, dim.c_stride};
      return;
    }
  }
  gemm.batch[gemm.batch_ndim++] = dim;
}

}  // namespace

MatmulResult matmul_result(const DLTensor& a, const DLTensor& b) {
  check_dtypes(a, b);
  check_rank("a", a);
  check_rank("b", b);
  const Stack left = left_stack(a);
  const Stack right = right_stack(b);
  if (left.columns != right.rows) {
    throw ValueError(both_shapes(a, b) + "the inner dimensions " + std::to_string(left.columns) + " and " +
                     std::to_string(right.rows) + " differ");
  }
  MatmulResult result;
  result.dtype = a.dtype;
  Shape& shape = result.shape;
  shape.ndim = std::max(left.batch_ndim, right.batch_ndim);
  for (int i = 0; i < shape.ndim; ++i) {
    const int64_t x = batch_size(a, left.batch_ndim, shape.ndim, i);
    const int64_t y = batch_size(b, right.batch_ndim, shape.ndim, i);
    if (x != y && x != 1 && y != 1) {
      throw ValueError(both_shapes(a, b) + "the batch dimensions " + std::to_string(x) + " and " + std::to_string(y) +
                       " do not broadcast");
    }
    shape.sizes[i] = x == 1 ? y : x;
  }
  if (a.ndim > 1) shape.sizes[shape.ndim++] = left.rows;
  if (b.ndim > 1) shape.sizes[shape.ndim++] = right.columns;
  return result;
}

Gemm plan_matmul(const DLTensor& a, const DLTensor& b, const DLTensor& c) {
  const Stack left = left_stack(a);
  const Stack right = right_stack(b);
  const int batch_ndim = std::max(left.batch_ndim, right.batch_ndim);
  Gemm gemm;
  gemm.dtype = a.dtype;
  gemm.m = left.rows;
  gemm.n = right.columns;
  gemm.k = left.columns;
  gemm.a = a.data;
  gemm.b = b.data;
  gemm.c = c.data;
  gemm.a_strides = left.strides;
  gemm.b_strides = right.strides;
  gemm.c_strides.row = a.ndim > 1 ? c.strides[batch_ndim] : 0;
  gemm.c_strides.column = b.ndim > 1 ? c.strides[c.ndim - 1] : 0;
  for (int i = 0; i < batch_ndim; ++i) {
    append_batch(gemm, {c.shape[i], batch_stride(a, left.batch_ndim, batch_ndim, i),
                        batch_stride(b, right.batch_ndim, batch_ndim, i), c.strides[i]});
  }
  return gemm;
}

}  // namespace interop::ops
