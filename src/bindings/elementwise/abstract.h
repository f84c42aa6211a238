/// The table of operations, and what is known of elementwise operations on arrays without memory.
#pragma once

#include <nanobind/nanobind.h>

namespace interop::bindings {

void bind_abstract_elementwise(nanobind::module_& m);

}  // namespace interop::bindings
