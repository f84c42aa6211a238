/// The dtype that operands share by themselves: the rule of functions and expressions, on arrays and in JAX.
#pragma once

#include <interop/elementwise.h>
#include <nanobind/nanobind.h>

#include <optional>

#include "bindings/scalars.h"

namespace interop::bindings {

/// An operand as promotion sees it.
struct PromotedOperand {
  Kind kind = Kind::array;            // of a scalar, and of a weakly typed array the scalar that it stands for
  std::optional<DLDataType> dtype;    // of an array
  nanobind::handle scalar = Py_None;  // of a scalar
};

/// The dtype in which an operation is computed, where the operands say it: that of the arrays, if they have one and no
/// scalar is of a stronger kind. Integers and bools are compared in a dtype that holds them all; in uint64, signed ones
/// keep their sign. A scalar there takes part by its value, so it counts by no dtype. Where no array is strong, the
/// first one counts as strong. None where the array library decides.
std::optional<DLDataType> shared_dtype(const Operation& operation, const PromotedOperand* operands, int count);

}  // namespace interop::bindings
