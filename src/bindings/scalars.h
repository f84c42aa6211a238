/// The scalars of a call: how they promote, and as elements.
#pragma once

#include <interop/elementwise.h>
#include <nanobind/nanobind.h>

#include <optional>

namespace interop::bindings {

/// How an operand takes part in promotion, weakest first: an array, or a scalar of Python's, or of NumPy's.
enum class Kind { array, boolean, integer, real, complex, numpy_scalar };

/// Of an argument; one that is neither an array nor a scalar is an array, which importing will refuse.
Kind kind_of(nanobind::handle x);
/// The strongest of Python's scalars that takes part in an array's own dtype.
Kind kind_of(DLDataType dtype);

/// Is a scalar an integer or a bool?
bool is_integral_scalar(nanobind::handle x, Kind kind);
/// Does `dtype` surely hold a scalar, up to rounding? Of NumPy's scalars it is not known.
bool fits(nanobind::handle x, Kind kind, DLDataType dtype);

/// The end of a message about operands that promote to a dtype which is not served.
inline constexpr const char* kAcceptedPromotions =
    "; accepted: what promotes to bool, int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64, complex64 "
    "or complex128";

/// A scalar as one element of `dtype`. Throws OverflowError, naming the argument, where the dtype cannot hold an
/// integer, and TypeError for a complex number in a real dtype.
ScalarValue value_of(const char* function, const char* name, nanobind::handle x, Kind kind, DLDataType dtype);
/// The element of an array of one element in host memory, as `dtype`, without NumPy; none where only that converts it.
std::optional<ScalarValue> value_in(const DLTensor& array, DLDataType dtype);
/// A number or a 0-d array as one element, by NumPy, which rounds to any dtype.
ScalarValue value_by_numpy(nanobind::handle x, DLDataType dtype);

/// A number of Python or NumPy as an argument of a C type; of an integer all 64 bits are set. No array is one, as its
/// value would be waited for. Throws TypeError for what is no number, or no integer where the type is one, and
/// OverflowError for a number that the type cannot hold, as one that would become infinite; both name the argument.
ScalarValue c_argument(const char* function, const char* name, nanobind::handle x, DLDataType dtype);

}  // namespace interop::bindings
