/// Strides in bytes, as Python's arrays and protocols count them.
#pragma once

#include "exchange/route.h"

namespace interop::exchange {

/// Turns the operand's strides, filled in bytes, into elements; those of size-1 dimensions and empty arrays, which mean
/// nothing, become those of the compact layout. Throws TypeError for one that is no multiple of the item size,
/// BufferError for a shape or strides beyond all memory.
void strides_from_bytes(Operand& operand);

/// A tuple of ints into `out`, which takes kMaxDims; returns its length. Throws ValueError for a longer one,
/// BufferError for what is no such tuple.
int read_ints(const Operand& operand, nb::handle tuple, int64_t* out);

/// A tuple of strides in bytes into the operand, whose shape is filled in, and from there as `strides_from_bytes`.
void read_strides(Operand& operand, nb::handle tuple);

}  // namespace interop::exchange
