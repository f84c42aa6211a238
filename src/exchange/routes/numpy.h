/// NumPy's dtype objects, which CuPy and Numba use too.
#pragma once

#include <optional>

#include "exchange/python.h"

namespace interop::exchange {

/// The `numpy.dtype` of a dtype, made once and kept: NumPy's own, or that of ml_dtypes (bfloat16, float8). Throws
/// TypeError where neither has one.
nb::handle numpy_dtype(DLDataType dtype);

/// The dtype of a `numpy.dtype` object; none for structures, objects, strings and foreign byte order.
std::optional<DLDataType> dtype_of(nb::handle numpy_dtype);

/// A context manager in which NumPy's errors and warnings of floating-point arithmetic are nobody's.
nb::object numpy_in_silence();

/// The dimensions that every NumPy has.
inline constexpr int kFewDims = 32;
/// Throws ValueError for more dimensions than the installed NumPy has: before version 2, kFewDims.
void check_numpy_ndim(const std::string& label, int ndim);

}  // namespace interop::exchange
