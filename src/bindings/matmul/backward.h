/// The products in the gradients of a product.
#pragma once

#include <nanobind/nanobind.h>

namespace interop::bindings {

void bind_matmul_backward(nanobind::module_& m);

}  // namespace interop::bindings
