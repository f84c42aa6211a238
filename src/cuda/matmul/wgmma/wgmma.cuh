/// Device code that the kernels of sm_90's tensor cores share: the order of their tiles, and the ring of stages in
/// shared memory. Everything has internal linkage: each source file has its own copy.
#pragma once

#include <cstdint>

#include "cuda/matmul/wgmma/launch.h"
#include "cuda/matmul/wgmma/sm90.cuh"

namespace interop::cuda::wgmma {
namespace {

// ---- order of the tiles ----

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

struct Tile {
  int row, column;  // of the first output
  int batch[kBatchDims];
};

/// Units run down a super-row's columns, so that those that run at the same time share rows of a and columns of b in
/// L2.
template <typename S>
__device__ __forceinline__ Tile tile_at(const Grid& grid, int unit, int rank) {
  Tile tile;
  const int of_matrix = grid.row_units * grid.column_tiles;
  int matrix = unit / of_matrix;
  const int at = unit - matrix * of_matrix;
#pragma unroll
  for (int i = kBatchDims - 1; i >= 0; --i) {
    const int outer = matrix / grid.batch_size[i];
    tile.batch[i] = matrix - outer * grid.batch_size[i];
    matrix = outer;
  }
  const int of_super_row = grid.super_units * grid.column_tiles;
  const int super_row = at / of_super_row;
  const int first = super_row * grid.super_units;
  const int height = min(grid.super_units, grid.row_units - first);
  const int in_super_row = at - super_row * of_super_row;
  const int column = in_super_row / height;
  tile.row = ((first + in_super_row - column * height) * S::kCluster + rank) * S::kM;
  tile.column = column * S::kN;
  return tile;
}

/// A place in the ring of stages, with the parity of its round.
template <int Stages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == Stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void skip(int count) {
    stage += count;
    parity ^= stage / Stages & 1;
    stage %= Stages;
  }
};

/// Shared memory: stages of a and b, buffers of c, barriers. 32-bit addresses, the same in all blocks of a cluster.
template <typename S>
struct Memory {
  uint32_t base;

  __device__ __forceinline__ uint32_t a(int stage) const { return base + stage * S::kStageBytes; }
  __device__ __forceinline__ uint32_t b(int stage) const { return a(stage) + S::kBytesA; }
  __device__ __forceinline__ uint32_t c(int warpgroup) const {
    return base + S::kStages * S::kStageBytes + warpgroup * 2 * S::kBoxBytes;
  }
  __device__ __forceinline__ uint32_t full(int stage) const { return c(2) + 8 * stage; }
  __device__ __forceinline__ uint32_t empty(int stage) const { return full(S::kStages) + 8 * stage; }
  __device__ __forceinline__ uint32_t turn(int warpgroup) const { return empty(S::kStages) + 8 * warpgroup; }
};

/// TMA's coordinates of a tile's matrix of a, and of b.
__device__ __forceinline__ sm90::Coordinates matrix_of_a(const Grid& grid, const Tile& tile) {
  return {0, 0, tile.batch[2] * grid.a_varies[2], tile.batch[1] * grid.a_varies[1], tile.batch[0] * grid.a_varies[0]};
}
__device__ __forceinline__ sm90::Coordinates matrix_of_b(const Grid& grid, const Tile& tile) {
  return {0, 0, tile.batch[2] * grid.b_varies[2], tile.batch[1] * grid.b_varies[1], tile.batch[0] * grid.b_varies[0]};
}

/// Loads a box into the block, or into all blocks of the cluster.
template <int Cluster = 1>
__device__ __forceinline__ void load_box(const Grid& grid, uint32_t to, const CUtensorMap* map, uint32_t barrier,
                                         const sm90::Coordinates& at) {
  constexpr uint16_t kAll = (1 << Cluster) - 1;
  if constexpr (Cluster == 1) {
    grid.flat ? sm90::load_flat_box(to, map, barrier, at) : sm90::load_box(to, map, barrier, at);
  } else {
    grid.flat ? sm90::load_flat_box_to_all(to, map, barrier, at, kAll)
              : sm90::load_box_to_all(to, map, barrier, at, kAll);
  }
}

/// Called by each warp that has read a stage: tells all blocks of the cluster.
template <typename S>
__device__ __forceinline__ void free_stage(const Memory<S>& memory, int stage) {
  const int lane = threadIdx.x % 32;
  if constexpr (S::kCluster == 1) {
    if (lane == 0) sm90::arrive(memory.empty(stage));
  } else {
    if (lane < S::kCluster) sm90::arrive_at(memory.empty(stage), lane);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace
}  // namespace interop::cuda::wgmma
