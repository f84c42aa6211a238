/// Views of an `interop.Array`: no element is read or copied.
#include <numeric>

#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "exchange/array/array.h"
#include "exchange/array/subview.h"

namespace interop::bindings {
namespace {

using exchange::Array;

/// Numbers that are given one by one, or as one sequence. Throws TypeError and ValueError, with the names.
std::vector<int64_t> numbers_of(const char* function, const char* name, nb::args given) {
  nb::object all = given;
  if (given.size() == 1 && !PyIndex_Check(nb::handle(given[0]).ptr())) all = given[0];
  const std::string label = std::string("interop.Array.") + function + ": " + name + " is ";
  const nb::object items = nb::steal(PySequence_Tuple(all.ptr()));
  std::vector<int64_t> numbers;
  for (Py_ssize_t i = 0; items.is_valid() && i < PyTuple_GET_SIZE(items.ptr()); ++i) {
    const nb::object integer = nb::steal(PyNumber_Index(PyTuple_GET_ITEM(items.ptr(), i)));
    if (!integer.is_valid()) break;
    int overflow = 0;
    numbers.push_back(PyLong_AsLongLongAndOverflow(integer.ptr(), &overflow));
    if (overflow) throw ValueError(label + exchange::shown(all) + "; accepted: ints of 64 bits");
  }
  if (!PyErr_Occurred()) {
    if (numbers.size() <= kMaxDims) return numbers;
    throw ValueError(label + std::to_string(numbers.size()) + " numbers; accepted: up to " + std::to_string(kMaxDims));
  }
  if (!PyErr_ExceptionMatches(PyExc_TypeError)) nb::raise_python_error();
  PyErr_Clear();
  throw TypeError(label + exchange::shown(all) + "; accepted: ints, or a sequence of ints");
}

Array reversed(const Array& array) {
  std::vector<int64_t> axes(array.shape.size());
  std::iota(axes.rbegin(), axes.rend(), 0);
  return exchange::transposed(array, axes);
}

Array reshape(const Array& array, nb::args shape, nb::kwargs keywords) {
  if (keywords.size() > 0) refuse_method_call("interop.Array.reshape", shape, keywords, "shape");
  return exchange::reshaped(array, numbers_of("reshape", "shape", shape));
}

Array transpose(const Array& array, nb::args axes, nb::kwargs keywords) {
  if (keywords.size() > 0) refuse_method_call("interop.Array.transpose", axes, keywords, "axes");
  const bool is_reversed = axes.size() == 0 || (axes.size() == 1 && nb::handle(axes[0]).is_none());
  return is_reversed ? reversed(array) : exchange::transposed(array, numbers_of("transpose", "axes", axes));
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
      .def("reshape", &reshape, nb::sig("def reshape(self, *shape: typing.Any) -> Array"),
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
