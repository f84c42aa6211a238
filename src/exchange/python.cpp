/// Small things every exchange file needs of Python.
#include "exchange/python.h"

#include <string_view>

namespace interop::exchange {

nb::object attribute_or_null(nb::handle object, const Name& name) {
  PyObject* value = PyObject_GetAttr(object.ptr(), name.get());
  if (value) return nb::steal(value);
  if (!PyErr_ExceptionMatches(PyExc_AttributeError)) nb::raise_python_error();
  PyErr_Clear();
  return nb::object();
}

void Lookup::find() const {
  nb::object object = nb::module_::import_(module_);
  std::string_view rest = attribute_;
  while (!rest.empty()) {
    const size_t dot = rest.find('.');
    object = object.attr(std::string(rest.substr(0, dot)).c_str());
    rest = dot == std::string_view::npos ? std::string_view() : rest.substr(dot + 1);
  }
  object_ = object.release().ptr();
}

void Fact::find() const {
  const nb::object found = attribute(type_.get(), name_);
  if (PyObject_TypeCheck(found.ptr(), &PyMethodDescr_Type)) {
    const PyMethodDef* method = reinterpret_cast<PyMethodDescrObject*>(found.ptr())->d_method;
    if (method->ml_flags == METH_NOARGS) method_ = method->ml_meth;
  } else if (PyObject_TypeCheck(found.ptr(), &PyGetSetDescr_Type)) {
    PyGetSetDef* property = reinterpret_cast<PyGetSetDescrObject*>(found.ptr())->d_getset;
    if (property->get) property_ = property;  // one that can only be set stays unknown
  }
  if (!method_ && !property_) {
    throw std::runtime_error("interop: " + text_of(type_.get()) + " has no '" + text_of(name_.get()) + "' in C");
  }
}

nb::object Fact::operator()(nb::handle object) const {
  require();
  PyObject* value = method_ ? method_(object.ptr(), nullptr) : property_->get(object.ptr(), property_->closure);
  if (!value) nb::raise_python_error();
  return nb::steal(value);
}

namespace {

/// Without line breaks, and the space that begins the next line.
std::string one_line(const std::string& text) {
  std::string line;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\n') {
      line += text[i];
      continue;
    }
    line += ' ';
    while (i + 1 < text.size() && text[i + 1] == ' ') ++i;
  }
  return line;
}

}  // namespace

std::string text_of(nb::handle object) {
  PyObject* text = PyObject_Str(object.ptr());
  if (!text) nb::raise_python_error();
  const nb::object owner = nb::steal(text);
  // A str may hold what UTF-8 cannot say (lone surrogates).
  PyObject* encoded = PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace");
  if (!encoded) nb::raise_python_error();
  const nb::bytes bytes = nb::steal<nb::bytes>(encoded);
  return std::string(bytes.c_str(), bytes.size());  // a str may hold NULs, too
}

namespace {

constexpr Py_ssize_t kLongest = 100;  // characters of a value in a message

/// The text of a str, cut short, on one line.
std::string short_text(nb::handle text) {
  if (PyUnicode_GET_LENGTH(text.ptr()) <= kLongest) return one_line(text_of(text));
  PyObject* start = PyUnicode_Substring(text.ptr(), 0, kLongest - 3);
  if (!start) nb::raise_python_error();
  return one_line(text_of(nb::steal(start))) + "...";
}

bool is_refusal() { return PyErr_ExceptionMatches(PyExc_Exception) && !PyErr_ExceptionMatches(PyExc_MemoryError); }

}  // namespace

std::string shown(nb::handle object) {
  PyObject* text = PyObject_Repr(object.ptr());
  if (text) return short_text(nb::steal(text));
  if (!is_refusal()) nb::raise_python_error();
  PyErr_Clear();
  if (!PyLong_Check(object.ptr())) return "an object without a repr (" + type_text(object) + ")";
  static const Name bit_length("bit_length");  // Python prints no integer of thousands of digits
  return "an integer of " + text_of(attribute(object, bit_length)()) + " bits";
}

std::string type_text(nb::handle object) {
  const nb::handle type = object.type();
  const std::string name = short_text(type.attr("__qualname__"));
  const nb::object module = nb::getattr(type, "__module__", nb::none());
  if (!nb::isinstance<nb::str>(module)) return name;
  const std::string prefix = short_text(module);
  return prefix == "builtins" ? name : prefix + "." + name;
}

std::string take_error_text() {
  if (!PyErr_Occurred()) return "it gives no reason";
  if (!is_refusal()) nb::raise_python_error();
  nb::python_error error;  // takes the error that is set
  const std::string text = text_of(error.value());
  return text.substr(0, text.find('\n'));  // torch adds its C++ frames
}

namespace {
PyObject* g_cuda_error = PyExc_RuntimeError;
}  // namespace

void set_cuda_error(nb::handle type) { g_cuda_error = type.inc_ref().ptr(); }

void throw_of_call(const char* function, bool has_execution) {
  try {
    throw;
  } catch (const CudaError& error) {
    throw CudaError(of_call(function, has_execution, error.what()));
  } catch (nb::python_error& error) {
    if (!error.matches(g_cuda_error)) throw;
    const std::string words = text_of(error.value());
    const std::string named = of_call(function, has_execution, words);
    if (named == words) throw;
    nb::raise_from(error, g_cuda_error, "%s", named.c_str());
  }
}

void set_python_error() noexcept {
  try {
    throw;
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const TypeError& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
  } catch (const ValueError& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const BufferError& error) {
    PyErr_SetString(PyExc_BufferError, error.what());
  } catch (const CudaError& error) {
    PyErr_SetString(g_cuda_error, error.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

int64_t to_int64(nb::handle value) {
  const long long result = PyLong_AsLongLong(value.ptr());
  if (result == -1 && PyErr_Occurred()) nb::raise_python_error();
  return result;
}

nb::object shape_tuple(const int64_t* sizes, int ndim) {
  PyObject* tuple = PyTuple_New(ndim);
  if (!tuple) nb::raise_python_error();
  for (int i = 0; i < ndim; ++i) {
    PyTuple_SET_ITEM(tuple, i, PyLong_FromLongLong(sizes[i]));
  }
  return nb::steal(tuple);
}

Within::Within(nb::object manager) : manager_(std::move(manager)) { manager_.attr("__enter__")(); }

Within::~Within() {
  const nb::error_scope kept;
  try {
    manager_.attr("__exit__")(nb::none(), nb::none(), nb::none());
  } catch (nb::python_error& error) {
    error.discard_as_unraisable(manager_);
  }
}

bool interpreter_is_gone() {
#if PY_VERSION_HEX >= 0x030D0000
  return !Py_IsInitialized() || Py_IsFinalizing();
#else
  return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}

}  // namespace interop::exchange
