/// Plain facts of a `DLTensor`, the view of an array that every layer shares. Knows neither Python nor CUDA.
///
/// In this library a `DLTensor` always has its strides filled in, and `byte_offset` 0 with `data` at the first element.
#pragma once

#include <dlpack/dlpack.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace interop {

/// The most dimensions an array may have: what NumPy allows.
inline constexpr int kMaxDims = 64;

inline constexpr DLDataType kFloat32{kDLFloat, 32, 1};
inline constexpr DLDataType kFloat64{kDLFloat, 64, 1};
inline constexpr DLDataType kBfloat16{kDLBfloat, 16, 1};

/// The bytes of one value of any dtype.
struct ScalarValue {
  alignas(16) unsigned char bytes[16];
};

/// A shape that owns its sizes.
struct Shape {
  int ndim = 0;
  int64_t sizes[kMaxDims];  // mostly few of them: the others are neither initialised nor copied

  Shape() {}
  Shape(const Shape& other) { *this = other; }
  Shape& operator=(const Shape& other) {
    ndim = other.ndim;
    std::copy(other.sizes, other.sizes + other.ndim, sizes);
    return *this;
  }
};

inline bool operator==(DLDataType x, DLDataType y) {
  return x.code == y.code && x.bits == y.bits && x.lanes == y.lanes;
}
inline bool operator!=(DLDataType x, DLDataType y) { return !(x == y); }

/// Bytes of one element; sub-byte types, which nothing here serves, count as one.
inline int64_t item_bytes(DLDataType dtype) { return (int64_t{dtype.bits} * dtype.lanes + 7) / 8; }

/// NumPy's name of a dtype, such as "float32" or "bfloat16"; "dtype(code=99, bits=8, lanes=1)" for an unknown one.
std::string dtype_name(DLDataType dtype);

/// A shape as Python prints a tuple: "(2, 3)", "(4,)", "()".
std::string shape_text(const int64_t* sizes, int ndim);
inline std::string shape_text(const DLTensor& tensor) { return shape_text(tensor.shape, tensor.ndim); }
inline std::string shape_text(const Shape& shape) { return shape_text(shape.sizes, shape.ndim); }

/// "cpu", "cuda:1", "pinned host memory": where an array lies, as an error message says it.
std::string device_text(DLDevice device);

/// The number of elements; 1 for a 0-d tensor.
inline int64_t element_count(const int64_t* sizes, int ndim) {
  int64_t count = 1;
  for (int i = 0; i < ndim; ++i) count *= sizes[i];
  return count;
}
inline int64_t element_count(const DLTensor& tensor) { return element_count(tensor.shape, tensor.ndim); }

/// Would the count of its elements, or of their bytes, overflow? Broadcasting makes such shapes from little memory.
bool is_beyond_counting(const DLTensor& tensor);

/// Fills `strides` (elements) for the compact row-major layout of a shape.
void compact_strides(const int64_t* sizes, int ndim, int64_t* strides);
/// Exchanges the last two dimensions, in the arrays that the tensor points to. It has at least two.
void transpose_matrices(DLTensor& tensor);
/// Is the tensor compact and row-major? Strides of size-1 dimensions, and of empty tensors, do not count.
bool is_compact(const DLTensor& tensor);
/// Is it compact and column-major, as Fortran has it?
bool is_compact_backwards(const DLTensor& tensor);

/// The half-open range of bytes that a tensor touches; empty for a tensor with no elements.
struct ByteRange {
  uintptr_t begin = 0;
  uintptr_t end = 0;
};
ByteRange byte_range(const DLTensor& tensor);
inline bool ranges_meet(ByteRange x, ByteRange y) { return x.begin < y.end && y.begin < x.end; }

/// May two elements of the tensor share memory? Exact for every layout made by slicing, transposing and broadcasting;
/// true for exotic ones that it cannot tell.
bool may_overlap_itself(const DLTensor& tensor);

/// Are they one array: the same memory, in the same form?
bool is_same(const DLTensor& x, const DLTensor& y);

/// Does the tensor fill its byte range without holes, in some order of its dimensions?
bool is_dense(const DLTensor& tensor);

/// An integer, or bool.
bool is_integral(DLDataType dtype);
/// float16 to float64, or bfloat16.
bool is_float(DLDataType dtype);
/// A dtype that the operations compute in: bool, integers, floats and complex numbers; not float8.
bool is_served(DLDataType dtype);

}  // namespace interop
