/// The kernels of float64, complex128 and TF32 by mma.sync, by tile, and their arguments. Private to src/cuda.
#pragma once

#include <interop/gemm.h>

#include <cstdint>

#include "cuda/driver/kernel.h"
#include "cuda/matmul/rates.h"
#include "cuda/matmul/tiled/tiled.h"

namespace interop::cuda::mma_wide {

using tiled::FinishArgs;
using tiled::kKernelBatchDims;
using tiled::OutputArgs;

constexpr int kChunk = 16;       // bytes: four neighbours of float32, two of float64, or one complex128
constexpr int kTileBytes = 128;  // of k, in a k tile

/// One input as a (mn, k) matrix, where mn is m for a and n for b. Neighbouring threads copy neighbours along the fast
/// dimension, which is the one with the unit stride, if there is one.
struct OperandArgs {
  const char* data;
  int64_t fast_stride, slow_stride;  // in bytes, as all strides here
  int64_t pass_bytes, tile_bytes;    // from one chunk that a thread copies, and one k tile, to the next
  int64_t batch_stride[kKernelBatchDims];
  int k_fast;
  int vectors;  // is the fast dimension's stride the unit one, and are all chunks along it 16-byte aligned?
};

struct KernelArgs {
  OperandArgs a, b;
  OutputArgs c;
  FinishArgs finish;
  int m, n, k;
  int row_tiles, column_tiles;
  unsigned conjugates_a;  // the bit that flips the sign of a's imaginary parts, or 0
  int64_t first_matrix;   // of this launch
  int64_t batch_size[kKernelBatchDims];
};

/// A shape and its speed.
struct Variant {
  const char* name;
  int m, n, threads, shared_bytes;
  rates::Tile speed;
  Kernel* kernels[2][2];  // [is k a's fast dimension][b's]
};

/// The tiles of a dtype, the smallest last.
struct Variants {
  const Variant* first;
  int count;
};
Variants variants(DLDataType dtype);

}  // namespace interop::cuda::mma_wide
