/// The checks of every array from outside, whichever protocol showed it. Each names the argument.
#pragma once

#include <cstdint>
#include <string>

#include "exchange/operand.h"

namespace interop::exchange {

/// Bytes. No address space is larger.
inline constexpr uint64_t kAddressable = uint64_t{1} << 57;

/// Throws the BufferError for an array that its producer has described wrongly.
[[noreturn]] void malformed(const Operand& operand, const std::string& what);

/// Checks the number of dimensions, before anything is filled in. Throws ValueError for more than kMaxDims, BufferError
/// for a negative number.
[[noreturn]] void refuse_ndim(const Operand& operand, int64_t ndim);
inline void check_ndim(const Operand& operand, int64_t ndim) {
  if (ndim < 0 || ndim > kMaxDims) refuse_ndim(operand, ndim);
}

/// Throws TypeError for a dtype that no array library has, or whose elements are no whole bytes.
void check_rare_dtype(const Operand& operand, DLDataType dtype);
inline void check_dtype(const Operand& operand, DLDataType dtype) {
  if (dtype.code != kDLFloat || dtype.bits != 32 || dtype.lanes != 1) check_rare_dtype(operand, dtype);
}

/// Are all `count` numbers at least 0 and below `power`, a power of two?
inline bool are_below(const int64_t* numbers, int count, uint64_t power) {
  uint64_t bits = 0;
  for (int i = 0; i < count; ++i) bits |= static_cast<uint64_t>(numbers[i]);
  return bits < power;
}

/// Is the shape like most shapes: up to four sizes whose product is at most 2^56?
inline bool has_small_sizes(const DLTensor& tensor) {
  return tensor.ndim <= 4 && are_below(tensor.shape, tensor.ndim, tensor.ndim <= 2 ? 1u << 28 : 1u << 14);
}

/// Requires the shape. Throws BufferError for a negative size, and for more elements than any memory has.
void check_large_sizes(const Operand& operand);
inline void check_sizes(const Operand& operand) {
  if (!has_small_sizes(operand.tensor)) check_large_sizes(operand);
}

/// Requires shape and strides. Throws BufferError where the strides reach beyond any memory. CuPy is known to export
/// negative strides as huge positive ones.
void check_large_extent(const Operand& operand);
inline void check_extent(const Operand& operand) {
  const DLTensor& tensor = operand.tensor;  // at most 16 bytes an element: 2 * 2^28 * 2^24 * 2^4 is not too large
  if (!has_small_sizes(tensor) || !are_below(tensor.strides, tensor.ndim, 1u << 24)) check_large_extent(operand);
}

/// For a complete operand that a GPU is to read. Throws ValueError for elements that are not aligned to their size. A
/// GPU reads both parts of a complex number at once, and a kernel that meets an unaligned address breaks the context.
void check_odd_address(Operand& operand, uintptr_t beyond);
inline void check_address(Operand& operand) {
  const auto item = static_cast<uintptr_t>(item_bytes(operand.tensor.dtype));  // a power of two
  // Strides are whole elements: where the first is aligned, all are.
  const uintptr_t beyond = reinterpret_cast<uintptr_t>(operand.tensor.data) & (item - 1);
  if (beyond != 0) check_odd_address(operand, beyond);
}

/// For the catch block of a failure to enter the operand's device. Throws BufferError if this machine has no such
/// device, otherwise the failure itself.
[[noreturn]] void refuse_device(const Operand& operand);

}  // namespace interop::exchange
