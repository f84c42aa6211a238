/// Strides in bytes, as Python's arrays and protocols count them.
#include "exchange/strides.h"

namespace interop::exchange {

void strides_from_bytes(Operand& operand) {
  const DLTensor& tensor = operand.tensor;
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
}

int read_ints(const Operand& operand, nb::handle tuple, int64_t* out) {
  const Py_ssize_t count = PyTuple_GET_SIZE(tuple.ptr());
  if (count > kMaxDims) {
    throw ValueError(operand.label() + " has " + std::to_string(count) + " dimensions; accepted: up to " +
                     std::to_string(kMaxDims));
  }
  for (Py_ssize_t i = 0; i < count; ++i) out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple.ptr(), i));
  return static_cast<int>(count);
}

}  // namespace interop::exchange
