/// The checks of every array from outside, whichever protocol showed it. Each names the argument.
#pragma once

#include <cstdint>
#include <string>

#include "exchange/operand.h"

namespace interop::exchange {

/// Bytes. No address space is larger.
inline constexpr uint64_t kAddressable = uint64_t{1} << 57;

/// Throws the BufferError that a producer earns by what cannot be.
[[noreturn]] void malformed(const Operand& operand, const std::string& what);

/// Is there room for so many dimensions? Asked before anything is filled in. Throws ValueError for more than kMaxDims,
/// BufferError for fewer than none.
[[noreturn]] void refuse_ndim(const Operand& operand, int64_t ndim);
inline void check_ndim(const Operand& operand, int64_t ndim) {
  if (ndim < 0 || ndim > kMaxDims) refuse_ndim(operand, ndim);
}

/// Throws TypeError for a dtype that no array library has, or whose elements are no whole bytes.
void check_rare_dtype(const Operand& operand, DLDataType dtype);
inline void check_dtype(const Operand& operand, DLDataType dtype) {
  if (dtype.code != kDLFloat || dtype.bits != 32 || dtype.lanes != 1) check_rare_dtype(operand, dtype);
}

/// Are all of so many numbers from 0 to below a power of two?
inline bool are_below(const int64_t* numbers, int count, uint64_t power) {
  uint64_t bits = 0;
  for (int i = 0; i < count; ++i) bits |= static_cast<uint64_t>(numbers[i]);
  return bits < power;
}

/// Is the shape like most shapes: up to four sizes whose product is at most 2^56?
inline bool has_small_sizes(const DLTensor& tensor) {
  return tensor.ndim <= 4 && are_below(tensor.shape, tensor.ndim, tensor.ndim <= 2 ? 1u << 28 : 1u << 14);
}

/// The shape is filled in: throws BufferError for a negative size, and for more elements than any memory.
void check_large_sizes(const Operand& operand);
inline void check_sizes(const Operand& operand) {
  if (!has_small_sizes(operand.tensor)) check_large_sizes(operand);
}

/// Shape and strides are filled in: throws BufferError where the strides lead further than any memory. CuPy is known to
/// export negative ones as huge positive ones.
void check_large_extent(const Operand& operand);
inline void check_extent(const Operand& operand) {
  const DLTensor& tensor = operand.tensor;  // elements have at most 16 bytes: up to 2 * 2^28 * 2^24 * 2^4 are few
  if (!has_small_sizes(tensor) || !are_below(tensor.strides, tensor.ndim, 1u << 24)) check_large_extent(operand);
}

/// The operand is complete, and a GPU is to read it: throws ValueError for elements that are not aligned to their size.
/// A GPU reads both parts of a complex number at once, and a kernel that meets such an address ends the context.
void check_odd_address(Operand& operand, uintptr_t beyond);
inline void check_address(Operand& operand) {
  const auto item = static_cast<uintptr_t>(item_bytes(operand.tensor.dtype));  // a power of two
  // Strides are whole elements: where the first is aligned, all are.
  const uintptr_t beyond = reinterpret_cast<uintptr_t>(operand.tensor.data) & (item - 1);
  if (beyond != 0) check_odd_address(operand, beyond);
}

/// For the catch block of a failure to enter the operand's device: throws BufferError where this machine has no such
/// device, else the failure itself.
[[noreturn]] void refuse_device(const Operand& operand);

}  // namespace interop::exchange
