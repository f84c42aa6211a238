/// The arguments of the kernels that pass over elements, and their names for dtypes. Includes only such headers: NVRTC
/// compiles this text as it stands, with int64_t declared before it.
#pragma once

#include "cuda/elementwise/divisor.h"

namespace interop::cuda::elementwise {

/// How an input is read along the last dimension.
enum class Access : int {
  value,   ///< one value for the whole call, in the arguments
  splat,   ///< one element for a whole row
  unit,    ///< element after element
  strided  ///< with a stride
};

/// The dtypes in memory that a converting kernel distinguishes.
enum class Stored : int { b8, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64, c64, c128 };

constexpr int kOuterDims = 5;  // of one launch; further ones are walked by the launcher
constexpr int kThreads = 256;  // of a block

// ---- the walks: of each the loop, which all arrays share, and where the elements of one array lie ----

// A kernel's first reads of its arguments take longer than the arithmetic of a small array, by the line: so each walk
// has only what it reads, the first things first. Steps are in bytes.

/// Along one dimension, in which each array is compact.
struct Flat {
  struct Loop {
    int64_t length;
    int64_t whole;  // the same if each array begins where a vector may lie; else 0
  };
  struct Array {
    char* data;  // null: a value
  };
};

/// Along the last dimension, row by row of the others.
struct Rows {
  struct Loop {
    int64_t length;     // of the last dimension
    unsigned count;     // vectors, or tiles, of the launch
    int vector_stores;  // the output's elements are neighbours
    int whole;          // the rows of each array are aligned vectors, or one element
    int outer_ndim;
    Divisor row_pieces;               // vectors, or tiles, along the last dimension
    Divisor outer_sizes[kOuterDims];  // innermost first
  };
  struct Array {
    char* data;
    int64_t step;  // along the last dimension
    Access access;
    Stored stored;              // read by the kernels that convert
    int64_t outer[kOuterDims];  // innermost first
  };
};

/// The same by tiles, which have another dimension besides the last one.
struct Tiles {
  struct Loop : Rows::Loop {
    int64_t cross_length;
    Divisor cross_pieces;  // tiles along it
  };
  struct Array : Rows::Array {
    int64_t cross_step;
    Access cross_access;
    int tiled;  // is compact along it, and goes through shared memory
  };
};

/// One value for all elements.
struct alignas(16) ValueArgs {
  unsigned char bytes[16];
};

/// What a kernel of the package computes; see ElementwiseStep.
struct StepArgs {
  int op;
  int signs;  // of a comparison in uint64: bit k is set where input k was signed
  int replaces_zero;
};

/// `Count` objects as one parameter of a kernel.
template <typename T, int Count>
struct Several {
  T at[Count];
};

}  // namespace interop::cuda::elementwise
