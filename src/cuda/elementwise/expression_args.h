/// The arguments of an expression's kernel; its dtypes are compiled in. Includes only such headers, for NVRTC.
#pragma once

#include "cuda/elementwise/args.h"

namespace interop::cuda::elementwise {

/// Where the elements of one array lie; steps in bytes.
struct ArrayArgs {
  char* data;
  int64_t step;               // along the last dimension
  int64_t cross_step;         // along the other side of a tile
  int64_t outer[kOuterDims];  // innermost first
  Access access, cross_access;
  int tiled;  // goes through shared memory
};

/// The loop, which all arrays share.
struct LoopArgs {
  int64_t length;        // of the last dimension
  int64_t cross_length;  // of the other side of a tile
  int outer_ndim;
  Divisor outer_sizes[kOuterDims];  // innermost first
  Divisor row_pieces;               // vectors, or tiles, along the last dimension
  Divisor cross_pieces;             // tiles along the other side
  unsigned count;                   // vectors, or tiles, of the launch
  int vector_stores;                // the output's elements are neighbours
};

/// One value for all elements.
struct alignas(16) ValueArgs {
  unsigned char bytes[16];
};

/// `Count` objects as one parameter of a kernel.
template <typename T, int Count>
struct Several {
  T at[Count];
};

}  // namespace interop::cuda::elementwise
