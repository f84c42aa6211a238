/// What Python gives a function whose arguments are read here: their number and their names.
#pragma once

#include <nanobind/nanobind.h>

namespace interop::bindings {

/// `interop._core.missing`: stands for an operand that was not given.
bool is_missing(nanobind::handle x);

/// Raises the TypeError of a call that does not fit the signature of a public function: an operand is missing, or a
/// keyword is unknown.
[[noreturn]] void refuse_call(const char* function, nanobind::handle a, nanobind::handle b, nanobind::handle keywords);

}  // namespace interop::bindings
