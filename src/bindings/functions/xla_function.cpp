/// The table of the functions that XLA calls.
#include "bindings/functions/xla_function.h"

#include <interop/error.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <map>
#include <mutex>
#include <shared_mutex>

#include "bindings/bindings.h"
#include "bindings/functions/results.h"
#include "bindings/scalars.h"
#include "exchange/typestr.h"

namespace nb = nanobind;

namespace interop::bindings {
namespace {

/// Of the process, and never destroyed: XLA's threads may outlive the interpreter.
struct Table {
  std::shared_mutex mutex;
  std::map<std::string, std::unique_ptr<XlaFunction>, std::less<>> functions;
  nb::object find;  // of a key: has it kept, if this process has made the function
};

Table& table() {
  static auto* const all = new Table;
  return *all;
}

XlaFunction* known(std::string_view key) {
  const std::shared_lock lock(table().mutex);
  const auto found = table().functions.find(key);
  return found == table().functions.end() ? nullptr : found->second.get();
}

/// Runs `work` with the GIL; Python's error becomes one that is read without it.
template <class Work>
void with_python(Work work) {
  if (!Py_IsInitialized()) throw ValueError("interop: a program was run after Python's end");
  const nb::gil_scoped_acquire gil;
  try {
    work();
  } catch (nb::python_error& error) {
    throw std::runtime_error(nb::str(error.value()).c_str());
  }
}

XlaFunction& looked_for(std::string_view key) {
  if (XlaFunction* const function = known(key)) return *function;
  with_python([&] {
    if (table().find.is_valid()) table().find(nb::str(key.data(), key.size()));
  });
  if (XlaFunction* const function = known(key)) return *function;
  throw ValueError("interop: the program calls '" + std::string(key.substr(0, key.rfind('-'))) +
                   "', a kernel or C function that this process has not made; accepted: a process in which "
                   "interop.kernel or interop.load has made it of the same source or file, before the program is "
                   "loaded");
}

nb::bytes number_of(const std::string& label, const std::string& name, nb::handle value, const std::string& dtype) {
  const auto type = exchange::dtype_from_name(dtype);
  if (!type) throw TypeError("interop: no dtype is called " + dtype);
  const ScalarValue number = c_argument(label.c_str(), name.c_str(), value, *type);
  return nb::bytes(number.bytes, sizeof number.bytes);
}

nb::tuple shape_of(const std::string& label, const std::string& name, nb::tuple sizes) {
  const Shape shape = result_shape(label.c_str(), name.c_str(), sizes, nullptr);
  nb::list read;
  for (int i = 0; i < shape.ndim; ++i) read.append(shape.sizes[i]);
  return nb::tuple(read);
}

}  // namespace

void keep_for_xla(const std::string& key, std::unique_ptr<XlaFunction> function) {
  const std::unique_lock lock(table().mutex);
  table().functions.try_emplace(key, std::move(function));
}

const XlaFunction& function_of_xla(std::string_view key) { return looked_for(key); }

void prepare_for_xla(std::string_view key) {
  XlaFunction& function = looked_for(key);
  with_python([&] { function.prepare(); });
}

void bind_xla_function(nb::module_& m) {
  m.def(
      "find_for_xla", [](nb::object find) { table().find = std::move(find); }, nb::arg(),
      nb::sig("def find_for_xla(find: typing.Callable[[str], None], /) -> None"),
      "Have XLA's programs call `find` for a function that is not kept: it keeps it, if the process has made it.");
  m.def(
      "prepare_for_xla", [](const std::string& key) { looked_for(key).prepare(); }, nb::arg(),
      nb::sig("def prepare_for_xla(key: str, /) -> None"),
      "Have the function of that key compiled, for the devices of this machine.");
  m.def("xla_number", &number_of, nb::arg(), nb::arg(), nb::arg(), nb::arg(),
        nb::sig("def xla_number(label: str, name: str, value: typing.Any, dtype: str, /) -> bytes"),
        "The value of a parameter of that dtype, as a program of XLA's has it.");
  m.def("xla_shape", &shape_of, nb::arg(), nb::arg(), nb::arg(),
        nb::sig("def xla_shape(label: str, name: str, sizes: tuple[typing.Any, ...], /) -> tuple[int, ...]"),
        "The shape of a result, checked.");
}

}  // namespace interop::bindings
