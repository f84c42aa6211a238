/// Passes over the elements of arrays on the GPU. Knows no Python.
#pragma once

#include <interop/cuda/kernel.h>
#include <interop/elementwise.h>

#include <string>

typedef struct CUstream_st* cudaStream_t;  // as cuda_runtime.h declares it; naming it needs no CUDA header

namespace interop::cuda {

/// How a kernel walks a loop. Each walk has arguments of its own, and no more of them than it reads.
enum class Walk : uint8_t {
  flat,  ///< along one dimension, in which each array is compact, from an address that is a whole vector's
  rows,  ///< along the last dimension, row by row of the others
  tiles  ///< the same tile by tile, through shared memory
};

/// The shape of a kernel.
struct PassShape {
  Walk walk;
  int tile;    ///< elements along the side of a tile; 0: none
  int vector;  ///< elements of a vector
  int unroll;  ///< vectors that a thread has in flight at a time; 0 where a block has a tile

  friend bool operator==(const PassShape& x, const PassShape& y) {
    return x.walk == y.walk && x.tile == y.tile && x.vector == y.vector && x.unroll == y.unroll;
  }
};

/// A kernel that was compiled at run time for an expression, and its shape: what `compiled_shape` says.
struct CompiledPass {
  PassShape shape;
  Kernel* kernel;
};
PassShape compiled_shape(const Elementwise& work);

/// Queues a pass on `stream` and returns at once; nothing is launched where there is nothing to do, and then no kernel
/// is needed. The context of the operands' device is current. `out` may be an input itself, element for element; no
/// other memory is shared. Throws ValueError for a pointer that is not aligned to its elements, and CudaError if the
/// launch fails.
void launch_elementwise(const ElementwiseStep& step, const Elementwise& work, cudaStream_t stream);
void launch_elementwise(const CompiledPass& compiled, const Elementwise& work, cudaStream_t stream);

/// Queues out[i] = first + i * (second - first) for `count` compact elements on `stream`, with the bits that
/// numpy.arange has where its first two elements are these; returns at once. Of every dtype that is served; of bool two
/// elements at most. The context of the device of `out` is current. Throws CudaError if the launch fails.
void launch_arange(void* out, int64_t count, DLDataType dtype, const ScalarValue& first, const ScalarValue& second,
                   cudaStream_t stream);

/// Is there nothing to compute?
inline bool is_empty(const Elementwise& work) { return work.loop.layout == LayoutClass::empty; }

/// One line for a person: "contiguous, vectors of 4, float32"; of a compiled pass, "contiguous, vectors of 4".
std::string describe(const ElementwiseStep& step, const Elementwise& work);
std::string describe(const Elementwise& work);

}  // namespace interop::cuda
