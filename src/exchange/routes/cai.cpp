/// `__cuda_array_interface__`, versions 2 and 3.
#include "exchange/routes/cai.h"

#include <interop/cuda/driver.h>

#include "exchange/checks.h"
#include "exchange/stream.h"
#include "exchange/typestr.h"

namespace interop::exchange {
namespace {

const Name kInterface("__cuda_array_interface__");

/// Reads the entries of one interface; each throws a BufferError that names the entry.
class Interface {
 public:
  Interface(const Operand& operand, nb::handle dict) : operand_(operand), dict_(dict) {}

  [[noreturn]] void malformed(const std::string& what) const {
    throw BufferError(operand_.label() + ": __cuda_array_interface__ of " + type_text(operand_.object) + ": " + what);
  }
  /// The entry, or null if it is absent or None. Held: reading a number may run Python that changes the dict.
  nb::object entry(const char* key) const {
    PyObject* value = PyDict_GetItemString(dict_.ptr(), key);
    return value == Py_None ? nb::object() : nb::borrow(value);
  }
  nb::object required(const char* key) const {
    nb::object value = entry(key);
    if (!value.is_valid()) malformed(std::string("no ") + key);
    return value;
  }
  int64_t integer(nb::handle value, const char* key) const {
    const long long result = PyLong_AsLongLong(value.ptr());
    if (result == -1 && PyErr_Occurred()) malformed(std::string(key) + ": " + take_error_text());
    return result;
  }
  /// A tuple of ints into `out`; returns its length.
  int integers(const char* key, int64_t* out) const {
    const nb::object value = required(key);
    if (!PyTuple_Check(value.ptr())) malformed(std::string(key) + " is " + type_text(value) + ", not a tuple");
    const Py_ssize_t count = PyTuple_Size(value.ptr());
    check_ndim(operand_, count);
    for (Py_ssize_t i = 0; i < count; ++i) out[i] = integer(PyTuple_GetItem(value.ptr(), i), key);
    return static_cast<int>(count);
  }

 private:
  const Operand& operand_;
  nb::handle dict_;
};

void read_strides(Operand& operand, const Interface& interface) {
  DLTensor& tensor = operand.tensor;
  if (!interface.entry("strides").is_valid() || element_count(tensor) == 0) {
    compact_strides(operand.shape, tensor.ndim, operand.strides);
    return;
  }
  if (interface.integers("strides", operand.strides) != tensor.ndim) interface.malformed("strides do not match shape");
  const int64_t item = item_bytes(tensor.dtype);
  for (int i = 0; i < tensor.ndim; ++i) {
    if (operand.shape[i] == 1) {
      operand.strides[i] = 1;
    } else if (operand.strides[i] % item != 0) {
      interface.malformed("strides are no multiples of the item size " + std::to_string(item));
    } else {
      operand.strides[i] /= item;
    }
  }
  check_extent(operand);
}

void read_pointer(Operand& operand, const Interface& interface) {
  const nb::object data = interface.required("data");
  if (!PyTuple_Check(data.ptr()) || PyTuple_Size(data.ptr()) != 2) interface.malformed("data is not a pair");
  const nb::handle pointer(PyTuple_GetItem(data.ptr(), 0));
  const int read_only = PyObject_IsTrue(PyTuple_GetItem(data.ptr(), 1));
  if (read_only < 0) interface.malformed("data: " + take_error_text());
  operand.read_only = read_only == 1;
  const bool empty = element_count(operand.tensor) == 0;
  // Some producers say None for an empty array.
  const int64_t address = pointer.is_none() && empty ? 0 : interface.integer(pointer, "data");
  if (address == 0 && !empty) interface.malformed("a null pointer for shape " + shape_text(operand.tensor));
  operand.tensor.data = reinterpret_cast<void*>(static_cast<uintptr_t>(address));
  operand.tensor.device = {kDLCUDA, 0};
  operand.any_device = empty;  // there is no pointer to ask CUDA about
  if (empty) return;
  const auto device = cuda::pointer_device(operand.tensor.data);
  if (!device) interface.malformed("its pointer is unknown to CUDA");
  operand.tensor.device.device_id = *device;
}

class CaiRoute final : public Route {
 public:
  const char* library() const override { return "interop"; }
  const char* protocol() const override { return "__cuda_array_interface__"; }
  void inspect(Operand& operand) const override {
    read_cai(operand);
    // With a stream, work is joined both ways, so the producer's own order holds; without one, hold the memory.
    operand.hold = !operand.has_stream;
  }
};

}  // namespace

void read_cai(Operand& operand) {
  const nb::object dict = attribute(operand.object, kInterface);
  const Interface interface(operand, dict);
  if (!nb::isinstance<nb::dict>(dict)) interface.malformed("is " + type_text(dict) + ", not a dict");
  if (interface.integer(interface.required("version"), "version") < 2) interface.malformed("version below 2");
  if (interface.entry("mask").is_valid()) {
    throw TypeError(operand.label() + ": " + type_text(operand.object) + " is masked; accepted: arrays without a mask");
  }
  const nb::object typestr = interface.required("typestr");
  if (!nb::isinstance<nb::str>(typestr)) interface.malformed("typestr is " + type_text(typestr) + ", not a str");
  const std::string spelled = text_of(typestr);
  const auto dtype = dtype_from_typestr(spelled);
  if (!dtype) {
    throw TypeError(operand.label() + " has the typestr '" + spelled +
                    "'; accepted: bool, integers, floats and complex numbers in native byte order");
  }
  DLTensor& tensor = operand.tensor;
  tensor = DLTensor{nullptr, {kDLCUDA, 0}, 0, *dtype, operand.shape, operand.strides, 0};
  tensor.ndim = interface.integers("shape", operand.shape);
  check_sizes(operand);
  read_strides(operand, interface);
  read_pointer(operand, interface);
  if (const nb::object stream = interface.entry("stream"); stream.is_valid()) {
    const int64_t handle = interface.integer(stream, "stream");
    if (handle <= 0) interface.malformed("stream " + std::to_string(handle) + "; accepted: None, 1, 2 or a handle");
    operand.stream = stream_from_handle(handle);
    operand.has_stream = true;
  }
}

const Route& cai_route() {
  static const CaiRoute route;
  return route;
}

}  // namespace interop::exchange
