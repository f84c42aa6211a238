/// The gradient of an operator, as torch's autograd calls it: what it is given, and whether what it gives is one.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "bindings/bindings.h"
#include "bindings/frame.h"
#include "exchange/python.h"
#include "exchange/routes/torch.h"

namespace interop::bindings {
namespace {

using exchange::Name;

const Name kShape("shape"), kDtype("dtype");

bool are_compact(const nb::tuple& tensors) {
  for (const nb::handle x : tensors) {
    if (!exchange::is_compact(x)) return false;
  }
  return true;
}

class OperatorGradient {
 public:
  /// `gradient(g, *values)`; `sources`: of each value, its place among the tensors that a call has saved and the
  /// numbers, which follow these, or -1 for one that is not kept. `is_array`: of each input. `check(given, facts)`
  /// returns what `call` does, or raises.
  OperatorGradient(nb::object gradient, std::vector<int> sources, std::vector<bool> is_array, nb::object check)
      : gradient_(std::move(gradient)),
        sources_(std::move(sources)),
        is_array_(std::move(is_array)),
        check_(std::move(check)) {}

  /// None, and the gradients by the inputs; NotImplemented for `grads` that kernels could not be given, unless they are
  /// to be passed `as_they_are`. `facts`: the shapes and dtypes of the inputs that are arrays.
  nb::object call(const nb::tuple& grads, const nb::tuple& saved, const nb::tuple& numbers, const nb::tuple& facts,
                  bool as_they_are) const {
    if (!as_they_are && !are_compact(grads)) return nb::borrow(Py_NotImplemented);
    const size_t count = sources_.size(), saved_count = nb::len(saved);
    Room<PyObject*> passed(static_cast<int>(count) + 1);
    passed[0] = nb::len(grads) == 1 ? PyTuple_GET_ITEM(grads.ptr(), 0) : grads.ptr();
    for (size_t i = 0; i < count; ++i) {
      PyObject*& value = passed[static_cast<int>(i) + 1];
      const auto place = static_cast<size_t>(sources_[i]);
      if (sources_[i] < 0) {
        value = Py_None;
      } else if (place < saved_count) {
        value = PyTuple_GET_ITEM(saved.ptr(), static_cast<Py_ssize_t>(place));
      } else {
        value = nb::handle(numbers[place - saved_count]).ptr();
      }
    }
    const nb::object given = nb::steal(PyObject_Vectorcall(gradient_.ptr(), passed.data(), count + 1, nullptr));
    if (!given.is_valid()) nb::raise_python_error();
    nb::object made = as_gradients(given, facts);
    return made.is_valid() ? made : check_(given, facts);
  }

 private:
  /// Null unless these are None or an array of the shape and dtype of the input, for each input: a tuple, or that alone
  /// where there is one input.
  nb::object as_gradients(nb::handle given, const nb::tuple& facts) const {
    const size_t count = is_array_.size();
    const bool is_tuple = PyTuple_CheckExact(given.ptr());
    if (is_tuple ? nb::len(given) != count : count != 1) return {};
    nb::object made = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(count) + 1));
    if (!made.is_valid()) nb::raise_python_error();
    PyTuple_SET_ITEM(made.ptr(), 0, Py_NewRef(Py_None));
    size_t k = 0;
    for (size_t i = 0; i < count; ++i) {
      const auto at = static_cast<Py_ssize_t>(i);
      PyObject* const x = is_tuple ? PyTuple_GET_ITEM(given.ptr(), at) : given.ptr();
      PyTuple_SET_ITEM(made.ptr(), at + 1, Py_NewRef(x));
      const nb::handle of_input = is_array_[i] ? nb::handle(facts[k++]) : nb::handle();
      if (x == Py_None) continue;
      if (!is_array_[i] || !fits(x, of_input)) return {};
    }
    return made;
  }

  static bool fits(nb::handle x, nb::handle facts) {
    const nb::object dtype = exchange::attribute_or_null(x, kDtype);
    if (!dtype.is(facts[1])) return false;
    const nb::object shape = exchange::attribute_or_null(x, kShape);
    if (!shape.is_valid()) return false;
    const int answer = PyObject_RichCompareBool(shape.ptr(), nb::object(facts[0]).ptr(), Py_EQ);
    if (answer < 0) nb::raise_python_error();
    return answer == 1;
  }

  const nb::object gradient_;
  const std::vector<int> sources_;
  const std::vector<bool> is_array_;
  const nb::object check_;
};

}  // namespace

void bind_operator_gradient(nb::module_& m) {
  nb::class_<OperatorGradient>(m, "OperatorGradient", "The gradient of an operator, as torch's autograd calls it.")
      .def(nb::init<nb::object, std::vector<int>, std::vector<bool>, nb::object>(), nb::arg("gradient").none(),
           nb::arg("sources"), nb::arg("is_array"), nb::arg("check"),
           nb::sig("def __init__(self, gradient: collections.abc.Callable[..., typing.Any] | None, sources: "
                   "collections.abc.Sequence[int], is_array: collections.abc.Sequence[bool], check: "
                   "collections.abc.Callable[[typing.Any, tuple[typing.Any, ...]], tuple[typing.Any, ...]]) -> None"))
      .def(
          "call", &OperatorGradient::call, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg() = false,
          nb::sig("def call(self, grads: tuple[typing.Any, ...], saved: tuple[typing.Any, ...], numbers: "
                  "tuple[typing.Any, ...], facts: tuple[typing.Any, ...], as_they_are: bool = False, /) -> typing.Any"),
          "None, and the gradients by the inputs; NotImplemented for grads that kernels could not be given.");
}

}  // namespace interop::bindings
