/// Strides in bytes, as Python's arrays and protocols count them.
#pragma once

#include "exchange/route.h"

namespace interop::exchange {

/// Converts the operand's strides from bytes to elements. Strides of size-1 dimensions and of empty arrays mean nothing
/// and become those of the compact layout. Throws TypeError for a stride that is no multiple of the item size,
/// BufferError for a shape or strides beyond all memory.
void strides_from_bytes(Operand& operand);

/// Reads a tuple of ints into `out`, which has room for kMaxDims; returns the length. Throws ValueError for a longer
/// tuple, BufferError for anything else.
int read_ints(const Operand& operand, nb::handle tuple, int64_t* out);

/// Reads a tuple of strides in bytes into the operand, whose shape is filled in, then does what `strides_from_bytes`
/// does.
void read_strides(Operand& operand, nb::handle tuple);

}  // namespace interop::exchange
