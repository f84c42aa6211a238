/// Products of few rows or few tiles of 16-bit floats on the tensor cores of sm_90. Few rows take as long as reading
/// the larger operand: it streams through shared memory, many stages ahead. Where there are fewer tiles than SMs, the
/// blocks of a cluster share k, and add up their sums through each other's shared memory.
#include <cuda_runtime.h>

#include <iterator>

#include "cuda/matmul/finish_four.cuh"
#include "cuda/matmul/rates.h"
#include "cuda/matmul/wgmma/cluster_kernels.h"
#include "cuda/matmul/wgmma/sm90.cuh"
#include "cuda/matmul/wgmma/wgmma.cuh"

namespace interop::cuda::wgmma {
namespace {

// ---- the shapes ----

constexpr int kTileK = 64;  // a row of 128 bytes

/// Warpgroups of 64 rows each multiply; of a warpgroup's rows only the first M may be loaded. One more warp loads. A
/// stage has Boxes times 64 of k: first of b, and then of a.
template <int M, int N, int Boxes>
struct Shape {
  static constexpr int kM = M, kN = N, kBoxes = Boxes, kCluster = 1;
  static constexpr int kWarpgroups = (M + 63) / 64, kWarps = 4 * kWarpgroups, kThreads = 32 * kWarps + 32;
  static constexpr int kBytesB = N * kRowBytes, kBytesA = M * kRowBytes, kStageBytes = Boxes * (kBytesA + kBytesB);
  static constexpr int kBarrierBytes = 1024;
  // wgmma reads 64 rows of a. What it reads beyond M, in the next stage or here, is in sums that are not stored.
  static constexpr int kBeyond = M < 64 ? (64 - M) * kRowBytes : 0;
  static constexpr int kOther = 1024 + kBarrierBytes + kBeyond;
  static constexpr int kPitch = N + 4;  // of a row of sums, so that a warp writes them to different banks
  static constexpr int kSumBytes = M * kPitch * 4;
  static_assert(8 * (2 * kMostStages + 1) <= kBarrierBytes && (M >= 64 ? M % 64 == 0 : M % 8 == 0) && kCluster == 1);
  static_assert(kOther + 2 * kStageBytes + M * N * 4 <= kSharedOfSm, "two stages, and what other blocks send");
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

struct Stages {
  uint32_t barriers;

  __device__ __forceinline__ uint32_t full(int stage) const { return barriers + 8 * stage; }
  __device__ __forceinline__ uint32_t empty(int stage) const { return barriers + 8 * (kMostStages + stage); }
  __device__ __forceinline__ uint32_t received() const { return barriers + 8 * 2 * kMostStages; }
  template <typename S>
  __device__ __forceinline__ uint32_t data(int stage) const {
    return barriers + S::kBarrierBytes + stage * S::kStageBytes;
  }
};

/// The tile of the block's cluster. Without a batch, one division delays the first load: tiles run down the columns.
template <typename S>
__device__ __forceinline__ Tile tile_of(const ClusterArgs& args) {
  const unsigned cluster = blockIdx.x >> args.blocks_log;
  if (!args.grid.flat) return tile_at<S>(args.grid, static_cast<int>(cluster), 0);
  Tile tile{};
  const unsigned column = cluster / static_cast<unsigned>(args.grid.row_units);
  tile.row = static_cast<int>(cluster - column * args.grid.row_units) * S::kM;
  tile.column = static_cast<int>(column) * S::kN;
  return tile;
}

/// Run by one thread: loads the block's `count` stages of k, from k tile `first` on.
template <typename S, bool KFast>
__device__ __forceinline__ void load_part(const ClusterArgs& args, const Stages& stages, const Tile& tile, int first,
                                          int count) {
  const uint64_t once = sm90::keep_shortly(), again = sm90::keep_long();
  sm90::Coordinates a = matrix_of_a(args.grid, tile), b = matrix_of_b(args.grid, tile);
  a.outer = tile.row;
  const bool flat = args.grid.flat;
  const auto load_box = [flat](uint32_t to, const CUtensorMap* map, uint32_t full, const sm90::Coordinates& at,
                               uint64_t policy) {
    flat ? sm90::load_flat_box(to, map, full, at, policy) : sm90::load_box(to, map, full, at, policy);
  };
  const auto load = [&](int i, int stage) {
    const uint32_t full = stages.full(stage), to = stages.data<S>(stage);
    sm90::expect_bytes(full, S::kStageBytes);
#pragma unroll
    for (int box = 0; box < S::kBoxes; ++box) {
      const int k = (first + i * S::kBoxes + box) * kTileK;
      if constexpr (KFast) {
        b.inner = k;
        b.outer = tile.column;
        load_box(to + box * S::kBytesB, &args.b, full, b, once);
      } else {
        b.outer = k;
#pragma unroll
        for (int i = 0; i < S::kN / 64; ++i) {
          b.inner = tile.column + i * 64;
          load_box(to + box * S::kBytesB + i * 64 * kRowBytes, &args.b, full, b, once);
        }
      }
    }
#pragma unroll
    for (int box = 0; box < S::kBoxes; ++box) {
      a.inner = (first + i * S::kBoxes + box) * kTileK;
      load_box(to + S::kBoxes * S::kBytesB + box * S::kBytesA, &args.a, full, a, again);
    }
  };
  const int ahead = min(count, args.stages);
  for (int i = 0; i < ahead; ++i) load(i, i);
  int stage = 0;
  uint32_t parity = 0;
  for (int i = ahead; i < count; ++i) {
    sm90::wait(stages.empty(stage), parity);
    load(i, stage);
    if (++stage == args.stages) stage = 0, parity ^= 1;
  }
}

/// Run by a warpgroup: its 64 rows by all columns, over `count` stages.
template <typename S, typename T, bool KFast>
__device__ __forceinline__ void multiply_part(const ClusterArgs& args, const Stages& stages, int warpgroup, int count,
                                              float (&sums)[S::kN / 2]) {
  constexpr int kAtom = 1024;  // 8 rows of 128 bytes
#pragma unroll
  for (int i = 0; i < S::kN / 2; ++i) sums[i] = 0;
  sm90::pin(sums);
  int stage = 0, previous = 0;
  uint32_t parity = 0;
  for (int i = 0; i < count; ++i) {
    sm90::wait(stages.full(stage), parity);
    const uint32_t from = stages.data<S>(stage);
    sm90::begin_products();
#pragma unroll
    for (int box = 0; box < S::kBoxes; ++box) {
      const uint64_t b = sm90::descriptor(from + box * S::kBytesB, 64 * kRowBytes, kAtom);
      const uint64_t a = sm90::descriptor(from + S::kBoxes * S::kBytesB + box * S::kBytesA + warpgroup * 64 * kRowBytes,
                                          64 * kRowBytes, kAtom);
#pragma unroll
      for (int k = 0; k < kRowBytes / 32; ++k) {
        sm90::product<T, 0, !KFast, S::kN>(sums, a + k * 2, b + k * (KFast ? 32 : 2 * kAtom) / 16);
      }
    }
    sm90::end_products();
    sm90::wait_for_products<1>();
    if (i > 0 && threadIdx.x % 32 == 0) sm90::arrive(stages.empty(previous));
    previous = stage;
    if (++stage == args.stages) stage = 0, parity ^= 1;
  }
  sm90::wait_for_products<0>();
  sm90::pin(sums);
}

// Where sums are stored unchanged, block `rank` of a cluster owns `own_groups` of the tile's groups of 8 columns. The
// others send it theirs, straight from registers: each thread to the one with the same rows and columns.

/// Where a thread's pairs of a group come to lie: those of row lane / 4, and of 8 rows below, kPairBytes further.
template <typename S>
struct Received {
  static constexpr int kPairBytes = 2 * S::kM * 8;  // of all threads
  uint32_t base;

  /// `from` sent them to `owner`.
  __device__ __forceinline__ uint32_t pairs(const ClusterArgs& args, int from, int owner, int group) const {
    const int sender = from < owner ? from : from - 1;
    const int of_owner = group - owner * args.own_groups;
    return base + (sender * args.own_groups + of_owner) * 2 * kPairBytes + threadIdx.x * 8;
  }
};

template <typename S>
__device__ __forceinline__ int owner_of(const ClusterArgs& args, int group) {
  return group * args.blocks / (S::kN / 8);
}

/// Sends a warp's sums to their owners. A warp has 16 rows.
template <typename S>
__device__ __forceinline__ void send_sums(const ClusterArgs& args, const Received<S>& to, uint32_t barrier, int rank,
                                          const float (&sums)[S::kN / 2]) {
#pragma unroll
  for (int j = 0; j < S::kN / 8; ++j) {
    const int owner = owner_of<S>(args, j);
    if (owner == rank) continue;
    const uint32_t pairs = to.pairs(args, rank, owner, j);
    sm90::send_pair(pairs, barrier, owner, sums[4 * j], sums[4 * j + 1]);
    sm90::send_pair(pairs + Received<S>::kPairBytes, barrier, owner, sums[4 * j + 2], sums[4 * j + 3]);
  }
}

/// Stores a warp's own sums, in pairs of a row. Those of several blocks are added up in the order of the blocks.
template <typename S, typename T>
__device__ __forceinline__ void store_pairs(const ClusterArgs& args, const Received<S>& received, int rank,
                                            const float (&sums)[S::kN / 2], const Tile& tile) {
  const int lane = threadIdx.x % 32, row = tile.row + static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
  const int column = tile.column + lane % 4 * 2;
  char* const to = tiled::place_in(args.c, tile.batch, row, column).data;
#pragma unroll
  for (int j = 0; j < S::kN / 8; ++j) {
    if (owner_of<S>(args, j) != rank || column + 8 * j >= args.grid.n) continue;
    float sum[4];
#pragma unroll 1
    for (int block = 0; block < args.blocks; ++block) {
      float more[4] = {sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]};
      if (block != rank) {
        const uint32_t pairs = received.pairs(args, block, rank, j);
        sm90::load_pair(more[0], more[1], pairs);
        sm90::load_pair(more[2], more[3], pairs + Received<S>::kPairBytes);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] = block == 0 ? more[i] : sum[i] + more[i];
    }
    if (row < args.grid.m) *reinterpret_cast<uint32_t*>(to + 16 * j) = tiled::rounded_pair<T>(sum[0], sum[1]);
    if (row + 8 < args.grid.m) {
      *reinterpret_cast<uint32_t*>(to + 8 * args.c.row_stride + 16 * j) = tiled::rounded_pair<T>(sum[2], sum[3]);
    }
  }
}

/// Writes a warpgroup's sums to shared memory, [row][column].
template <typename S>
__device__ __forceinline__ void write_sums(uint32_t to, const float (&sums)[S::kN / 2]) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int j = 0; j < S::kN / 8; ++j) {
    const uint32_t pair = to + (row * S::kPitch + 8 * j + lane % 4 * 2) * 4;
    if (row < S::kM) sm90::store_pair(pair, sums[4 * j], sums[4 * j + 1]);
    if (row + 8 < S::kM) sm90::store_pair(pair + 8 * S::kPitch * 4, sums[4 * j + 2], sums[4 * j + 3]);
  }
}

/// Adds up the blocks' sums of this block's share of the tile, in the order of the blocks, and finishes them. The
/// threads read several vectors before they store any.
template <typename S, typename T>
__device__ __forceinline__ void finish_share(const ClusterArgs& args, uint32_t sums, const Tile& tile, int rank) {
  constexpr int kVectors = S::kN / 4;  // in a row
  constexpr int kAtOnce = S::kM >= 64 ? 4 : 1;
  const int all = min(S::kM, args.grid.m - tile.row) * kVectors;
  const int share = (all + args.blocks - 1) / args.blocks, end = min(all, (rank + 1) * share);
  const tiled::Factors factors(args.finish);
#pragma unroll 1
  for (int at = rank * share + static_cast<int>(threadIdx.x); at < end; at += S::kThreads * kAtOnce) {
    float values[kAtOnce][4];
#pragma unroll
    for (int block = 0; block < kMostBlocksOfCluster; ++block) {
      if (block >= args.blocks) break;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int vector = min(at + i * S::kThreads, all - 1);
        const uint32_t address = sums + (vector / kVectors * S::kPitch + vector % kVectors * 4) * 4;
        const float4 v = sm90::load_four_from(address, block);
        const float more[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) values[i][j] = block == 0 ? more[j] : values[i][j] + more[j];
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int vector = at + i * S::kThreads;
      const int column = tile.column + vector % kVectors * 4, count = min(args.grid.n - column, 4);
      if (vector >= end || count <= 0) continue;
      tiled::finish_four<T>(args.finish, args.c, factors, values[i], tile.batch, tile.row + vector / kVectors, column,
                            count);
    }
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// cluster_kernel: c = a @ b for every matrix of the batch.
//   in      a (m, k), k its unit stride, and b (k, n) T, by their tensor maps; TMA writes zeros beyond the edges
//   out     c (m, n) T or float32, any strides, finished as `FinishArgs` says
//   launch  one cluster of args.blocks blocks of kThreads for each tile; `stages` stages of dynamic shared memory
//   traffic b once for every M rows, a once for every N columns
//   maths   a block's float32 sums, then a cluster's in the order of its blocks; those that are stored unchanged are
//   sent
//           to the block that stores them, and others lie in the place of the stages, where all blocks read them
// E.g. 16 x 4096 @ 4096 x 4096: 64 clusters of 2 blocks, each of 16 stages of 128 k, of which 5 are in flight.
template <typename S, typename T, bool KFast>
__global__ void __launch_bounds__(S::kThreads) cluster_kernel(const __grid_constant__ ClusterArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char shared[];
  const Stages stages{(sm90::shared_address(shared) + 1023) & ~uint32_t{1023}};
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // tells the compiler that it is uniform in a warp
  if (threadIdx.x == 32 * S::kWarps) {
    for (int i = 0; i < args.stages; ++i) {
      sm90::init_barrier(stages.full(i), 1);
      sm90::init_barrier(stages.empty(i), S::kWarps);
    }
    const bool receives = args.own_groups > 0 && args.blocks > 1;
    sm90::init_barrier(stages.received(), 1);
    sm90::publish_barriers();
    if (receives) {
      sm90::expect_bytes(stages.received(), (args.blocks - 1) * args.own_groups * 2 * Received<S>::kPairBytes);
    }
  }
  if (args.blocks > 1) sm90::arrive_at_cluster();  // none sends before all have barriers
  const int rank = sm90::cluster_rank();
  const Tile tile = tile_of<S>(args);
  const int all = (args.grid.k_tiles + S::kBoxes - 1) / S::kBoxes;  // stages of k
  const int first = rank * args.part_k, count = max(0, min(args.part_k, all - first));
  __syncthreads();

  float sums[S::kN / 2];
  if (warp == S::kWarps) {
    if (threadIdx.x % 32 == 0) load_part<S, KFast>(args, stages, tile, first * S::kBoxes, count);
    __syncwarp();
  } else {
    multiply_part<S, T, KFast>(args, stages, warp / 4, count, sums);
  }
  if (args.blocks > 1) sm90::wait_for_cluster();
  if (args.own_groups > 0) {
    if (warp >= S::kM / 16) return;
    const Received<S> received{stages.data<S>(args.stages)};
    if (args.blocks > 1) {
      send_sums<S>(args, received, stages.received(), rank, sums);
      sm90::wait_for_others(stages.received(), 0);
    }
    store_pairs<S, T>(args, received, rank, sums, tile);
    return;
  }
  const uint32_t all_sums = stages.data<S>(0);
  __syncthreads();  // all have read the stages, whose place the sums take
  if (warp < S::kWarps) write_sums<S>(all_sums, sums);
  sm90::cluster_barrier();
  finish_share<S, T>(args, all_sums, tile, rank);
  sm90::cluster_barrier();  // no block ends while others read its shared memory
#endif
}

// ---- the variants ----

template <typename S, typename T, bool KFast>
Kernel* kernel_of() {
  static Kernel kernel(reinterpret_cast<const void*>(&cluster_kernel<S, T, KFast>), kSharedOfSm);
  return &kernel;
}

template <typename S>
ClusterVariant variant_of(const char* name, double reduce_us) {
  Kernel *half = nullptr, *bfloat = nullptr;
  if constexpr (S::kN % 64 == 0) half = kernel_of<S, __half, false>(), bfloat = kernel_of<S, __nv_bfloat16, false>();
  return {name,        S::kM,
          S::kN,       S::kBoxes * kTileK,
          S::kThreads, S::kStageBytes,
          S::kOther,   S::kSumBytes,
          reduce_us,   {{half, kernel_of<S, __half, true>()}, {bfloat, kernel_of<S, __nv_bfloat16, true>()}}};
}

}  // namespace

ClusterVariants cluster_variants() {
  // m, n, and the boxes of a stage
  static const ClusterVariant list[] = {
      variant_of<Shape<16, 64, 2>>("16x64x128", rates::kReduce_16x64),
      variant_of<Shape<32, 64, 2>>("32x64x128", rates::kReduce_32x64),
      variant_of<Shape<64, 64, 1>>("64x64x64", rates::kReduce_64x64),
      variant_of<Shape<64, 32, 2>>("64x32x128", rates::kReduce_64x32),
      variant_of<Shape<128, 64, 1>>("128x64x64", rates::kReduce_128x64),
  };
  return {list, static_cast<int>(std::size(list))};
}

}  // namespace interop::cuda::wgmma
