/// What reads the values of an `interop.Array`, which waits for the work on them, or writes them.
#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "exchange/array/array.h"
#include "exchange/array/subview.h"
#include "exchange/closing.h"

namespace interop::bindings {
namespace {

using exchange::Array;
using exchange::Lookup;

const Lookup kText("interop._memory.printing", "text");
const Lookup kTo("interop._memory.moving", "to");
const Lookup kAstype("interop._memory.moving", "astype");
const Lookup kPrefetch("interop._memory.moving", "prefetch");
const Lookup kAdvise("interop._memory.moving", "advise");
const Lookup kCopied("interop._memory.moving", "copied");
const Lookup kReduced("interop._memory.moving", "reduced");
const Lookup kComplex("builtins", "complex");

std::string shape_of(const Array& array) {
  return shape_text(array.shape.data(), static_cast<int>(array.shape.size()));
}

/// Runs `body` as a method of that name, which may enter CUDA.
template <class Body>
auto as_method(const char* name, Body&& body) {
  const exchange::CallGuard guard;
  return exchange::as_call(name, false, body);
}

/// A method that is a function of Python's, which knows its arguments.
template <const Lookup& function>
nb::object call_python(nb::handle self, nb::args args, nb::kwargs kwargs) {
  return function.get()(self, *args, **kwargs);
}

/// The value of an array of one element, as a number of Python.
nb::object item(nb::handle self, const char* what) {
  const Array& array = nb::cast<const Array&>(self);
  if (element_count(array.shape.data(), static_cast<int>(array.shape.size())) != 1) {
    throw ValueError(std::string("interop.Array: ") + what +
                     " is for an array of one element, and this one has shape " + shape_of(array) +
                     "; accepted: x.tolist(), numpy.asarray(x)");
  }
  const nb::object value = as_method("interop.Array.item", [&] { return host_values(self); }).attr("item")();
  const bool is_python = PyBool_Check(value.ptr()) || PyLong_Check(value.ptr()) || PyFloat_Check(value.ptr()) ||
                         PyComplex_Check(value.ptr());
  return is_python ? value : nb::steal(PyNumber_Float(value.ptr()));  // those of ml_dtypes are not Python's
}

nb::object index(nb::handle self) {
  const Array& array = nb::cast<const Array&>(self);
  if (array.dtype.code != kDLInt && array.dtype.code != kDLUInt) {
    throw TypeError("interop.Array: an index is of integers, and this array is " + dtype_name(array.dtype));
  }
  if (!array.shape
           .empty()) {  // as of NumPy's arrays: bytes(x) and bytearray(x) take the buffer after a TypeError alone
    throw TypeError("interop.Array: an index is a 0-d array, and this array has " + std::to_string(array.shape.size()) +
                    " dimension(s); accepted: x.item() of one element");
  }
  return item(self, "an index");
}

nb::object as_number(PyObject* number) {
  if (!number) nb::raise_python_error();
  return nb::steal(number);
}

nb::object iterate(nb::handle self) {
  if (nb::cast<const Array&>(self).shape.empty())
    throw TypeError("interop.Array: a 0-d array has no elements to go over");
  return as_number(PySeqIter_New(self.ptr()));
}

}  // namespace

void add_values(nb::object object) {
  auto type = nb::borrow<nb::class_<Array>>(object);
  type.def(
          "__bool__", [](nb::handle self) { return PyObject_IsTrue(item(self, "truth").ptr()) == 1; },
          "The truth of the one element, which is waited for; ValueError for more.")
      .def(
          "__int__", [](nb::handle self) { return as_number(PyNumber_Long(item(self, "int()").ptr())); },
          nb::sig("def __int__(self) -> int"), "The one element; ValueError for more.")
      .def(
          "__float__", [](nb::handle self) { return as_number(PyNumber_Float(item(self, "float()").ptr())); },
          nb::sig("def __float__(self) -> float"), "The one element; ValueError for more.")
      .def(
          "__complex__", [](nb::handle self) { return kComplex.get()(item(self, "complex()")); },
          nb::sig("def __complex__(self) -> complex"), "The one element; ValueError for more.")
      .def("__index__", &index, nb::sig("def __index__(self) -> int"),
           "The element of a 0-d array of integers; TypeError for others.")
      .def(
          "item",
          [](nb::handle self, nb::args given, nb::kwargs keywords) {
            check_method_call("interop.Array.item", given, keywords);
            return item(self, "item()");
          },
          nb::sig("def item(self) -> bool | int | float | complex"),
          "The one element as a number of Python, once the work on it is done; ValueError for more.")
      .def(
          "tolist",
          [](nb::handle self, nb::args given, nb::kwargs keywords) {
            check_method_call("interop.Array.tolist", given, keywords);
            return as_method("interop.Array.tolist", [&] { return host_values(self); }).attr("tolist")();
          },
          nb::sig("def tolist(self) -> typing.Any"),
          "The elements as numbers of Python, in lists, once the work on them is done; copied from device memory.")
      .def(
          "synchronize",
          [](nb::handle self, nb::args given, nb::kwargs keywords) {
            check_method_call("interop.Array.synchronize", given, keywords);
            as_method("interop.Array.synchronize", [&] { nb::cast<const Array&>(self).make_host_wait(); });
          },
          nb::sig("def synchronize(self) -> None"),
          "Waits until all work on the memory is done: what a NumPy view that was taken before then shows.")
      .def(
          "__copy__", [](nb::handle self) { return kCopied.get()(self); }, nb::sig("def __copy__(self) -> Array"),
          "A compact copy in the same memory, as copy.copy of a NumPy array.")
      .def(
          "__deepcopy__", [](nb::handle self, nb::handle) { return kCopied.get()(self); }, nb::arg("memo").none(),
          nb::sig("def __deepcopy__(self, memo: typing.Any, /) -> Array"), "The same.")
      .def(
          "__reduce__", [](nb::handle self) { return kReduced.get()(self); },
          nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"),
          "What pickle writes: the elements, copied through the host, and the memory; of the device, none, so that it "
          "is the current one where it is read.")
      .def(
          "__format__",
          [](nb::handle self, nb::str spec) {
            if (nb::len(spec) == 0) return nb::str(self);
            return nb::steal<nb::str>(PyObject_Format(item(self, "format()").ptr(), spec.ptr()));
          },
          nb::sig("def __format__(self, spec: str, /) -> str"), "The one element, formatted; ValueError for more.")
      .def(
          "__repr__", [](nb::handle self) { return kText.get()(self); }, nb::sig("def __repr__(self) -> str"))
      .def("__iter__", &iterate, nb::sig("def __iter__(self) -> typing.Iterator[Array]"),
           "Views along the first dimension.")
      .def(
          "__setitem__",
          [](nb::handle self, nb::handle key, nb::handle value) {
            constexpr CopyNames kNames{"interop.Array.__setitem__", "the array", "value"};
            as_method(kNames.function, [&] {
              copy_into(kNames, nb::cast(exchange::subview(nb::cast<const Array&>(self), key)), value);
            });
          },
          nb::arg("key").none(), nb::arg("value").none(),
          nb::sig("def __setitem__(self, key: typing.Any, value: typing.Any, /) -> None"),
          "Copies an array or a scalar there, as `interop.copyto`.")
      .def("to", &call_python<kTo>,
           nb::sig("def to(self, *, memory: str | None = None, device: int | str | None = None, stream: typing.Any = "
                   "None) -> Array"),
           "The array itself if it lies there, else a copy in that memory, on that device, queued on `stream`.")
      .def(
          "astype", &call_python<kAstype>, nb::sig("def astype(self, dtype: typing.Any) -> Array"),
          "A copy in another dtype, in the same memory. Of the host's and pinned memory by NumPy, with the rule "
          "\"unsafe\": "
          "what a dtype cannot hold is as there, and undefined of floats made integers. On a GPU integers wrap, and to "
          "make integers of floats, or reals of complex numbers, is a TypeError.")
      .def("prefetch", &call_python<kPrefetch>,
           nb::sig("def prefetch(self, device: int | str | None = None, *, stream: typing.Any = None) -> None"),
           "Moves managed memory to a device, or to the \"host\", before it is used there.")
      .def("advise", &call_python<kAdvise>,
           nb::sig("def advise(self, advice: str, device: int | str | None = None, *, value: bool = True) -> None"),
           "Tells CUDA how managed memory will be used: \"read_mostly\", \"preferred_location\", \"accessed_by\".");
}

}  // namespace interop::bindings
