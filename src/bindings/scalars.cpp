/// The scalars of a call: how they promote, and as elements.
#include "bindings/scalars.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "bindings/promotion.h"
#include "exchange/python.h"
#include "exchange/route.h"
#include "exchange/routes/numpy.h"

namespace interop::bindings {
namespace {

using exchange::attribute;
using exchange::Lookup;
using exchange::Name;

const Lookup kNumpyGeneric("numpy", "generic");
const Lookup kNumpyBool("numpy", "bool_");
const Lookup kNumpyNdarray("numpy", "ndarray");
const Lookup kAsarray("numpy", "asarray");
const Name kAstype("astype");
const Name kTobytes("tobytes");
const Name kDtype("dtype");
const Name kKind("kind");
const Name kReal("real");
const Name kImag("imag");

[[noreturn]] void out_of_range(const char* function, const char* name, nb::handle value, DLDataType dtype) {
  // An array there would have a dtype of its own, which takes part in promotion.
  const char* const also = std::strcmp(name, "where_zero") == 0 ? "" : ", or an array";
  PyErr_Format(PyExc_OverflowError, "%s: %s is %s, which %s cannot hold; accepted: a value in its range%s", function,
               name, exchange::shown(value).c_str(), dtype_name(dtype).c_str(), also);
  nb::raise_python_error();
}

template <typename T>
void put(ScalarValue& value, T x) {
  std::memcpy(value.bytes, &x, sizeof x);
}

/// The bits of an integer, of which the low ones are an element of `dtype`; none if that cannot hold it.
std::optional<uint64_t> integer_bits(nb::handle x, DLDataType dtype) {
  int overflow = 0;
  const long long wide = PyLong_AsLongLongAndOverflow(x.ptr(), &overflow);
  const int bits = dtype.code == kDLBool ? 1 : dtype.bits;
  if (dtype.code == kDLInt) {
    const long long limit = 1LL << (bits - 1) % 63;
    if (overflow || (bits < 64 && (wide < -limit || wide >= limit))) return std::nullopt;
  } else if (overflow > 0 && bits == 64) {
    const unsigned long long unsigned_wide = PyLong_AsUnsignedLongLong(x.ptr());
    if (!PyErr_Occurred()) return unsigned_wide;
    PyErr_Clear();
    return std::nullopt;
  } else if (overflow || wide < 0 || (bits < 64 && wide >> bits != 0)) {
    return std::nullopt;
  }
  return static_cast<uint64_t>(wide);
}

void put_integer(ScalarValue& value, const char* function, const char* name, nb::handle x, DLDataType dtype) {
  const std::optional<uint64_t> bits = integer_bits(x, dtype);
  if (!bits) out_of_range(function, name, x, dtype);
  put(value, *bits);  // little-endian: the low bytes come first
}

// ---- arguments of C types ----

[[noreturn]] void no_number(const char* function, const char* name, nb::handle value, DLDataType dtype) {
  throw TypeError(std::string(function) + ": " + name + " is " + exchange::type_text(value) + "; accepted: " +
                  (is_integral(dtype) ? "an integer" : "a number") + ", as it is " + dtype_name(dtype));
}

[[noreturn]] void beyond_c_type(const char* function, const char* name, nb::handle value, DLDataType dtype) {
  PyErr_Format(PyExc_OverflowError, "%s: %s is %s, which %s cannot hold", function, name,
               exchange::shown(value).c_str(), dtype_name(dtype).c_str());
  nb::raise_python_error();
}

/// The least number that a type has no finite value for, once it is rounded.
double least_beyond(DLDataType dtype) {
  if (dtype == kFloat32) return 0x1.ffffffp127;
  if (dtype == kBfloat16) return 0x1.ffp127;
  if (dtype.code == kDLFloat && dtype.bits == 16) return 0x1.ffep15;
  if (dtype.code == kDLFloat8_e4m3fn) return 0x1.d00002p8;
  if (dtype.code == kDLFloat8_e5m2) return 0x1.ep15;
  return HUGE_VAL;
}

/// Can `dtype`, a type of real numbers, hold `value`, which is `wide` as a double? An infinite one is held as it is.
bool holds(DLDataType dtype, nb::handle value, double wide) {
  if (std::isfinite(wide)) {
    const bool by_float = dtype == kBfloat16 || dtype.bits == 8;  // as ml_dtypes rounds
    const double rounded = by_float ? static_cast<float>(wide) : wide;
    return std::fabs(rounded) < least_beyond(dtype);
  }
  if (std::isnan(wide)) return true;
  if (dtype.code == kDLFloat8_e4m3fn) return false;  // it has no infinity
  if (PyFloat_Check(value.ptr()) || PyComplex_Check(value.ptr())) return true;
  // NumPy's long double and Decimal become infinite in silence.
  const int same = PyObject_RichCompareBool(value.ptr(), nb::float_(wide).ptr(), Py_EQ);
  if (same < 0) nb::raise_python_error();
  return same != 0;
}

/// Is it an array? Its value would be waited for, or its mask or unit be lost.
bool is_array(nb::handle value) { return exchange::find_route(value) || nb::isinstance(value, kNumpyNdarray.get()); }

/// Python's error of a value that is no double, with the names.
[[noreturn]] void no_float(const char* function, const char* name, nb::handle value, DLDataType dtype) {
  const bool is_beyond = PyErr_ExceptionMatches(PyExc_OverflowError);
  if (!is_beyond && !PyErr_ExceptionMatches(PyExc_TypeError)) nb::raise_python_error();
  PyErr_Clear();
  if (is_beyond) beyond_c_type(function, name, value, dtype);
  no_number(function, name, value, dtype);
}

uint64_t c_integer(const char* function, const char* name, nb::handle value, DLDataType dtype) {
  nb::object owner;
  if (!PyLong_Check(value.ptr())) {
    if (is_array(value)) no_number(function, name, value, dtype);
    if (nb::isinstance(value, kNumpyBool.get())) return static_cast<uint64_t>(PyObject_IsTrue(value.ptr()));
    if (!PyIndex_Check(value.ptr())) no_number(function, name, value, dtype);
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
  if (wide == -1.0 && PyErr_Occurred()) no_float(function, name, value, dtype);
  if (!holds(dtype, value, wide)) beyond_c_type(function, name, value, dtype);
  return wide;
}

Py_complex c_complex(const char* function, const char* name, nb::handle value, DLDataType dtype) {
  const Py_complex wide = PyComplex_AsCComplex(value.ptr());
  if (wide.real == -1.0 && PyErr_Occurred()) no_float(function, name, value, dtype);
  const DLDataType part{kDLFloat, static_cast<uint8_t>(dtype.bits / 2), 1};
  nb::object real = nb::borrow(value), imaginary = real;
  if (!PyComplex_Check(value.ptr()) && (std::isinf(wide.real) || std::isinf(wide.imag))) {
    real = attribute(value, kReal);
    imaginary = attribute(value, kImag);
  }
  if (!holds(part, real, wide.real) || !holds(part, imaginary, wide.imag)) beyond_c_type(function, name, value, dtype);
  return wide;
}

}  // namespace

ScalarValue c_argument(const char* function, const char* name, nb::handle x, DLDataType dtype) {
  ScalarValue value{};
  if (is_integral(dtype)) {
    put(value, c_integer(function, name, x, dtype));
    return value;
  }
  if (!PyFloat_Check(x.ptr()) && !PyLong_Check(x.ptr()) && is_array(x)) no_number(function, name, x, dtype);
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

bool is_integral_scalar(nb::handle x, Kind kind) {
  if (kind != Kind::numpy_scalar) return kind == Kind::boolean || kind == Kind::integer;
  const std::string letter = exchange::text_of(attribute(attribute(x, kDtype), kKind));
  return letter == "b" || letter == "i" || letter == "u";
}

bool fits(nb::handle x, Kind kind, DLDataType dtype) {
  if (kind == Kind::numpy_scalar) return false;
  if (kind == Kind::boolean || kind == Kind::complex) return true;
  if (is_integral(dtype)) return kind == Kind::integer && integer_bits(x, dtype);
  const double real = PyFloat_AsDouble(x.ptr());
  if (real == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    return false;
  }
  if (dtype.bits == 16) return std::abs(real) < 65504;  // float16's largest; bfloat16's is more
  const bool is_double = dtype.bits == (dtype.code == kDLComplex ? 128 : 64);
  return is_double || !std::isfinite(real) || std::abs(real) <= std::numeric_limits<float>::max();
}

std::optional<ScalarValue> value_in(const DLTensor& array, DLDataType dtype) {
  ScalarValue value{};
  const auto read = [&](auto x) {
    std::memcpy(&x, array.data, sizeof x);
    return x;
  };
  if (array.dtype == dtype) {
    std::memcpy(value.bytes, array.data, static_cast<size_t>(item_bytes(dtype)));
  } else if (array.dtype == kFloat64 && dtype == kFloat32) {
    put(value, static_cast<float>(read(double{})));
  } else if (array.dtype == kFloat32 && dtype == kFloat64) {
    put(value, static_cast<double>(read(float{})));
  } else {
    return std::nullopt;
  }
  return value;
}

ScalarValue value_by_numpy(nb::handle x, DLDataType dtype) {
  const exchange::Within silence(exchange::numpy_in_silence());
  const nb::object element = attribute(kAsarray.get()(x), kAstype)(exchange::numpy_dtype(dtype));
  return promotion::value_of_bytes(attribute(element, kTobytes)(), dtype);
}

ScalarValue value_of(const char* function, const char* name, nb::handle x, Kind kind, DLDataType dtype) {
  ScalarValue value{};
  if (kind == Kind::numpy_scalar || dtype.bits == 16 || (kind == Kind::complex && dtype.code != kDLComplex)) {
    // NumPy rounds to any dtype and tells its own scalars apart.
    return promotion::element_of(function, name, x, dtype);
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
