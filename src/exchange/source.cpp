/// Where in the user's program a transfer comes from.
#include "exchange/source.h"

#include <string_view>

#include "exchange/python.h"

namespace interop::exchange {
namespace {

constexpr std::string_view kPackage = "interop";

const Lookup kPublic("interop", "__all__");

/// Empty for what is no text.
std::string_view text_in(PyObject* object) {
  const char* const text = object && PyUnicode_Check(object) ? PyUnicode_AsUTF8(object) : nullptr;
  if (!text) PyErr_Clear();
  return text ? text : "";
}

PyFrameObject* frame(const nb::object& object) { return reinterpret_cast<PyFrameObject*>(object.ptr()); }

nb::object code_of(const nb::object& frame_) {
  return nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame(frame_))));
}

bool is_ours(const nb::object& frame_) {
  const nb::object globals = nb::steal(PyFrame_GetGlobals(frame(frame_)));
  const std::string_view module = text_in(PyDict_GetItemString(globals.ptr(), "__name__"));
  return module == kPackage || module.substr(0, kPackage.size() + 1) == "interop.";
}

bool is_public(const nb::object& name) { return PySequence_Contains(kPublic.get().ptr(), name.ptr()) == 1; }

}  // namespace

profile::Source find_source(const char* function) {
  profile::Source source;
  if (function) source.function = function;
  if (!PyGILState_GetThisThreadState() || interpreter_is_gone()) return source;
  const nb::gil_scoped_acquire gil;
  const nb::error_scope error;  // left as it is
  nb::object at = nb::borrow(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (at.is_valid() && is_ours(at)) {
    const nb::object name = code_of(at).attr("co_name");
    if (is_public(name)) source.function = "interop." + text_of(name);
    at = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(frame(at))));
  }
  if (!at.is_valid()) return source;
  source.file = text_of(code_of(at).attr("co_filename"));
  source.line = PyFrame_GetLineNumber(frame(at));
  return source;
}

}  // namespace interop::exchange
