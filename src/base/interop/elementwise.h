/// One pass over the elements of arrays, as the shape rules hand it to a kernel. Knows neither Python nor CUDA.
#pragma once

#include <interop/operations.h>
#include <interop/tensor.h>

#include <cstdint>

namespace interop {

/// The most arrays that one loop reads.
inline constexpr int kMaxInputs = 16;
/// The most values that one expression takes besides the arrays.
inline constexpr int kMaxValues = 32;

/// How a loop walks memory; the launcher chooses the kernel by it.
enum class LayoutClass : uint8_t {
  empty,       ///< nothing to do
  contiguous,  ///< one dimension at most; every operand is compact, or one element
  rows,        ///< along the last dimension every operand is compact, or one element
  transposed,  ///< an input is compact along another dimension than the output
  strided      ///< all else
};

/// Where the elements of an output and of its inputs lie, dimension by dimension, outermost first.
///
/// Strides are in elements; operand 0 is the output. Dimensions of size 1 are dropped. The output's strides run from
/// long to short, and none is negative. Neighbours are merged wherever the strides of every operand allow it. So a loop
/// over compact arrays has one dimension, and a loop over a single element has none.
struct Loop {
  int operand_count = 0;  ///< the inputs, and the output
  int ndim = 0;
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxInputs + 1][kMaxDims];
  LayoutClass layout = LayoutClass::contiguous;
  /// If `transposed`: the dimension along which that input is compact; along the last one its stride is long. A tile of
  /// both, read along one and written along the other, moves whole lines of memory.
  int cross_dim = -1;
};

/// One pass over memory: out = f(inputs, values), element by element over `loop`. What f is, the kernel knows: a
/// function of the package has one that is built with it (`ElementwiseStep`), an expression has one compiled at run
/// time. Of the inputs and values, only those are set that there are.
struct Elementwise {
  struct Input {
    const void* data;  ///< null for an operand that is `values[0]`, the same for all elements
    DLDataType dtype;  ///< in memory
  };
  Loop loop;
  void* out = nullptr;
  DLDataType out_dtype{};
  Input inputs[kMaxInputs];
  ScalarValue values[kMaxValues];  ///< each of the dtype that the kernel takes
};

/// A function of the package as one step on elements: op(a, b), computed in `dtype`, to which the inputs are converted
/// as they are read. Of two inputs one may be a value, of `dtype`. A comparison in uint64 is exact for signed inputs,
/// too, although no dtype holds both.
struct ElementwiseStep {
  ElementwiseOp op = ElementwiseOp::copy;
  DLDataType dtype{};
  bool replaces_zero = false;  ///< divide: where the divisor is zero, the result is `values[kWhereZero]`, of `dtype`
};
inline constexpr int kWhereZero = 1;

}  // namespace interop
