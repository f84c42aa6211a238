/// Device code that the kernels with one block per tile share: the block's tile, and its copies to shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/matmul/tiled/tiled.h"

namespace interop::cuda::tiled {
namespace {

/// Copies `bytes` (0 to Bytes) and writes zeros for the rest. The copy is asynchronous, and bypasses L1 if it can.
template <int Bytes>
__device__ __forceinline__ void copy_or_zero(uint32_t to, const char* from, int bytes) {
#if __CUDA_ARCH__ >= 800
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(Bytes), "r"(bytes)
                 : "memory");
  }
#endif
}

/// The first output of a block's tile, and its matrix.
struct BlockTile {
  int row, column;
  int batch[kKernelBatchDims];
};

/// The tile of this block. Blocks run down the columns of super-rows of 16 tiles, so that those that run at the same
/// time share rows of a and columns of b in L2. `Args` has row_tiles, column_tiles, first_matrix and batch_size, which
/// is 1 for each unused dimension.
///
/// The `asm volatile` makes the compiler compute the tile anew at each call: keeping it through the main loop would
/// take registers from the sums.
template <int TileM, int TileN, typename Args>
__device__ __forceinline__ BlockTile tile_of_block(const Args& args) {
  constexpr int kSuperRow = 16;
  const int of_matrix = args.row_tiles * args.column_tiles;
  int block;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
  int64_t matrix = args.first_matrix + block / of_matrix;
  const int at = block % of_matrix;
  BlockTile tile;
#pragma unroll
  for (int i = kKernelBatchDims - 1; i >= 0; --i) {
    tile.batch[i] = static_cast<int>(matrix % args.batch_size[i]);
    matrix /= args.batch_size[i];
  }
  const int of_super_row = kSuperRow * args.column_tiles;
  const int first = at / of_super_row * kSuperRow;
  const int height = min(kSuperRow, args.row_tiles - first);
  const int in_super_row = at % of_super_row;
  tile.row = (first + in_super_row % height) * TileM;
  tile.column = in_super_row / height * TileN;
  return tile;
}

}  // namespace
}  // namespace interop::cuda::tiled
