/// Views of an `interop.Array`: no element is read or copied.
#include <numeric>

#include "bindings/bindings.h"
#include "exchange/array/array.h"
#include "exchange/array/subview.h"

namespace interop::bindings {
namespace {

using exchange::Array;

/// Numbers that are given one by one, or as one tuple or list.
std::vector<int64_t> numbers_of(nb::args given) {
  nb::object all = given;
  if (given.size() == 1 && !PyIndex_Check(nb::handle(given[0]).ptr())) all = given[0];
  std::vector<int64_t> numbers;
  for (nb::handle number : nb::iter(all)) {
    const nb::object integer = nb::steal(PyNumber_Index(number.ptr()));
    if (!integer.is_valid()) nb::raise_python_error();
    numbers.push_back(exchange::to_int64(integer));
  }
  return numbers;
}

Array reversed(const Array& array) {
  std::vector<int64_t> axes(array.shape.size());
  std::iota(axes.rbegin(), axes.rend(), 0);
  return exchange::transposed(array, axes);
}

Array transpose(const Array& array, nb::args axes) {
  const bool is_reversed = axes.size() == 0 || (axes.size() == 1 && nb::handle(axes[0]).is_none());
  return is_reversed ? reversed(array) : exchange::transposed(array, numbers_of(axes));
}

Array matrix_transpose(const Array& array) {
  const size_t ndim = array.shape.size();
  if (ndim < 2)
    throw ValueError("interop.Array: mT is for two dimensions or more, and the array has " + std::to_string(ndim));
  std::vector<int64_t> axes(ndim);
  std::iota(axes.begin(), axes.end(), 0);
  std::swap(axes[ndim - 1], axes[ndim - 2]);
  return exchange::transposed(array, axes);
}

}  // namespace

void add_views(nb::object object) {
  auto type = nb::borrow<nb::class_<Array>>(object);
  type.def("__getitem__", &exchange::subview, nb::arg("key").none(),
           nb::sig("def __getitem__(self, key: typing.Any, /) -> Array"),
           "A view, for ints, slices, Ellipsis and None.")
      .def(
          "reshape", [](const Array& array, nb::args shape) { return exchange::reshaped(array, numbers_of(shape)); },
          nb::sig("def reshape(self, *shape: typing.Any) -> Array"),
          "A view with another shape; ValueError where only a copy has the elements in that order.")
      .def("transpose", &transpose, nb::sig("def transpose(self, *axes: typing.Any) -> Array"),
           "A view with the dimensions in another order; by default reversed.")
      .def_prop_ro("T", &reversed, "A view with the dimensions reversed.")
      .def_prop_ro("mT", &matrix_transpose, "A view with the last two dimensions exchanged.")
      .def_prop_ro(
          "size",
          [](const Array& array) { return element_count(array.shape.data(), static_cast<int>(array.shape.size())); },
          "The number of elements.")
      .def_prop_ro("nbytes", &exchange::byte_count, "The bytes of the elements, without gaps between them.");
}

}  // namespace interop::bindings
