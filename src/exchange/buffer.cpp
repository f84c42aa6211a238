/// Host arrays by the buffer protocol (PEP 3118), or by NumPy's `__array_interface__`.
#include "exchange/buffer.h"

#include "exchange/numpy.h"
#include "exchange/strides.h"
#include "exchange/typestr.h"
#include "exchange/view.h"

namespace interop::exchange {
namespace {

const Lookup kNumpyAsarray("numpy", "asarray");
const Lookup kNumpyNdarray("numpy", "ndarray");
const Lookup kUint16("numpy", "uint16");
const Name kDtype("dtype");
const Name kView("view");
constexpr DLDataType kUint16Bits{kDLUInt, 16, 1};

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

/// A NumPy array of ml_dtypes' bfloat16, which no buffer format can express?
bool is_bfloat16(nb::handle object) {
  if (!nb::isinstance(object, kNumpyNdarray.get())) return false;
  const auto dtype = dtype_of(attribute(object, kDtype));
  return dtype && *dtype == kBfloat16;
}

nb::object view_as(nb::handle array, nb::handle dtype) { return attribute(array, kView)(dtype); }

/// By way of uint16, which NumPy knows to be memory.
nb::object bfloat16_view(const Operand& operand) {
  Operand bits;
  bits.object = operand.memory();
  bits.tensor = operand.tensor;
  bits.tensor.dtype = kUint16Bits;
  bits.read_only = operand.read_only;
  const nb::object view = kNumpyAsarray.get()(view_of(bits));
  return view_as(view, numpy_dtype(kBfloat16));
}

}  // namespace

void read_buffer(Operand& operand, nb::handle object) {
  auto view = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), view.get(), PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    const std::string words = take_error_text();
    if (is_bfloat16(object)) {
      read_buffer(operand, view_as(object, kUint16.get()));
      operand.tensor.dtype = kBfloat16;
      return;
    }
    if (nb::hasattr(object, "dtype")) refuse_dtype(operand, object, nullptr);  // a dtype that no buffer can express
    throw BufferError(operand.label() + ": " + type_text(object) + " refuses to export its buffer: " + words);
  }
  Py_buffer* buffer = view.release();
  operand.release = Release(buffer, &release_buffer);

  const auto dtype = dtype_from_format(buffer->format, buffer->itemsize);
  if (!dtype) refuse_dtype(operand, object, buffer->format);
  DLTensor& tensor = operand.tensor;
  tensor = DLTensor{buffer->buf, {kDLCPU, 0}, buffer->ndim, *dtype, operand.shape, operand.strides, 0};
  for (int i = 0; i < buffer->ndim; ++i) operand.shape[i] = buffer->shape[i];
  if (!buffer->strides) {
    compact_strides(operand.shape, tensor.ndim, operand.strides);
  } else {
    for (int i = 0; i < buffer->ndim; ++i) operand.strides[i] = buffer->strides[i];
    strides_from_bytes(operand);
  }
  operand.read_only = buffer->readonly != 0;
}

nb::object numpy_view(const Operand& operand) {
  const nb::handle object = operand.memory();
  if (object.type().is(kNumpyNdarray.get())) return nb::borrow(object);
  if (operand.tensor.dtype == kBfloat16) return bfloat16_view(operand);
  return kNumpyAsarray.get()(view_of(operand));
}

const Route& buffer_route() {
  static const BufferRoute route;
  return route;
}

}  // namespace interop::exchange
