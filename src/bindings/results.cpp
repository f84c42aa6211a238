/// The results that a C function or a kernel makes.
#include "bindings/results.h"

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
  shape.ndim = read_sizes(function, name, sizes, shape.sizes);
  for (int i = 0; i < shape.ndim; ++i) {
    if (shape.sizes[i] < 0) throw ValueError(std::string(function) + ": the shape of " + name + " has a negative size");
  }
  return shape;
}

}  // namespace interop::bindings
