/// What the functions that make arrays are given.
#include "bindings/memory/arguments.h"

#include <utility>

#include "exchange/typestr.h"

namespace interop::bindings {
namespace {

const exchange::Lookup kReadDtype("interop._memory.arguments", "dtype_name");

/// The names that are written most, which Python has as the same objects each time.
const std::pair<exchange::Name, DLDataType> kCommon[] = {
    {exchange::Name("float32"), kFloat32},
    {exchange::Name("float64"), kFloat64},
    {exchange::Name("bfloat16"), kBfloat16},
    {exchange::Name("float16"), {kDLFloat, 16, 1}},
    {exchange::Name("int32"), {kDLInt, 32, 1}},
    {exchange::Name("int64"), {kDLInt, 64, 1}},
    {exchange::Name("uint8"), {kDLUInt, 8, 1}},
    {exchange::Name("bool"), {kDLBool, 8, 1}},
    {exchange::Name("complex64"), {kDLComplex, 64, 1}},
};

[[noreturn]] void refuse_shape(const char* function, nb::handle shape, const char* why) {
  throw ValueError(std::string(function) + ": shape is " + exchange::shown(shape) + why);
}

constexpr const char* kTooLarge = ", more elements than any memory";

int64_t read_size(const char* function, nb::handle size, nb::handle shape) {
  const nb::object integer = nb::steal(PyNumber_Index(size.ptr()));
  if (!integer.is_valid()) {
    PyErr_Clear();
    throw TypeError(std::string(function) + ": shape is " + exchange::shown(shape) +
                    "; accepted: an int, or a sequence of ints");
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(integer.ptr(), &overflow);
  if (overflow > 0) refuse_shape(function, shape, kTooLarge);
  if (value < 0) refuse_shape(function, shape, "; accepted: no negative sizes");
  return value;
}

}  // namespace

DLDataType read_dtype(const char* function, nb::handle dtype) {
  for (const auto& [name, common] : kCommon) {
    if (name.get() == dtype.ptr()) return common;
  }
  if (PyUnicode_Check(dtype.ptr())) {
    if (const auto found = exchange::dtype_from_name(exchange::text_of(dtype))) return *found;
  }
  const nb::object name = kReadDtype.get()(function, dtype);
  const auto found = exchange::dtype_from_name(nb::cast<std::string>(name));
  if (found) return *found;
  throw TypeError(std::string(function) + ": dtype is " + exchange::shown(dtype) +
                  "; accepted: bool, integers, floats and complex numbers, float8 and bfloat16");
}

Shape read_shape(const char* function, nb::handle given, DLDataType dtype) {
  Shape shape;
  if (PyIndex_Check(given.ptr()) && !PySequence_Check(given.ptr())) {
    shape.ndim = 1;
    shape.sizes[0] = read_size(function, given, given);
  } else {
    const bool is_sequence =
        PySequence_Check(given.ptr()) && !PyBytes_Check(given.ptr()) && !PyUnicode_Check(given.ptr());
    const nb::object sizes = is_sequence ? nb::steal(PySequence_Tuple(given.ptr())) : nb::object();
    if (!sizes.is_valid()) {
      PyErr_Clear();
      throw TypeError(std::string(function) + ": shape is " + exchange::shown(given) +
                      "; accepted: an int, or a sequence of ints");
    }
    const Py_ssize_t ndim = PyTuple_GET_SIZE(sizes.ptr());
    if (ndim > kMaxDims) {
      throw ValueError(std::string(function) + ": shape has " + std::to_string(ndim) + " dimensions; accepted: up to " +
                       std::to_string(kMaxDims));
    }
    shape.ndim = static_cast<int>(ndim);
    for (int i = 0; i < shape.ndim; ++i) {
      shape.sizes[i] = read_size(function, PyTuple_GET_ITEM(sizes.ptr(), i), given);
    }
  }
  if (is_beyond_counting({nullptr, {}, shape.ndim, dtype, shape.sizes, nullptr, 0})) {
    refuse_shape(function, given, kTooLarge);
  }
  return shape;
}

exchange::Array make_array(const char* function, const Shape& shape, DLDataType dtype, DLDevice device,
                           cudaStream_t stream, bool shared) {
  try {
    return exchange::new_array(shape, dtype, device, stream, shared);
  } catch (const std::bad_alloc&) {
    PyErr_Format(PyExc_MemoryError, "%s: the host has no memory for shape %s of %s", function,
                 shape_text(shape).c_str(), dtype_name(dtype).c_str());
    nb::raise_python_error();
  }
}

}  // namespace interop::bindings
