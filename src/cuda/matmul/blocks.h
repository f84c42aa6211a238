/// The launch of kernels with one block per tile. Private to src/cuda.
#pragma once

#include <interop/gemm.h>

#include <algorithm>
#include <limits>

#include "cuda/driver/driver_api.h"
#include "cuda/matmul/tiled/tiled.h"

namespace interop::cuda::tiled {

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

}  // namespace interop::cuda::tiled
