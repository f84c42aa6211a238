/// What a kernel's author requires of an argument: dtype, shape, order of its memory, device.
#include <cstring>

#include "exchange/call.h"

namespace interop::exchange {
namespace {

bool has_order(const DLTensor& tensor, char order) {
  switch (order) {
    case 'C':
      return is_compact(tensor);
    case 'F':
      return is_compact_backwards(tensor);
    case 'A':
      return is_compact(tensor) || is_compact_backwards(tensor);
    default:
      return true;
  }
}

bool has_shape(const DLTensor& tensor, const InteropConstraint& wanted) {
  if (wanted.ndim < 0) return true;
  if (tensor.ndim != wanted.ndim) return false;
  for (int i = 0; wanted.shape && i < wanted.ndim; ++i) {
    if (wanted.shape[i] >= 0 && wanted.shape[i] != tensor.shape[i]) return false;
  }
  return true;
}

/// "(*, 3)"
std::string wanted_shape(const InteropConstraint& wanted) {
  std::string text = "(";
  for (int i = 0; i < wanted.ndim; ++i) {
    const int64_t size = wanted.shape ? wanted.shape[i] : -1;
    text += (i ? ", " : "") + (size < 0 ? std::string("*") : std::to_string(size));
  }
  return text + (wanted.ndim == 1 ? ",)" : ")");
}

/// "a C-contiguous float32 array of shape (*, 3) on a CUDA device"
std::string wanted_text(const InteropConstraint& wanted) {
  std::string text = "a";
  if (wanted.order == 'C') text += " C-contiguous";
  if (wanted.order == 'F') text += " Fortran-contiguous";
  if (wanted.order == 'A') text += " contiguous (C or Fortran)";
  if (wanted.dtype.bits) text += " " + dtype_name(wanted.dtype);
  text = (text == "a" ? "an" : text) + std::string(" array");
  if (wanted.ndim >= 0) text += " of shape " + wanted_shape(wanted);
  if (wanted.device_type == kDLCPU) return text + " in host memory";
  if (wanted.device_type == kDLCUDA) return text + " on a CUDA device";
  if (wanted.device_type) text += " in " + device_text({static_cast<DLDeviceType>(wanted.device_type), 0});
  return text;
}

/// C may take an element of that type to be aligned: both parts of a complex number each for itself. (A GPU asks for
/// more, see check_address.)
void check_host_alignment(const Operand& operand) {
  const DLTensor& tensor = operand.tensor;
  const auto item = static_cast<uintptr_t>(item_bytes(tensor.dtype));
  const uintptr_t alignment = tensor.dtype.code == kDLComplex ? item / 2 : item;
  if (reinterpret_cast<uintptr_t>(tensor.data) % alignment == 0 || element_count(tensor) == 0) return;
  throw ValueError(operand.label() + " starts at an address that is not a multiple of " + std::to_string(alignment) +
                   " bytes, as C has " + dtype_name(tensor.dtype) + "; accepted: an aligned array (copy it first)");
}

template <class Error>
[[noreturn]] void refuse(const Operand& operand, const InteropConstraint& wanted) {
  const DLTensor& tensor = operand.tensor;
  throw Error(operand.label() + " is " + dtype_name(tensor.dtype) + " of shape " + shape_text(tensor) + ", strides " +
              shape_text(tensor.strides, tensor.ndim) + ", on " + device_text(tensor.device) +
              "; accepted: " + wanted_text(wanted));
}

}  // namespace

void Call::check(int i, const InteropConstraint& wanted) const {
  if (i < 0 || i >= operand_count_) {
    throw ValueError(std::string(function_) + ": the call has no argument " + std::to_string(i));
  }
  const Operand& operand = operands_[i];
  const DLTensor& tensor = operand.tensor;
  if (wanted.dtype.bits && tensor.dtype != wanted.dtype) refuse<TypeError>(operand, wanted);
  // A call on a GPU can use the memory of all its arguments there, pinned memory, too: a host call that of none. A call
  // that only looks has copied nothing there, which it would have.
  const bool would_be_copied = staged_ && only_looks_;
  const bool usable_there = !on_host() && (would_be_copied || tensor.device.device_type != kDLCPU);
  const bool fits = wanted.device_type == kDLCUDA ? usable_there
                    : wanted.device_type == kDLCPU
                        ? tensor.device.device_type == kDLCPU && !would_be_copied
                        : !wanted.device_type || tensor.device.device_type == wanted.device_type;
  if (!fits) refuse<TypeError>(operand, wanted);
  // The copy of an array with gaps has none, see Call::stage.
  const bool in_order = would_be_copied && !is_dense(tensor) ? wanted.order != 'F' : has_order(tensor, wanted.order);
  if (!has_shape(tensor, wanted) || !in_order) refuse<ValueError>(operand, wanted);
  if (wanted.dtype.bits && on_host()) check_host_alignment(operand);
  if (wanted.writable && !operand.is_output) {
    throw std::logic_error(operand.label() +
                           " is viewed for writing, which the call was not told of; its author adds " +
                           "interop::Access::write or update to the argument, or const to the elements");
  }
}

}  // namespace interop::exchange
