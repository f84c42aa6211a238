/// The results that a C function or a kernel makes.
#include "bindings/functions/results.h"

#include <algorithm>
#include <string>

#include "exchange/python.h"

namespace interop::bindings {

void check_ndim(const char* function, const char* name, size_t ndim) {
  if (ndim <= kMaxDims) return;
  throw ValueError(std::string(function) + ": " + name + " has " + std::to_string(ndim) +
                   " dimensions; accepted: up to " + std::to_string(kMaxDims));
}

int read_sizes(const char* function, const char* name, nb::handle sizes, int64_t* out) {
  const size_t count = nb::len(sizes);
  check_ndim(function, name, count);
  for (size_t i = 0; i < count; ++i) out[i] = exchange::to_int64(nb::object(sizes[i]));
  return static_cast<int>(count);
}

Shape result_shape(const char* function, const char* name, nb::handle rule, const DLTensor* const* tensors) {
  Shape shape;
  if (PyLong_Check(rule.ptr())) {
    const DLTensor& like = *tensors[exchange::to_int64(rule)];
    shape.ndim = like.ndim;
    std::copy(like.shape, like.shape + like.ndim, shape.sizes);
    return shape;
  }
  const nb::tuple sizes = nb::borrow<nb::tuple>(rule);
  const std::string label = std::string(function) + ": the shape of " + name;
  if (nb::len(sizes) > kMaxDims) {
    throw ValueError(label + " has " + std::to_string(nb::len(sizes)) + " sizes; accepted: up to " +
                     std::to_string(kMaxDims));
  }
  shape.ndim = static_cast<int>(nb::len(sizes));
  for (int i = 0; i < shape.ndim; ++i) {
    int overflow = 0;
    const long long size = PyLong_AsLongLongAndOverflow(sizes[i].ptr(), &overflow);
    if (size == -1 && !overflow && PyErr_Occurred()) {
      if (!PyErr_ExceptionMatches(PyExc_TypeError)) nb::raise_python_error();
      PyErr_Clear();
      throw TypeError(label + " has the size " + exchange::type_text(sizes[i]) + "; accepted: an int");
    }
    if (overflow || size < 0) {
      throw ValueError(label + " has the size " + exchange::shown(sizes[i]) + "; accepted: 0 to 9223372036854775807");
    }
    shape.sizes[i] = size;
  }
  return shape;
}

void check_given_result(const char* function, const char* name, nb::handle rule, const DLTensor* const* tensors,
                        const DLTensor& given) {
  const Shape shape = result_shape(function, name, rule, tensors);
  if (given.ndim == shape.ndim && std::equal(shape.sizes, shape.sizes + shape.ndim, given.shape)) return;
  throw ValueError(std::string(function) + ": " + name + " has shape " + shape_text(given) +
                   "; accepted: the shape that returning() says, " + shape_text(shape));
}

void require_gpu(const char* function, const char* name, const Call& call, int i, DLDataType dtype) {
  if (!call.on_host()) return;
  const DLTensor& tensor = call.tensor(i);
  throw TypeError(std::string(function) + ": " + name + " is " + dtype_name(tensor.dtype) + " of shape " +
                  shape_text(tensor) + " on " + device_text(tensor.device) +
                  "; accepted: " + (dtype.bits ? "a " + dtype_name(dtype) : "an") +
                  " array on a CUDA device, or execution=\"cuda\", which copies host arrays there and back");
}

}  // namespace interop::bindings
