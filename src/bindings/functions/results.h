/// Shapes that Python gives: of JAX's tracers, and of the results that a C function or a kernel makes, by the shape
/// rules of `interop._functions.array_function`.
#pragma once

#include <interop/call.h>
#include <interop/tensor.h>
#include <nanobind/nanobind.h>

namespace interop::bindings {

/// Throws ValueError for more dimensions than kMaxDims.
void check_ndim(const char* function, const char* name, size_t ndim);

/// The sizes in a tuple or list into `out`, which takes kMaxDims; returns how many. Throws ValueError for more.
int read_sizes(const char* function, const char* name, nanobind::handle sizes, int64_t* out);

/// The shape of the result `name`, by its rule: a tuple is the shape itself, an int the place of the argument of the
/// same shape among `tensors`. Throws ValueError for what is no shape.
Shape result_shape(const char* function, const char* name, nanobind::handle rule, const DLTensor* const* tensors);

/// Throws ValueError where the array that a caller gives for the result `name` has another shape than its rule says:
/// the function would write beyond it, or leave a part of it.
void check_given_result(const char* function, const char* name, nanobind::handle rule, const DLTensor* const* tensors,
                        const DLTensor& given);

/// Throws TypeError where argument `i`, for a pointer or a view of the GPU's, is in host memory, and nothing asks for a
/// copy of it. `dtype` is what the parameter takes.
void require_gpu(const char* function, const char* name, const Call& call, int i, DLDataType dtype);

}  // namespace interop::bindings
