/// The scalars of a call: how they promote, and as elements.
#include "bindings/scalars.h"

#include <array>
#include <cstring>

#include "exchange/numpy.h"
#include "exchange/python.h"
#include "exchange/route.h"

namespace interop::bindings {
namespace {

using exchange::Lookup;

const Lookup kBytesOf("interop._promotion", "bytes_of");
const Lookup kElementOf("interop._promotion", "element_of");
const Lookup kInWords("interop._promotion", "in_words");
const Lookup kNumpyGeneric("numpy", "generic");

[[noreturn]] void out_of_range(const char* function, const char* name, nb::handle value, DLDataType dtype) {
  const nb::object words = kInWords.get()(value);
  PyErr_Format(PyExc_OverflowError, "%s: %s is %U, which %s cannot hold; accepted: a value in its range, or an array",
               function, name, words.ptr(), dtype_name(dtype).c_str());
  nb::raise_python_error();
}

template <typename T>
void put(ScalarValue& value, T x) {
  std::memcpy(value.bytes, &x, sizeof x);
}

void put_integer(ScalarValue& value, const char* function, const char* name, nb::handle x, DLDataType dtype) {
  const bool is_unsigned = dtype.code == kDLUInt;
  int overflow = 0;
  const long long wide = PyLong_AsLongLongAndOverflow(x.ptr(), &overflow);
  unsigned long long bits = static_cast<unsigned long long>(wide);
  if (is_unsigned && overflow > 0) {
    bits = PyLong_AsUnsignedLongLong(x.ptr());
    if (PyErr_Occurred()) {
      PyErr_Clear();
      out_of_range(function, name, x, dtype);
    }
    overflow = 0;
    if (dtype.bits < 64) out_of_range(function, name, x, dtype);
  } else if (is_unsigned) {
    if (overflow < 0 || wide < 0) out_of_range(function, name, x, dtype);
    if (dtype.bits < 64 && wide >> dtype.bits != 0) out_of_range(function, name, x, dtype);
  } else if (dtype.bits < 64) {
    const long long limit = 1LL << (dtype.bits - 1);
    if (overflow || wide < -limit || wide >= limit) out_of_range(function, name, x, dtype);
  } else if (overflow) {
    out_of_range(function, name, x, dtype);
  }
  put(value, bits);  // little-endian: the low bytes come first
}

// ---- arguments of C types ----

[[noreturn]] void no_number(const char* function, const char* name, nb::handle value, DLDataType dtype) {
  throw TypeError(std::string(function) + ": " + name + " is " + exchange::type_text(value) + "; accepted: " +
                  (is_integral(dtype) ? "an integer" : "a number") + ", as it is " + dtype_name(dtype));
}

[[noreturn]] void beyond_c_type(const char* function, const char* name, nb::handle value, DLDataType dtype) {
  PyErr_Format(PyExc_OverflowError, "%s: %s is %S, which %s cannot hold", function, name, value.ptr(),
               dtype_name(dtype).c_str());
  nb::raise_python_error();
}

uint64_t c_integer(const char* function, const char* name, nb::handle value, DLDataType dtype) {
  nb::object owner;
  if (!PyLong_Check(value.ptr())) {
    if (exchange::find_route(value) || !PyIndex_Check(value.ptr())) no_number(function, name, value, dtype);
    owner = nb::steal(PyNumber_Index(value.ptr()));
    if (!owner.is_valid()) nb::raise_python_error();
    value = owner;
  }
  if (dtype.code == kDLUInt && dtype.bits == 64) {
    const unsigned long long wide = PyLong_AsUnsignedLongLong(value.ptr());
    if (PyErr_Occurred()) {
      PyErr_Clear();
      beyond_c_type(function, name, value, dtype);
    }
    return wide;
  }
  int overflow = 0;
  const long long wide = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  const int bits = dtype.code == kDLBool ? 1 : dtype.bits;
  const bool is_signed = dtype.code == kDLInt;
  const long long low = is_signed ? -(1LL << (bits - 1) % 64) : 0;
  const bool fits = is_signed && bits == 64 ? !overflow
                    : is_signed             ? !overflow && wide >= low && wide < -low
                                            : !overflow && wide >= 0 && wide >> bits == 0;
  if (!fits) beyond_c_type(function, name, value, dtype);
  return static_cast<uint64_t>(wide);
}

double c_float(const char* function, const char* name, nb::handle value, DLDataType dtype) {
  const double wide = PyFloat_AsDouble(value.ptr());
  if (wide == -1.0 && PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) nb::raise_python_error();
    PyErr_Clear();
    no_number(function, name, value, dtype);
  }
  return wide;
}

Py_complex c_complex(const char* function, const char* name, nb::handle value, DLDataType dtype) {
  const Py_complex wide = PyComplex_AsCComplex(value.ptr());
  if (wide.real == -1.0 && PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) nb::raise_python_error();
    PyErr_Clear();
    no_number(function, name, value, dtype);
  }
  return wide;
}

}  // namespace

ScalarValue c_argument(const char* function, const char* name, nb::handle x, DLDataType dtype) {
  ScalarValue value{};
  if (is_integral(dtype)) {
    put(value, c_integer(function, name, x, dtype));
    return value;
  }
  if (!PyFloat_Check(x.ptr()) && !PyLong_Check(x.ptr()) && exchange::find_route(x)) no_number(function, name, x, dtype);
  if (dtype.code == kDLComplex) {
    const Py_complex parts = c_complex(function, name, x, dtype);
    if (dtype.bits == 64) {
      put(value, std::array<float, 2>{static_cast<float>(parts.real), static_cast<float>(parts.imag)});
    } else {
      put(value, std::array<double, 2>{parts.real, parts.imag});
    }
    return value;
  }
  const double wide = c_float(function, name, x, dtype);
  if (dtype == kFloat32) {
    put(value, static_cast<float>(wide));
  } else if (dtype == kFloat64) {
    put(value, wide);
  } else {
    value = value_by_numpy(nb::float_(wide), dtype);
  }
  return value;
}

Kind kind_of(nb::handle x) {
  if (PyFloat_CheckExact(x.ptr())) return Kind::real;
  if (PyBool_Check(x.ptr())) return Kind::boolean;
  if (PyLong_Check(x.ptr())) return Kind::integer;
  if (PyComplex_CheckExact(x.ptr())) return Kind::complex;
  if (exchange::find_route(x)) return Kind::array;
  if (nb::isinstance(x, kNumpyGeneric.get())) return Kind::numpy_scalar;  // numpy.float64 is a float, too
  return PyFloat_Check(x.ptr()) ? Kind::real : PyComplex_Check(x.ptr()) ? Kind::complex : Kind::array;
}

Kind kind_of(DLDataType dtype) {
  switch (dtype.code) {
    case kDLBool:
      return Kind::boolean;
    case kDLInt:
    case kDLUInt:
      return Kind::integer;
    case kDLComplex:
      return Kind::complex;
    default:
      return Kind::real;
  }
}

ScalarValue value_by_numpy(nb::handle x, DLDataType dtype) {
  const nb::object text = kBytesOf.get()(x, exchange::numpy_dtype(dtype));
  ScalarValue value{};
  std::memcpy(value.bytes, PyBytes_AS_STRING(text.ptr()), static_cast<size_t>(item_bytes(dtype)));
  return value;
}

ScalarValue value_of(const char* function, const char* name, nb::handle x, Kind kind, DLDataType dtype) {
  ScalarValue value{};
  if (kind == Kind::numpy_scalar || dtype.bits == 16 || (kind == Kind::complex && dtype.code != kDLComplex)) {
    // NumPy rounds to any dtype and tells its own scalars apart.
    return value_by_numpy(kElementOf.get()(function, name, x, exchange::numpy_dtype(dtype)), dtype);
  }
  if (dtype.code == kDLBool) {
    put(value, static_cast<unsigned char>(PyObject_IsTrue(x.ptr())));
  } else if (is_integral(dtype)) {
    put_integer(value, function, name, x, dtype);
  } else {
    const Py_complex parts = PyComplex_AsCComplex(x.ptr());
    if (parts.real == -1.0 && PyErr_Occurred()) {
      PyErr_Clear();
      out_of_range(function, name, x, dtype);
    }
    if (dtype == kFloat32) {
      put(value, static_cast<float>(parts.real));
    } else if (dtype == kFloat64) {
      put(value, parts.real);
    } else if (dtype.bits == 64) {
      put(value, std::array<float, 2>{static_cast<float>(parts.real), static_cast<float>(parts.imag)});
    } else {
      put(value, std::array<double, 2>{parts.real, parts.imag});
    }
  }
  return value;
}

}  // namespace interop::bindings
