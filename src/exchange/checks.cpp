/// The checks of every array from outside, whichever protocol showed it.
#include "exchange/checks.h"

#include <interop/cuda/driver.h>

#include <cmath>

#include "exchange/python.h"

namespace interop::exchange {
namespace {

/// Has some array library elements of that many bits?
bool has_bits(DLDataType dtype) {
  const int bits = dtype.bits;
  switch (dtype.code) {
    case kDLInt:
    case kDLUInt:
      return bits == 8 || bits == 16 || bits == 32 || bits == 64;
    case kDLFloat:  // of 8 bits: which of the float8 types? CuPy exports float8_e5m2 so
      return bits == 16 || bits == 32 || bits == 64;
    case kDLBfloat:
      return bits == 16;
    case kDLComplex:  // torch has complex32
      return bits == 32 || bits == 64 || bits == 128;
    case kDLBool:
    case kDLFloat8_e3m4:
    case kDLFloat8_e4m3:
    case kDLFloat8_e4m3b11fnuz:
    case kDLFloat8_e4m3fn:
    case kDLFloat8_e4m3fnuz:
    case kDLFloat8_e5m2:
    case kDLFloat8_e5m2fnuz:
    case kDLFloat8_e8m0fnu:
      return bits == 8;
    default:  // of less than a byte (float6, float4), opaque handles, and codes of the future
      return false;
  }
}

}  // namespace

void malformed(const Operand& operand, const std::string& what) {
  throw BufferError(operand.label() + ": " + type_text(operand.object) + " hands over a malformed tensor: " + what);
}

void refuse_ndim(const Operand& operand, int64_t ndim) {
  if (ndim < 0) malformed(operand, "ndim " + std::to_string(ndim));
  throw ValueError(operand.label() + " has " + std::to_string(ndim) + " dimensions; accepted: up to " +
                   std::to_string(kMaxDims));
}

void check_rare_dtype(const Operand& operand, DLDataType dtype) {
  if (dtype.lanes == 1 && has_bits(dtype)) return;
  if (dtype.lanes != 1) {
    throw TypeError(operand.label() + " has " + dtype_name(dtype) + "; accepted: dtypes of one lane");
  }
  throw TypeError(operand.label() + " has the unknown " + dtype_name(dtype) +
                  "; accepted: bool, integers, floats and complex numbers of whole bytes, in the sizes that array "
                  "libraries have");
}

void check_large_sizes(const Operand& operand) {
  const DLTensor& t = operand.tensor;
  for (int i = 0; i < t.ndim; ++i) {
    if (t.shape[i] < 0) malformed(operand, "shape " + shape_text(t));
  }
  if (is_beyond_counting(t)) malformed(operand, "shape " + shape_text(t) + ", more elements than any memory");
}

void check_large_extent(const Operand& operand) {
  const DLTensor& t = operand.tensor;
  double reach = 0;
  for (int i = 0; i < t.ndim; ++i) {
    reach += std::fabs(static_cast<double>(t.strides[i])) * static_cast<double>(t.shape[i] - 1);
  }
  if (reach * static_cast<double>(item_bytes(t.dtype)) > static_cast<double>(kAddressable)) {
    malformed(operand, "its strides lead beyond all memory");
  }
}

void check_odd_address(Operand& operand, uintptr_t beyond) {
  DLTensor& t = operand.tensor;
  if (t.device.device_type == kDLCPU) return;
  if (element_count(t) == 0) {
    t.data = nullptr;  // there is nothing, so it may be anywhere
    return;
  }
  throw ValueError(operand.label() + " starts at an address that is not a multiple of " +
                   std::to_string(item_bytes(t.dtype)) + " bytes (it lies " + std::to_string(beyond) +
                   " beyond one), which a GPU cannot read as " + dtype_name(t.dtype) +
                   "; accepted: an aligned array (copy it first)");
}

void refuse_device(const Operand& operand) {
  const int count = cuda::device_count();
  const DLDevice device = operand.tensor.device;
  if (device.device_id < count) throw;
  throw BufferError(operand.label() + ": " + type_text(operand.object) + " says it is on " + device_text(device) +
                    "; this machine has " + std::to_string(count) + " CUDA device(s)");
}

}  // namespace interop::exchange
