/// The launch of the kernels of sm_90's tensor cores: the grid of their tiles, and the tensor maps for TMA. Private to
/// src/cuda.
#pragma once

#include <interop/cuda/driver.h>
#include <interop/gemm.h>

#include <algorithm>
#include <limits>

#include "cuda/driver/driver_api.h"
#include "cuda/driver/kernel.h"
#include "cuda/matmul/tiled/tiled.h"

namespace interop::cuda::wgmma {

using tiled::FinishArgs;
using tiled::Format;
using tiled::matrices;
using tiled::OutputArgs;

constexpr int kBatchDims = 3;   // TMA has five dimensions
constexpr int kRowBytes = 128;  // of a k tile: the width of the swizzle
constexpr int kThreads = 384;   // one warpgroup loads, two multiply

/// All tiles of a launch.
struct Grid {
  int m, n, k_tiles;
  int row_units, column_tiles, units;  // a unit is a cluster's tiles, one below the other; `units` of all matrices
  int super_units;                     // the height of a super-row, in units
  bool flat;                           // there is no batch
  int batch_size[kBatchDims];          // innermost last
  int a_varies[kBatchDims], b_varies[kBatchDims];  // 0 where the operand is broadcast
};

// ---- TMA ----

inline bool is_tma_stride(int64_t stride, int64_t vector) {
  return stride > 0 && stride % vector == 0 && stride < int64_t{1} << 37;
}

inline bool is_tma_address(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

/// A tensor map of (outer, inner) with up to kBatchDims batch dimensions, the innermost last. A batch stride of 0 means
/// a broadcast dimension, which has size 1 in the map. Strides count elements.
struct MapSpec {
  const void* data = nullptr;
  int64_t inner = 0, outer = 0, outer_stride = 0;
  int64_t batch_sizes[kBatchDims] = {}, batch_strides[kBatchDims] = {};
  int box_outer = 0;
};

/// `flat`: the map has no batch dimensions.
inline void encode(CUtensorMap& map, const MapSpec& spec, CUtensorMapDataType type, bool flat = false) {
  const int item = type == CU_TENSOR_MAP_DATA_TYPE_UINT8                                                 ? 1
                   : type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 || type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4
                                                                                                         : 2;
  cuuint64_t sizes[5] = {static_cast<cuuint64_t>(spec.inner), static_cast<cuuint64_t>(spec.outer)};
  cuuint64_t strides[4] = {static_cast<cuuint64_t>(spec.outer_stride) *
                           item};  // in bytes, from the second dimension on
  for (int i = 0; i < kBatchDims; ++i) {
    const int from = kBatchDims - 1 - i;
    const bool varies = spec.batch_strides[from] != 0;
    sizes[2 + i] = varies ? static_cast<cuuint64_t>(spec.batch_sizes[from]) : 1;
    strides[1 + i] = varies ? static_cast<cuuint64_t>(spec.batch_strides[from]) * item : 16;
  }
  const cuuint32_t box[5] = {static_cast<cuuint32_t>(kRowBytes / item), static_cast<cuuint32_t>(spec.box_outer), 1, 1,
                             1};
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  check(driver().cuTensorMapEncodeTiled(&map, type, flat ? 2 : 5, const_cast<void*>(spec.data), sizes, strides, box,
                                        steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "describing a matrix to TMA");
}

// ---- launching ----

/// Is there something to compute, and do the coordinates and the number of the smallest tiles fit 32 bits, for `planes`
/// planes of k?
inline bool is_countable(const Gemm& gemm, int planes) {
  const int64_t most = std::numeric_limits<int>::max() / planes - 1024;
  if (gemm.m < 1 || gemm.n < 1 || gemm.k < 1 || matrices(gemm) < 1) return false;
  if (gemm.m > most || gemm.n > most || gemm.k > most) return false;
  return static_cast<double>(ceil_div(gemm.m, 64)) * ceil_div(gemm.n, 64) * matrices(gemm) <= most;
}

constexpr int kSuperRow = 2048;  // about how many rows of c are spanned by the tiles that run at the same time

/// Fills in `grid`, and the batch dimensions of `specs` (a, b, c), `c` and `finish`: those from `first` on, at most
/// kBatchDims. Tiles are m x n, and a cluster has `cluster` of them, one below the other.
inline void set_grid(Grid& grid, MapSpec (&specs)[3], OutputArgs& c, FinishArgs& finish, const Gemm& gemm, int first,
                     int m, int n, int cluster) {
  const int64_t out_item = item_bytes(gemm.out_dtype);
  int64_t count = 1;
  for (int i = 0; i < kBatchDims; ++i) {
    const int from = gemm.batch_ndim - kBatchDims + i;
    const BatchDim dim = from >= first ? gemm.batch[from] : BatchDim{1, 0, 0, 0, 0, 0};
    count *= dim.size;
    grid.batch_size[i] = static_cast<int>(dim.size);
    grid.a_varies[i] = dim.a_stride != 0;
    grid.b_varies[i] = dim.b_stride != 0;
    c.batch_stride[i] = dim.c_stride * out_item;
    finish.addend.batch_stride[i] = dim.addend_stride * out_item;
    finish.aux.batch_stride[i] = dim.aux_stride * out_item;
    for (MapSpec& spec : specs) spec.batch_sizes[i] = dim.size;
    specs[0].batch_strides[i] = dim.a_stride;
    specs[1].batch_strides[i] = dim.b_stride;
    specs[2].batch_strides[i] = dim.c_stride;
  }
  grid.m = static_cast<int>(gemm.m);
  grid.n = static_cast<int>(gemm.n);
  grid.row_units = static_cast<int>(ceil_div(gemm.m, m * cluster));
  grid.column_tiles = static_cast<int>(ceil_div(gemm.n, n));
  grid.units = static_cast<int>(grid.row_units * grid.column_tiles * count);
  grid.flat = count == 1;
  grid.super_units = kSuperRow / (m * cluster);
}

/// Launches one block per SM, or per tile if there are fewer tiles.
inline void launch_tiles(Kernel& kernel, void* args, const Grid& grid, int cluster, int shared_bytes,
                         int multiprocessors, cudaStream_t stream) {
  const int clusters = multiprocessors / cluster;
  const unsigned blocks = static_cast<unsigned>(std::min(clusters, grid.units) * cluster);
  const CUfunction function = ready(kernel, "launching a product", "loading the matmul kernel");
  void* parameters[] = {args};
  check(driver().cuLaunchKernel(function, blocks, 1, 1, kThreads, 1, 1, static_cast<unsigned>(shared_bytes), stream,
                                parameters, nullptr),
        "launching a product");
}

}  // namespace interop::cuda::wgmma
