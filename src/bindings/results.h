/// The results that a C function or a kernel makes, by the shape rules of `interop._array_function`.
#pragma once

#include <interop/tensor.h>
#include <nanobind/nanobind.h>

namespace interop::bindings {

/// The shape of the result `name`, by its rule: a tuple is the shape itself, an int the place of the argument of the
/// same shape among `tensors`. Throws ValueError for what is no shape.
Shape result_shape(const char* function, const char* name, nanobind::handle rule, const DLTensor* const* tensors);

}  // namespace interop::bindings
