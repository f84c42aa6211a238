/// The kernels that are built with the package. Private to src/cuda.
#pragma once

#include <interop/elementwise.h>

#include "cuda/driver/kernel.h"
#include "cuda/elementwise/args.h"

namespace interop::cuda::elementwise {

constexpr int kFamilies = 4;
constexpr Family kFamilyOf[] = {
#define INTEROP_FAMILY(name, symbol, arity, functor, family, ...) Family::family,
    INTEROP_FUNCTIONS(INTEROP_FAMILY)
#undef INTEROP_FAMILY
        Family::simple  // copy
};

/// The kernels of one dtype; null where there is none. Each takes two inputs; an operation of one ignores the second.
struct KernelSet {
  int vector;                ///< elements of a vector of `flat` and `same`
  int unroll;                ///< vectors that a thread of `same` has in flight at a time; one of the others has one
  int mixed_vector;          ///< elements of a vector of `mixed`
  int tile;                  ///< elements along the side of a tile
  Kernel* flat[kFamilies];   ///< every array has the operation's own dtype; a walk that is flat
  Kernel* same[kFamilies];   ///< the same by rows
  Kernel* mixed[kFamilies];  ///< each array has any dtype that converts to it; by rows
  Kernel* tiled[kFamilies];  ///< the same by tiles
};

// Each in a file of its own, so that they are compiled side by side.
const KernelSet& small_integer_kernels(Stored dtype);
const KernelSet& integer_kernels(Stored dtype);
const KernelSet& float_kernels(Stored dtype);
const KernelSet& complex_kernels(Stored dtype);

}  // namespace interop::cuda::elementwise
