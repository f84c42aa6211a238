/// Views of an `interop.Array`: other shapes and strides on the same memory, which they keep. No element is read.
#pragma once

#include "exchange/array/array.h"

namespace interop::exchange {

/// `array[key]` for ints, slices, Ellipsis and None, or a tuple of them. Throws IndexError and TypeError as Python has
/// them.
Array subview(const Array& array, nb::handle key);

/// The same elements in row-major order, in another shape, of which one size may be -1. Throws ValueError for a shape
/// that does not fit, and where only a copy has that order.
Array reshaped(const Array& array, const std::vector<int64_t>& shape);

/// The dimensions in the order `axes`. Throws ValueError for what is no permutation of them.
Array transposed(const Array& array, const std::vector<int64_t>& axes);

}  // namespace interop::exchange
