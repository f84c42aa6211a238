/// The arguments of the elementwise kernels, and their instances. Private to src/cuda.
#pragma once

#include <interop/elementwise.h>

#include <cstdint>

#include "cuda/driver/kernel.h"
#include "cuda/elementwise/args.h"

namespace interop::cuda::elementwise {

// ---- arguments ----

/// The dtypes in memory that a converting kernel distinguishes.
enum class Stored : int { b8, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64, c64, c128 };

struct InputArgs {
  const char* data;
  int64_t step;               // along the last dimension; steps in bytes everywhere
  int64_t cross_step;         // along the other side of a tile
  int64_t outer[kOuterDims];  // innermost first
  Access access, cross_access;
  Stored stored;
  int tiled;  // goes through shared memory
  ScalarValue value;
};

struct Args {
  InputArgs inputs[2];
  char* out;
  int64_t out_step, out_cross_step;
  int64_t out_outer[kOuterDims];
  int64_t length;        // of the last dimension
  int64_t cross_length;  // of the other side of a tile
  int outer_ndim;
  Divisor outer_sizes[kOuterDims];  // innermost first
  Divisor row_pieces;               // vectors, or tiles, along the last dimension
  Divisor cross_pieces;             // tiles along the other side
  unsigned count;                   // vectors, or tiles, of the launch
  int vector_stores;                // the output's elements are neighbours
  int op;
  int signs;  // of a comparison in uint64: bit k is set where input k was signed
  int replaces_zero;
  ScalarValue where_zero;
};

// ---- the instances ----

constexpr int kFamilies = 4;
constexpr Family kFamilyOf[] = {
#define INTEROP_FAMILY(name, symbol, arity, functor, family, ...) Family::family,
    INTEROP_FUNCTIONS(INTEROP_FAMILY)
#undef INTEROP_FAMILY
        Family::simple  // copy
};

/// The kernels of one dtype; null where there is none.
struct KernelSet {
  int vector;                ///< elements of a vector of `same`
  int unroll;                ///< vectors that a thread of `same` has in flight at a time; one of `mixed` has one
  int mixed_vector;          ///< elements of a vector of `mixed`
  int tile;                  ///< elements along the side of a tile
  Kernel* same[kFamilies];   ///< every array has the operation's own dtype
  Kernel* mixed[kFamilies];  ///< each array has any dtype that converts to it
  Kernel* tiled[kFamilies];  ///< the same through shared memory
};

// Each in a file of its own, so that they are compiled side by side.
const KernelSet& small_integer_kernels(Stored dtype);
const KernelSet& integer_kernels(Stored dtype);
const KernelSet& float_kernels(Stored dtype);
const KernelSet& complex_kernels(Stored dtype);

}  // namespace interop::cuda::elementwise
