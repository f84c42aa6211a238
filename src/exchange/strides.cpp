/// Strides in bytes, as Python's arrays and protocols count them.
#include "exchange/strides.h"

#include "exchange/checks.h"

namespace interop::exchange {

void strides_from_bytes(Operand& operand) {
  const DLTensor& tensor = operand.tensor;
  check_sizes(operand);
  if (element_count(tensor) == 0) {
    compact_strides(operand.shape, tensor.ndim, operand.strides);
    return;
  }
  const int64_t item = item_bytes(tensor.dtype);
  for (int i = 0; i < tensor.ndim; ++i) {
    if (operand.shape[i] == 1) {
      operand.strides[i] = 1;
    } else if (operand.strides[i] % item != 0) {
      throw TypeError(operand.label() + " steps " + std::to_string(operand.strides[i]) + " bytes along dimension " +
                      std::to_string(i) + ", which is no multiple of its item size " + std::to_string(item) +
                      "; copy it first");
    } else {
      operand.strides[i] /= item;
    }
  }
  check_extent(operand);
}

int read_ints(const Operand& operand, nb::handle tuple, int64_t* out) {
  if (!PyTuple_Check(tuple.ptr())) malformed(operand, "shape or strides are " + type_text(tuple) + ", not a tuple");
  const Py_ssize_t count = PyTuple_GET_SIZE(tuple.ptr());
  check_ndim(operand, count);
  for (Py_ssize_t i = 0; i < count; ++i) {
    out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple.ptr(), i));
    if (out[i] == -1 && PyErr_Occurred()) malformed(operand, take_error_text());
  }
  return static_cast<int>(count);
}

void read_strides(Operand& operand, nb::handle tuple) {
  if (read_ints(operand, tuple, operand.strides) != operand.tensor.ndim) {
    malformed(operand, "its strides do not match its shape, " + shape_text(operand.tensor));
  }
  strides_from_bytes(operand);
}

}  // namespace interop::exchange
