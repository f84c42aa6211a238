/// A product of arrays without memory: what is known of it from shapes and dtypes.
#pragma once

#include <nanobind/nanobind.h>

namespace interop::bindings {

void bind_abstract_matmul(nanobind::module_& m);

}  // namespace interop::bindings
