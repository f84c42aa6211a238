/// What the kernels with one block per tile share: the block's tile, its copies to shared memory, and the launch.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <limits>

#include "cuda/driver/driver_api.h"
#include "cuda/matmul/tiled/tiled.h"

namespace interop::cuda::tiled {
namespace {

// ---- device code ----

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

// ---- the launch ----

/// Launches one block for each tile of the matrices of batch dimensions [first, batch_ndim), at most kKernelBatchDims
/// of them, in as many grids as they need. `Args` has what `tile_of_block` reads, and m, n, k, a, b, c and finish.
/// Sizes and batch strides are set here.
template <typename Args>
void launch_blocks(Args& args, const Gemm& gemm, int first, int tile_m, int tile_n, int threads, int shared_bytes,
                   CUfunction function, cudaStream_t stream) {
  const int64_t item = item_bytes(gemm.dtype), out_item = item_bytes(gemm.out_dtype);
  int64_t count = 1;
  for (int i = 0; i < kKernelBatchDims; ++i) {
    const int from = gemm.batch_ndim - kKernelBatchDims + i;
    const BatchDim dim = from >= first ? gemm.batch[from] : BatchDim{1, 0, 0, 0, 0, 0};
    count *= dim.size;
    args.batch_size[i] = dim.size;
    args.a.batch_stride[i] = dim.a_stride * item;
    args.b.batch_stride[i] = dim.b_stride * item;
    args.c.batch_stride[i] = dim.c_stride * out_item;
    args.finish.addend.batch_stride[i] = dim.addend_stride * out_item;
    args.finish.aux.batch_stride[i] = dim.aux_stride * out_item;
  }
  args.m = static_cast<int>(gemm.m);
  args.n = static_cast<int>(gemm.n);
  args.k = static_cast<int>(gemm.k);
  args.row_tiles = static_cast<int>(ceil_div(gemm.m, tile_m));
  args.column_tiles = static_cast<int>(ceil_div(gemm.n, tile_n));

  const int64_t tiles = static_cast<int64_t>(args.row_tiles) * args.column_tiles;
  const int64_t matrices_a_grid = std::numeric_limits<int>::max() / tiles;
  void* parameters[] = {&args};
  for (args.first_matrix = 0; args.first_matrix < count; args.first_matrix += matrices_a_grid) {
    const auto blocks = static_cast<unsigned>(std::min(count - args.first_matrix, matrices_a_grid) * tiles);
    check(driver().cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared_bytes, stream, parameters, nullptr),
          "launching a product");
  }
}

}  // namespace
}  // namespace interop::cuda::tiled
