/// What Python knows of promotion, `interop._operations.promotion`, as C++ asks it.
#pragma once

#include <interop/tensor.h>
#include <nanobind/nanobind.h>

#include <string>

namespace interop::bindings::promotion {

/// The dtype's name in which `library` computes `a` and `b`: a (dtype, is it 0-d) of an array, or a scalar; b may be
/// None. With `in_float`, integers in its default float. Throws TypeError, in the library's words, where there is none.
nanobind::object promote(const char* function, const char* library, bool in_float, nanobind::handle a,
                         nanobind::handle b);
/// What the library's promotion depends on beside the operands.
nanobind::object configuration(const char* library);

/// Where a scalar lies beside all that a dtype holds: -1 below, 1 above, 0 among it.
int side_of(nanobind::handle scalar, DLDataType dtype);
/// The name of the comparison that answers for any scalar, and the scalar as an element of `dtype`.
nanobind::object comparison_of(const char* function, const char* comparison, const char* parameter,
                               nanobind::handle scalar, DLDataType dtype, bool is_left);

/// A scalar as a 0-d array of NumPy's. Throws OverflowError or TypeError, naming the parameter.
nanobind::object element_of(const char* function, const char* parameter, nanobind::handle scalar, DLDataType dtype);
/// A scalar or a 0-d array as the bytes of one element, rounded in silence.
nanobind::object bytes_of(nanobind::handle scalar, DLDataType dtype);
/// A factor of a product of `result`, as a 0-d array of `dtype`. Throws TypeError for what is none.
nanobind::object factor_of(const char* function, const char* parameter, nanobind::handle factor, DLDataType result,
                           DLDataType dtype);
/// The name of a dtype of any library. Throws TypeError for what is none.
std::string dtype_name(const char* function, nanobind::handle dtype);

}  // namespace interop::bindings::promotion
