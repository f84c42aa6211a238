/// Host arrays by the buffer protocol (PEP 3118), or by NumPy's `__array_interface__`.
#include "exchange/routes/buffer.h"

#include "exchange/array/view.h"
#include "exchange/checks.h"
#include "exchange/routes/numpy.h"
#include "exchange/strides.h"
#include "exchange/typestr.h"

namespace interop::exchange {
namespace {

const Lookup kNumpyAsarray("numpy", "asarray");
const Lookup kNumpyNdarray("numpy", "ndarray");

void release_buffer(void* pointer) {
  auto* view = static_cast<Py_buffer*>(pointer);
  PyBuffer_Release(view);
  delete view;
}

/// The dtype as NumPy prints it where the object has one, else its PEP 3118 format.
std::string dtype_text(nb::handle object, const char* format) {
  const nb::object dtype = nb::getattr(object, "dtype", nb::none());
  return dtype.is_none() ? std::string("format '") + (format ? format : "") + "'" : text_of(dtype);
}

[[noreturn]] void refuse_dtype(const Operand& operand, nb::handle object, const char* format) {
  throw TypeError(operand.label() + " is " + dtype_text(object, format) +
                  "; accepted: bool, integers, floats and complex numbers in native byte order");
}

/// The unsigned integers of a dtype's size, by whose buffers NumPy shows the dtypes of ml_dtypes.
DLDataType bits_of(DLDataType dtype) { return {kDLUInt, static_cast<uint8_t>(8 * item_bytes(dtype)), 1}; }

/// The dtype of a NumPy array that no buffer can express, though ml_dtypes has it; none for any other object.
std::optional<DLDataType> extension_dtype(nb::handle object) {
  if (!nb::isinstance(object, kNumpyNdarray.get())) return std::nullopt;
  const auto dtype = dtype_of(object.attr("dtype"));
  return dtype && !format_of(*dtype) ? dtype : std::nullopt;
}

/// The same memory as unsigned integers, for the host.
Array as_bits(const Array& array) {
  Array bits;
  bits.memory = array.memory;
  bits.data = array.data;
  bits.device = array.device;
  bits.dtype = bits_of(array.dtype);
  bits.shape = array.shape;
  bits.strides = array.strides;
  bits.read_only = array.read_only;
  return bits;
}

/// memoryview, array.array, bytearray, and whatever else exports a buffer; results are interop's own arrays.
class BufferRoute final : public Route {
 public:
  const char* library() const override { return "interop"; }
  const char* protocol() const override { return "buffer protocol"; }
  void inspect(Operand& operand) const override {
    if (PyObject_CheckBuffer(operand.object.ptr())) {
      read_buffer(operand, operand.object);
      return;
    }
    // Only `__array_interface__`: NumPy reads that protocol for us, on the same memory.
    PyObject* array = PyObject_CallOneArg(kNumpyAsarray.get().ptr(), operand.object.ptr());
    if (!array) {
      throw BufferError(operand.label() + ": __array_interface__ of " + type_text(operand.object) + ": " +
                        take_error_text());
    }
    operand.resolved = nb::steal(array);
    read_buffer(operand, operand.resolved);
  }
};

}  // namespace

PyObject* buffer_owner(const Release& release) {
  return release && release.get_deleter() == &release_buffer ? static_cast<Py_buffer*>(release.get())->obj : nullptr;
}

void read_buffer(Operand& operand, nb::handle object) {
  auto view = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), view.get(), PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    const std::string words = take_error_text();
    if (const auto dtype = extension_dtype(object)) {
      read_buffer(operand, kNumpyNdarray.get().attr("view")(object, numpy_dtype(bits_of(*dtype))));
      operand.tensor.dtype = *dtype;
      return;
    }
    if (nb::hasattr(object, "dtype")) refuse_dtype(operand, object, nullptr);  // a dtype that no buffer can express
    throw BufferError(operand.label() + ": " + type_text(object) + " refuses to export its buffer: " + words);
  }
  Py_buffer* buffer = view.release();
  operand.release = Release(buffer, &release_buffer);

  const auto dtype = dtype_from_format(buffer->format, buffer->itemsize);
  if (!dtype) refuse_dtype(operand, object, buffer->format);
  check_ndim(operand, buffer->ndim);
  if (buffer->ndim > 0 && !buffer->shape) malformed(operand, "no shape");
  if (buffer->suboffsets) malformed(operand, "suboffsets, which nobody asked for");
  DLTensor& tensor = operand.tensor;
  tensor = DLTensor{buffer->buf, {kDLCPU, 0}, buffer->ndim, *dtype, operand.shape, operand.strides, 0};
  for (int i = 0; i < buffer->ndim; ++i) operand.shape[i] = buffer->shape[i];
  if (!buffer->strides) {
    check_sizes(operand);
    compact_strides(operand.shape, tensor.ndim, operand.strides);
  } else {
    for (int i = 0; i < buffer->ndim; ++i) operand.strides[i] = buffer->strides[i];
    strides_from_bytes(operand);
  }
  if (!tensor.data && element_count(tensor) > 0) {
    malformed(operand, "a null pointer for shape " + shape_text(tensor));
  }
  operand.read_only = buffer->readonly != 0;
}

nb::object numpy_view(Operand& operand) {
  const nb::handle object = operand.memory();
  if (object.type().is(kNumpyNdarray.get())) return nb::borrow(object);
  if (operand.tensor.ndim > kFewDims) check_numpy_ndim(operand.label(), operand.tensor.ndim);
  return numpy_array(view_of(operand));
}

nb::object numpy_array(nb::handle object) {
  // By a memoryview, as NumPy itself goes on to other protocols where a buffer is refused, whatever the reason.
  const auto asarray = [](nb::handle buffer) {
    return kNumpyAsarray.get()(nb::steal(PyMemoryView_FromObject(buffer.ptr())));
  };
  const Array& array = nb::cast<const Array&>(object);
  if (!array.host_readable()) {
    throw TypeError("interop.Array: NumPy cannot read memory on " + device_text(array.device) +
                    "; accepted: x.to(memory='host'), which copies it");
  }
  const nb::handle dtype = numpy_dtype(array.dtype);
  if (array.shape.size() > kFewDims) check_numpy_ndim("interop.Array", static_cast<int>(array.shape.size()));
  if (format_of(array.dtype)) return asarray(object);
  array.make_host_wait();
  return asarray(nb::cast(as_bits(array))).attr("view")(dtype);
}

const Route& buffer_route() {
  static const BufferRoute route;
  return route;
}

}  // namespace interop::exchange
