/// The elementwise operations by number, as Python counts them.
#pragma once

#include <interop/elementwise.h>

namespace interop::bindings {

/// Both throw ValueError for a number that is none.
ElementwiseOp elementwise_op(int index);
/// The public function: "interop.add".
const char* elementwise_name(int index);

}  // namespace interop::bindings
