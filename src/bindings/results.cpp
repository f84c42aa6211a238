/// The results that a C function or a kernel makes.
#include "bindings/results.h"

#include <algorithm>
#include <string>

#include "exchange/python.h"

namespace interop::bindings {

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
  if (nb::len(sizes) > kMaxDims) throw ValueError(label + " is too long");
  shape.ndim = static_cast<int>(nb::len(sizes));
  for (int i = 0; i < shape.ndim; ++i) {
    shape.sizes[i] = exchange::to_int64(sizes[i]);
    if (shape.sizes[i] < 0) throw ValueError(label + " has a negative size");
  }
  return shape;
}

}  // namespace interop::bindings
