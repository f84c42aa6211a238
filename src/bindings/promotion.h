/// What Python knows of promotion, `interop._operations.promotion`, as C++ asks it.
#pragma once

#include <interop/elementwise.h>
#include <interop/tensor.h>
#include <nanobind/nanobind.h>

#include <optional>

namespace interop::bindings::promotion {

/// The dtype's name in which `library` computes `a` and `b`: a (dtype, is it 0-d) of an array, or a scalar; b may be
/// None. With `in_float`, integers in its default float. Throws TypeError, in the library's words, where there is none.
nanobind::object promote(const char* function, const char* library, bool in_float, nanobind::handle a,
                         nanobind::handle b);

/// What an array is to promotion.
struct PromotedArray {
  DLDataType dtype;
  bool is_0d;
};
/// The same of two arrays, whose dtype is kept as long as the library's configuration stays what it was; none if it has
/// no DLPack code.
std::optional<DLDataType> promote_arrays(const char* function, const char* library, bool in_float,
                                         const PromotedArray& a, const PromotedArray& b);

/// A scalar as an element of `dtype`. Throws OverflowError or TypeError, naming the parameter.
ScalarValue element_of(const char* function, const char* parameter, nanobind::handle scalar, DLDataType dtype);
/// The same beside an array of `dtype` that it is compared with. `comparison`, a name, becomes the one that answers for
/// any scalar.
ScalarValue compared_of(const char* function, nanobind::object& comparison, const char* parameter,
                        nanobind::handle scalar, DLDataType dtype, bool is_left);
/// A factor of a product of `result`, as an element of `dtype`. Throws TypeError for what is none.
ScalarValue factor_of(const char* function, const char* parameter, nanobind::handle factor, DLDataType result,
                      DLDataType dtype);

/// The bytes of an element.
ScalarValue value_of_bytes(nanobind::handle bytes, DLDataType dtype);

}  // namespace interop::bindings::promotion
