/// Small things every exchange file needs of Python: names made once, modules found once, errors.
#pragma once

#include <interop/error.h>
#include <interop/profile.h>
#include <interop/tensor.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

namespace nb = nanobind;

namespace interop::exchange {

/// An attribute or a keyword name, interned once and never freed, so that no static object owns Python.
class Name {
 public:
  explicit Name(const char* text) : text_(text) {}
  PyObject* get() const {
    if (!object_) object_ = PyUnicode_InternFromString(text_);
    return object_;
  }

 private:
  const char* text_;
  mutable PyObject* object_ = nullptr;
};

/// `object.name`; throws the Python error if there is none.
inline nb::object attribute(nb::handle object, const Name& name) {
  PyObject* value = PyObject_GetAttr(object.ptr(), name.get());
  if (!value) nb::raise_python_error();
  return nb::steal(value);
}

/// `object.name`, or a null object if there is none (any error is cleared only if it is AttributeError).
nb::object attribute_or_null(nb::handle object, const Name& name);

/// An object that is imported and looked up once ("torch", "is_grad_enabled"; the attribute may be dotted), then kept
/// for the life of the process. Two threads may both look it up, as an import lets go of the GIL: they find the same.
class Lookup {
 public:
  Lookup(const char* module, const char* attribute) : module_(module), attribute_(attribute) {}
  nb::handle get() const {
    if (!object_) find();
    return object_;
  }

 private:
  void find() const;
  const char* module_;
  const char* attribute_;
  mutable PyObject* object_ = nullptr;
};

/// A property, or a method without arguments, of a type written in C ("torch", "Tensor", "is_neg"). It is found once,
/// and then called without Python's lookup by name.
class Fact {
 public:
  Fact(const char* module, const char* type, const char* name) : type_(module, type), name_(name) {}
  /// `object.name`, or `object.name()`; throws the Python error. The object is of the type, or of a subtype that
  /// overrides nothing.
  nb::object operator()(nb::handle object) const;
  /// Finds it, if it is not found yet; throws if the type has no such thing in C.
  void require() const {
    if (!method_ && !property_) find();
  }

 private:
  void find() const;
  Lookup type_;
  Name name_;
  mutable PyCFunction method_ = nullptr;
  mutable PyGetSetDef* property_ = nullptr;
};

/// str(object).
std::string text_of(nb::handle object);

/// repr(object) for a message: one line, cut short. An object without a repr is named by its type.
std::string shown(nb::handle object);

/// "numpy.ndarray", "list": a type as a message names it.
std::string type_text(nb::handle object);

/// The first line of str(exception) for the Python error that is set; the error is cleared. An error that is no refusal
/// (KeyboardInterrupt, MemoryError) is thrown unchanged.
std::string take_error_text();

/// Takes the Python type of CudaError, which is kept for the life of the process. The module says it when it is made.
void set_cuda_error(nb::handle type);

/// In a catch block of a C function that Python calls: sets the Python error that the C++ exception stands for.
void set_python_error() noexcept;

/// In a catch block: rethrows the exception; a CudaError gets the message of `of_call`.
[[noreturn]] void throw_of_call(const char* function, bool has_execution);

/// Runs the body of a call; a CudaError is given the name of the call, and so are its transfers in a profile.
template <class Body>
auto as_call(const char* function, bool has_execution, Body&& body) -> decltype(body()) {
  const profile::Within within(function);
  try {
    return body();
  } catch (...) {
    throw_of_call(function, has_execution);
  }
}

/// An int that fits, or the Python error that says it does not.
int64_t to_int64(nb::handle value);

/// A shape as a Python tuple.
nb::object shape_tuple(const int64_t* sizes, int ndim);
inline nb::object shape_tuple(const Shape& shape) { return shape_tuple(shape.sizes, shape.ndim); }

/// A context manager of Python's, entered for the life of this object. Leaves the error indicator as it is.
class Within {
 public:
  explicit Within(nb::object manager);
  ~Within();
  Within(const Within&) = delete;
  Within& operator=(const Within&) = delete;

 private:
  nb::object manager_;
};

/// Has the interpreter begun to shut down? Then no thread may ask for the GIL.
bool interpreter_is_gone();

}  // namespace interop::exchange
