/// NumPy's rules for a matrix product: vectors, matrices, stacks of matrices with broadcasting.
#include "ops/matmul.h"

#include <interop/error.h>

#include <algorithm>
#include <cstring>

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

bool reads(DLDataType dtype) { return is_served(dtype) || is_float8(dtype); }

void check_rank(const char* name, const DLTensor& x) {
  if (x.ndim == 0) {
    throw ValueError(std::string("interop.matmul: ") + name + " is 0-d, shape (); accepted: one dimension or more");
  }
}

std::string both_shapes(const DLTensor& a, const DLTensor& b) {
  return "interop.matmul: a has shape " + shape_text(a) + " and b has shape " + shape_text(b) + ": ";
}

/// The stride of `x` along batch dimension `i` of `batch_ndim`: 0 where x is broadcast.
int64_t batch_stride(const DLTensor& x, int own_batch_ndim, int batch_ndim, int i) {
  const int j = i - (batch_ndim - own_batch_ndim);
  return j < 0 || x.shape[j] == 1 ? 0 : x.strides[j];
}

int64_t batch_size(const DLTensor& x, int own_batch_ndim, int batch_ndim, int i) {
  const int j = i - (batch_ndim - own_batch_ndim);
  return j < 0 ? 1 : x.shape[j];
}

/// Appends one batch dimension, or merges it with the last one if the strides of all operands allow that.
void append_batch(Gemm& gemm, const BatchDim& dim) {
  if (dim.size == 1) return;
  if (gemm.batch_ndim > 0) {
    BatchDim& last = gemm.batch[gemm.batch_ndim - 1];
    if (last.a_stride == dim.a_stride * dim.size && last.b_stride == dim.b_stride * dim.size &&
        last.c_stride == dim.c_stride * dim.size && last.addend_stride == dim.addend_stride * dim.size &&
        last.aux_stride == dim.aux_stride * dim.size) {
      const int64_t size = last.size * dim.size;
      last = dim;
      last.size = size;
      return;
    }
  }
  gemm.batch[gemm.batch_ndim++] = dim;
}

constexpr const char* kFunction = "interop.matmul: ";

/// The stride of a term along dimension `i` of the result: 0 where it is broadcast or absent.
int64_t term_stride(const DLTensor* term, int result_ndim, int i) {
  if (!term) return 0;
  const int j = i - (result_ndim - term->ndim);
  return j < 0 || term->shape[j] == 1 ? 0 : term->strides[j];
}

void check_term(const char* name, const DLTensor& term, const Shape& shape, DLDataType dtype) {
  if (term.dtype != dtype) {
    throw TypeError(std::string(kFunction) + name + " is " + dtype_name(term.dtype) +
                    "; accepted: the result's dtype, " + dtype_name(dtype));
  }
  bool fits = term.ndim <= shape.ndim;
  for (int j = 0; fits && j < term.ndim; ++j) {
    fits = term.shape[j] == 1 || term.shape[j] == shape.sizes[shape.ndim - term.ndim + j];
  }
  if (!fits) {
    throw ValueError(std::string(kFunction) + name + " has shape " + shape_text(term) +
                     "; accepted: one that broadcasts to the result's, " + shape_text(shape));
  }
}

/// A bias is a row or a column: at most one of its dimensions is longer than 1, and none that counts matrices.
void check_bias(const DLTensor& bias, const Shape& shape, int matrix_ndim) {
  int longer = 0;
  bool in_batch = false;
  for (int j = 0; j < bias.ndim; ++j) {
    if (bias.shape[j] == 1) continue;
    ++longer;
    in_batch |= j < bias.ndim - matrix_ndim;
  }
  if (longer <= 1 && !in_batch) return;
  throw ValueError(std::string(kFunction) + "bias has shape " + shape_text(bias) +
                   "; accepted: a row (n,) or a column (m, 1) of the result, " + shape_text(shape) +
                   " (c takes any that broadcasts)");
}

}  // namespace

bool is_float8(DLDataType dtype) {
  return dtype.lanes == 1 && dtype.bits == 8 && (dtype.code == kDLFloat8_e4m3fn || dtype.code == kDLFloat8_e5m2);
}

void check_matmul_dtypes(DLDataType a, DLDataType b) {
  if (!reads(a) || !reads(b)) {
    const bool first = !reads(a);
    throw TypeError(std::string(kFunction) + (first ? "a" : "b") + " is " + dtype_name(first ? a : b) +
                    "; accepted: " + kMatmulDtypes);
  }
  if (is_float8(a) != is_float8(b)) {
    throw TypeError(std::string(kFunction) + "a is " + dtype_name(a) + " and b is " + dtype_name(b) +
                    "; accepted: two float8 arrays, or none");
  }
}

namespace {

void check_matmul_result(DLDataType a, DLDataType b, DLDataType result) {
  if (is_float8(a) && is_float8(b)) {
    if (is_float(result) && result.lanes == 1 && result.bits <= 32) return;
    throw TypeError(std::string(kFunction) + "dtype is " + dtype_name(result) +
                    "; accepted for float8: None, bfloat16, float16, float32");
  }
  if (is_served(result)) return;
  throw TypeError(std::string(kFunction) + "dtype is " + dtype_name(result) + "; accepted: " + kMatmulDtypes +
                  ", but for the last two");
}

}  // namespace

MatmulResult matmul_result(const DLTensor& a, const DLTensor& b, DLDataType dtype) {
  check_matmul_dtypes(a.dtype, b.dtype);
  check_matmul_result(a.dtype, b.dtype, dtype);
  check_rank("a", a);
  check_rank("b", b);
  const Stack left = left_stack(a);
  const Stack right = right_stack(b);
  if (left.columns != right.rows) {
    throw ValueError(both_shapes(a, b) + "the inner dimensions " + std::to_string(left.columns) + " and " +
                     std::to_string(right.rows) + " differ; accepted: (..., m, k) or (k,), and (..., k, n) or (k,)");
  }
  MatmulResult result;
  result.dtype = dtype;
  Shape& shape = result.shape;
  shape.ndim = std::max(left.batch_ndim, right.batch_ndim);
  for (int i = 0; i < shape.ndim; ++i) {
    const int64_t x = batch_size(a, left.batch_ndim, shape.ndim, i);
    const int64_t y = batch_size(b, right.batch_ndim, shape.ndim, i);
    if (x != y && x != 1 && y != 1) {
      throw ValueError(both_shapes(a, b) + "the batch dimensions " + std::to_string(x) + " and " + std::to_string(y) +
                       " do not broadcast; accepted: equal ones, or 1");
    }
    shape.sizes[i] = x == 1 ? y : x;
  }
  if (a.ndim > 1) shape.sizes[shape.ndim++] = left.rows;
  if (b.ndim > 1) shape.sizes[shape.ndim++] = right.columns;
  return result;
}

bool reads_matmul(DLDataType a, DLDataType b, DLDataType result) {
  if (a.bits != b.bits) return false;
  if (a == b && a == result) return true;
  if (is_float8(a) || (is_float(a) && a.bits == 16)) {
    return is_float8(a) == is_float8(b) && (is_float8(a) || is_float(b)) && is_float(result) && result.bits <= 32;
  }
  // A sum that wraps has the same low bits in every width; a sum of bool does not wrap.
  return is_integral(a) && is_integral(b) && a.bits <= 16 && is_integral(result) && result.bits <= 32 &&
         result.code != kDLBool;
}

void check_terms(const MatmulTerms& terms, const Shape& shape, int matrix_ndim, DLDataType dtype) {
  if (dtype.code == kDLBool && (terms.c || terms.bias)) {
    throw TypeError(std::string(kFunction) + (terms.c ? "c" : "bias") +
                    " is given, and the product is bool, which is not added to; accepted: None");
  }
  if (terms.c) check_term("c", *terms.c, shape, dtype);
  if (terms.bias) {
    check_term("bias", *terms.bias, shape, dtype);
    check_bias(*terms.bias, shape, matrix_ndim);
  }
  if (terms.activation != Activation::none && !is_float(dtype)) {
    throw TypeError(std::string(kFunction) + "epilogue is given, and the result is " + dtype_name(dtype) +
                    "; accepted: a result of float16, bfloat16, float32 or float64");
  }
  if (!terms.aux) return;
  if (terms.activation == Activation::none) {
    throw ValueError(
        std::string(kFunction) +
        "aux is given, and there is no epilogue, before which it would be written; accepted: both, or none");
  }
  check_term("aux", *terms.aux, shape, dtype);
  if (terms.aux->ndim != shape.ndim || !std::equal(shape.sizes, shape.sizes + shape.ndim, terms.aux->shape)) {
    throw ValueError(std::string(kFunction) + "aux has shape " + shape_text(*terms.aux) +
                     "; accepted: the result's shape, " + shape_text(shape));
  }
}

Gemm plan_matmul(const DLTensor& a, const DLTensor& b, const DLTensor& out, const MatmulTerms& terms) {
  const Stack left = left_stack(a);
  const Stack right = right_stack(b);
  const int batch_ndim = std::max(left.batch_ndim, right.batch_ndim);
  Gemm gemm;
  gemm.dtype = a.dtype;
  gemm.b_dtype = b.dtype;
  gemm.out_dtype = out.dtype;
  gemm.m = left.rows;
  gemm.n = right.columns;
  gemm.k = left.columns;
  gemm.a = a.data;
  gemm.b = b.data;
  gemm.c = out.data;
  gemm.a_strides = left.strides;
  gemm.b_strides = right.strides;
  gemm.addend = terms.c ? terms.c->data : nullptr;
  gemm.bias = terms.bias ? terms.bias->data : nullptr;
  gemm.aux = terms.aux ? terms.aux->data : nullptr;
  gemm.activation = terms.activation;
  const auto matrix_strides = [&](const DLTensor* term) {
    return MatrixStrides{a.ndim > 1 ? term_stride(term, out.ndim, batch_ndim) : 0,
                         b.ndim > 1 ? term_stride(term, out.ndim, out.ndim - 1) : 0};
  };
  gemm.c_strides.row = a.ndim > 1 ? out.strides[batch_ndim] : 0;
  gemm.c_strides.column = b.ndim > 1 ? out.strides[out.ndim - 1] : 0;
  gemm.addend_strides = matrix_strides(terms.c);
  gemm.bias_strides = matrix_strides(terms.bias);
  gemm.aux_strides = matrix_strides(terms.aux);
  for (int i = 0; i < batch_ndim; ++i) {
    append_batch(gemm, {out.shape[i], batch_stride(a, left.batch_ndim, batch_ndim, i),
                        batch_stride(b, right.batch_ndim, batch_ndim, i), out.strides[i],
                        term_stride(terms.c, out.ndim, i), term_stride(terms.aux, out.ndim, i)});
  }
  return gemm;
}

}  // namespace interop::ops
