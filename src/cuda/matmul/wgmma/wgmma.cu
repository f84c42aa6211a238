/// float16, bfloat16 and TF32 products on the tensor cores of sm_90: TMA loads, wgmma, one persistent block per SM.
#include <cuda_runtime.h>

#include <cstring>
#include <type_traits>

#include "cuda/matmul/finish_four.cuh"
#include "cuda/matmul/rates.h"
#include "cuda/matmul/tf32.cuh"
#include "cuda/matmul/wgmma/kernels.h"
#include "cuda/matmul/wgmma/sm90.cuh"
#include "cuda/matmul/wgmma/wgmma.cuh"

// Blocks of a cluster are neighbours in the grid. Other architectures get an empty kernel, which nothing launches.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define INTEROP_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#else
#define INTEROP_CLUSTER(blocks)
#endif

namespace interop::cuda::wgmma {
namespace {

// ---- the shapes ----

template <typename T>
constexpr int kTileK = kRowBytes / static_cast<int>(sizeof(T));  // 64, or 32 of float

/// wgmma reads float32 from shared memory only along k, so an a whose unit stride is not k goes through registers.
template <typename T, bool AKFast>
constexpr bool kFromRegisters = sizeof(T) == 4 && !AKFast;

/// One warpgroup loads and two multiply. Each multiplying one has RowBlocks * 64 x N outputs: together they make one
/// tile, or, where PingPong is set, each makes tiles of its own, so that one stores while the other multiplies.
/// kCluster blocks compute tiles below one another, and each loads its share of their common part of b for all.
///
/// InTwo: each operand is the sum of two parts, and three of the products of parts are added up.
template <int RowBlocks, int N, int Stages, int Cluster, bool PingPong, bool InTwo = false>
struct Shape {
  static constexpr int kPasses = InTwo ? 3 : 1;
  static constexpr int kRowBlocks = RowBlocks, kStages = Stages, kCluster = Cluster;
  static constexpr bool kPingPong = PingPong;
  static constexpr int kM = 64 * kRowBlocks * (kPingPong ? 1 : 2), kN = N;
  static constexpr int kBytesA = kM * kRowBytes, kBytesB = kN * kRowBytes, kStageBytes = kBytesA + kBytesB;
  static constexpr int kShareB = kN / Cluster;
  static constexpr int kBoxBytes = 64 * kRowBytes;  // 64 of m or n by one k tile; also 64 x 64 of c, in 16 bits
  // Of each multiplying warpgroup: two buffers of boxes in 16 bits, or one in float32.
  static constexpr int kStoreBytes = 2 * 2 * kBoxBytes;
  static constexpr int kShared = 1024 + kStages * kStageBytes + kStoreBytes + 8 * (2 * kStages + 2);
  // Arrivals that free a stage: every warp that reads it, in every block of the cluster.
  static constexpr int kReaders = (kPingPong ? 4 : 8) * kCluster;
  static_assert(kShared <= 227 * 1024 && kM <= 256 && kN <= 256 && kShareB % 64 == 0 && kReaders <= 128);
  static_assert(kPasses == 1 || (kRowBlocks == 1 && kN <= 128 && !kPingPong), "registers for the sums twice");
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// ---- loading ----

/// Run by one thread: fills the stages of all tiles of this block, in order.
template <typename S, typename T, bool AKFast, bool BKFast>
__device__ __forceinline__ void load_all(const KernelArgs& args, const Memory<S>& memory, int rank) {
  sm90::prefetch_map(&args.a);
  sm90::prefetch_map(&args.b);
  Ring<S::kStages> ring;
  for (int unit = blockIdx.x / S::kCluster; unit < args.grid.units; unit += gridDim.x / S::kCluster) {
    const Tile tile = tile_at<S>(args.grid, unit, rank);
    sm90::Coordinates a = matrix_of_a(args.grid, tile), b = matrix_of_b(args.grid, tile);
    const int b_first = rank * S::kShareB;
    for (int i = 0, pass = 0, k_tile = 0; i < S::kPasses * args.grid.k_tiles; ++i) {
      // The small products come first: a's low parts by b's high ones, the reverse, and then high by high.
      const int a_k = k_tile * kTileK<T> + (S::kPasses == 3 && pass == 0 ? args.plane : 0);
      const int b_k = k_tile * kTileK<T> + (S::kPasses == 3 && pass == 1 ? args.plane : 0);
      if (++k_tile == args.grid.k_tiles) k_tile = 0, ++pass;
      const uint32_t full = memory.full(ring.stage);
      sm90::wait(memory.empty(ring.stage), ring.parity ^ 1);
      sm90::expect_bytes(full, S::kStageBytes);

      const uint32_t a_to = memory.a(ring.stage);
      if constexpr (AKFast) {
        a.inner = a_k;
        a.outer = tile.row;
        load_box(args.grid, a_to, &args.a, full, a);
      } else {
        a.outer = a_k;
#pragma unroll
        for (int i = 0; i < S::kM / kTileK<T>; ++i) {
          a.inner = tile.row + i * kTileK<T>;
          load_box(args.grid, a_to + i * kTileK<T> * kRowBytes, &args.a, full, a);
        }
      }

      const auto load_b = [&](uint32_t to) { load_box<S::kCluster>(args.grid, to, &args.b, full, b); };
      const uint32_t b_to = memory.b(ring.stage) + b_first * kRowBytes;
      if constexpr (BKFast) {
        b.inner = b_k;
        b.outer = tile.column + b_first;
        load_b(b_to);
      } else {
        b.outer = b_k;
#pragma unroll
        for (int i = 0; i < S::kShareB / 64; ++i) {
          b.inner = tile.column + b_first + i * 64;
          load_b(b_to + i * S::kBoxBytes);
        }
      }
      ring.advance();
    }
  }
}

// ---- multiplying ----

/// Run by one warpgroup: sums = rows of a by all columns of b, over the next `k_tiles`. `block` is the index of its
/// first 64 rows in the stage's a. `started()` is called once the last product has been started.
template <typename S, typename T, bool AKFast, bool BKFast, typename Started>
__device__ __forceinline__ void multiply(int k_tiles, const Memory<S>& memory, Ring<S::kStages>& ring, int block,
                                         float (&sums)[S::kRowBlocks][S::kN / 2], Started started) {
  constexpr int kAtom = 1024;  // 8 rows of 128 bytes
#pragma unroll
  for (int i = 0; i < S::kRowBlocks; ++i) {
#pragma unroll
    for (int j = 0; j < S::kN / 2; ++j) sums[i][j] = 0;
    sm90::pin(sums[i]);
  }
  int previous = 0;
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
    sm90::wait(memory.full(ring.stage), ring.parity);
    const uint64_t a = sm90::descriptor(memory.a(ring.stage) + block * S::kBoxBytes, S::kBoxBytes, kAtom);
    const uint64_t b = sm90::descriptor(memory.b(ring.stage), S::kBoxBytes, kAtom);
    sm90::begin_products();
#pragma unroll
    for (int k = 0; k < kRowBytes / 32; ++k) {
      // A step of k is 32 bytes of every row, or two atoms where the rows are k; in units of 16 bytes.
      const uint64_t a_k = a + k * (AKFast ? 32 : 2 * kAtom) / 16;
      const uint64_t b_k = b + k * (BKFast ? 32 : 2 * kAtom) / 16;
#pragma unroll
      for (int i = 0; i < S::kRowBlocks; ++i) {
        sm90::product<T, !AKFast, !BKFast, S::kN>(sums[i], a_k + i * S::kBoxBytes / 16, b_k);
      }
    }
    sm90::end_products();
    sm90::wait_for_products<1>();
    if (k_tile > 0) free_stage(memory, previous);
    previous = ring.stage;
    ring.advance();
  }
  started();
  sm90::wait_for_products<0>();
#pragma unroll
  for (int i = 0; i < S::kRowBlocks; ++i) sm90::pin(sums[i]);
  free_stage(memory, previous);
}

/// Where a is in registers, a thread has the elements and sums of two neighbouring rows of a warpgroup's 64; this is
/// the first one. wgmma takes them for rows lane / 4 and lane / 4 + 8 of a warp's 16, but which rows of c those are is
/// free: with these, half a warp reads its pairs of a's elements from different banks.
__device__ __forceinline__ int row_in_registers(int thread) {
  return (thread & 64) >> 1 | (thread & 8) << 1 | (thread & 48) >> 2 | (thread & 4) >> 1;
}

/// `multiply` where a goes through registers: half of a's k tile is loaded while the other half is multiplied.
template <typename S, typename Started>
__device__ __forceinline__ void multiply_from_registers(int k_tiles, const Memory<S>& memory, Ring<S::kStages>& ring,
                                                        int block, float (&sums)[S::kRowBlocks][S::kN / 2],
                                                        Started started) {
  constexpr int kAtom = 1024;  // 8 rows of 128 bytes: of b, and of k of a
  constexpr int kSteps = 2;    // of 8 in half a k tile
  using Half = uint32_t[kSteps][S::kRowBlocks][4];
  // A box of a has 32 rows of k by 32 of m. TMA has swizzled the 16-byte chunks of every row.
  const int thread = threadIdx.x % 128, k = thread % 4, row = row_in_registers(thread);
  const uint32_t place =
      block * S::kBoxBytes + row / 32 * (S::kBoxBytes / 2) + k * kRowBytes + ((row % 32 / 4 ^ k) * 16 | row % 4 * 4);
  const auto load = [&](Half& half, int first) {
    const uint32_t low = memory.a(ring.stage) + place, high = (low ^ 4 * 16) + 4 * kRowBytes;  // k and k + 4
    float x[kSteps][S::kRowBlocks][4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < S::kRowBlocks; ++i) {
        const int at = i * S::kBoxBytes + (first + step) * kAtom;
        sm90::load_pair(x[step][i][0], x[step][i][1], low + at);
        sm90::load_pair(x[step][i][2], x[step][i][3], high + at);
      }
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < S::kRowBlocks; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) half[step][i][j] = device::rounded_to_tf32(x[step][i][j]);
      }
    }
  };
  const auto start = [&](const Half& half, int first) {
    const uint64_t b = sm90::descriptor(memory.b(ring.stage), S::kBoxBytes, kAtom);
    sm90::begin_products();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < S::kRowBlocks; ++i) {
        sm90::product_of_registers<S::kN>(sums[i], half[step][i], b + (first + step) * 32 / 16);
      }
    }
    sm90::end_products();
  };

#pragma unroll
  for (int i = 0; i < S::kRowBlocks; ++i) {
#pragma unroll
    for (int j = 0; j < S::kN / 2; ++j) sums[i][j] = 0;
    sm90::pin(sums[i]);
  }
  Half lower, upper;
  sm90::wait(memory.full(ring.stage), ring.parity);
  load(lower, 0);
  int previous = 0;
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
    start(lower, 0);
    sm90::wait_for_products<1>();  // those of `upper`
    if (k_tile > 0) free_stage(memory, previous);
    load(upper, kSteps);
    start(upper, kSteps);
    sm90::wait_for_products<1>();  // those of `lower`
    previous = ring.stage;
    ring.advance();
    if (k_tile + 1 < k_tiles) {
      sm90::wait(memory.full(ring.stage), ring.parity);
      load(lower, 0);
    }
  }
  started();
  sm90::wait_for_products<0>();
#pragma unroll
  for (int i = 0; i < S::kRowBlocks; ++i) sm90::pin(sums[i]);
  free_stage(memory, previous);
}

/// The tensor cores round their sums towards zero, which over a long k is less exact than float32. So for operands in
/// two parts, the CUDA cores add the sums of every kPartTiles k tiles to the total.
constexpr int kPartTiles = 4;

/// `multiply` for operands in two parts, over all of k and all passes.
template <typename S, typename T>
__device__ __forceinline__ void multiply_in_two(int k_tiles, const Memory<S>& memory, Ring<S::kStages>& ring, int block,
                                                float (&sums)[S::kRowBlocks][S::kN / 2]) {
#pragma unroll
  for (int j = 0; j < S::kN / 2; ++j) sums[0][j] = 0;
#pragma unroll 1
  for (int pass = 0; pass < S::kPasses; ++pass) {
#pragma unroll 1
    for (int left = k_tiles; left > 0; left -= kPartTiles) {
      float part[S::kRowBlocks][S::kN / 2];
      multiply<S, T, true, true>(min(left, kPartTiles), memory, ring, block, part, [] {});
#pragma unroll
      for (int j = 0; j < S::kN / 2; ++j) sums[0][j] += part[0][j];
    }
  }
}

// ---- storing ----

/// Adds a bias that is contiguous along the rows, and 4-byte aligned, to two neighbours in two rows: x[first] and on.
template <typename T>
__device__ __forceinline__ void add_bias(float (&x)[8], int first, const char* bias, int column, int columns) {
  if (column >= columns) return;  // those are stored columns, a multiple of 8
  const uint32_t pair = *reinterpret_cast<const uint32_t*>(bias + column * 2);
  const float low = tiled::widen(static_cast<uint16_t>(pair), tiled::kFormatOf<T>, 0.f);
  const float high = tiled::widen(static_cast<uint16_t>(pair >> 16), tiled::kFormatOf<T>, 0.f);
  x[first] += low, x[first + 1] += high;
  x[first + 2] += low, x[first + 3] += high;
}

/// Adds a bias along the rows, if there is one, and applies the activation to eight sums. The first four are of
/// `column` and the next one, the others are 8 columns further.
template <typename T>
__device__ __forceinline__ void finish_eight(const tiled::FinishArgs& how, float (&x)[8], int column, int columns) {
  if (how.bias.data) {
    add_bias<T>(x, 0, how.bias.data, column, columns);
    add_bias<T>(x, 4, how.bias.data, column + 8, columns);
  }
  tiled::activate(x, how.activation, true);
}

/// Stores one warpgroup's 64 x N outputs by TMA, 64 columns at a time; unchanged, unless `Finishes`. `buffer`
/// alternates between 0 and 1.
template <bool Finishes, typename S, typename T>
__device__ __forceinline__ void store_by_tma(const KernelArgs& args, const Memory<S>& memory, int warpgroup,
                                             const float (&sums)[S::kN / 2], const Tile& tile, int row, int& buffer) {
  const int thread = threadIdx.x % 128, lane = thread % 32;
  // The row that this lane gives to stmatrix: matrices 0 and 2 are 8 rows, 1 and 3 the next 8; 2 and 3 are 8 columns
  // further.
  const int box_row = thread / 32 * 16 + lane % 16;
#pragma unroll
  for (int box = 0; box < S::kN / 64; ++box) {
    const uint32_t to = memory.c(warpgroup) + buffer * S::kBoxBytes;
    if (thread == 0) sm90::wait_for_store_reads<1>();  // the store before the last one has read this buffer
    sm90::named_barrier(1 + warpgroup, 128);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float x[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = sums[box * 32 + j * 8 + i];
      if constexpr (Finishes) {
        finish_eight<T>(args.finish, x, tile.column + box * 64 + j * 16 + lane % 4 * 2, args.grid.n);
      }
      const int chunk = 2 * j + lane / 16;  // of 16 bytes, swizzled as TMA has it
      sm90::store_matrices(to + box_row * 128 + (chunk ^ box_row % 8) * 16, tiled::rounded_pair<T>(x[0], x[1]),
                           tiled::rounded_pair<T>(x[2], x[3]), tiled::rounded_pair<T>(x[4], x[5]),
                           tiled::rounded_pair<T>(x[6], x[7]));
    }
    sm90::fence_async_reads();
    sm90::named_barrier(1 + warpgroup, 128);
    if (thread == 0) {
      const int column = tile.column + box * 64;
      if (row < args.grid.m && column < args.grid.n) {
        sm90::store_box(&args.c_map, to, {column, row, tile.batch[2], tile.batch[1], tile.batch[0]});
      }
      sm90::end_store();  // a group is counted even if nothing was stored
    }
    buffer ^= 1;
  }
}

/// Finishes one warpgroup's outputs as `FinishArgs` says, and stores them. 64 x 64 at a time go through shared memory
/// as float32, so that a thread then has four neighbours of a row of c, and the stores are coalesced. Where the
/// transpose was computed, the tile's rows are c's columns. `row` is the tile's first.
template <typename S, typename T, bool FromRegisters>
__device__ __forceinline__ void store_finished(const KernelArgs& args, const Memory<S>& memory, int warpgroup,
                                               const float (&sums)[S::kRowBlocks][S::kN / 2], const Tile& tile,
                                               int row) {
  constexpr int kBoxes = S::kN / 64;  // in a row
  const int thread = threadIdx.x % 128, lane = thread % 32;
  const uint32_t buffer = memory.c(warpgroup);
  const bool transposed = FromRegisters && args.transposed;
  // Vectors of four are swizzled, so that half a warp writes its four rows or columns to different banks.
  const auto vector = [=](int box_row, int index) {
    const int swizzle = transposed      ? box_row / 2 % 4
                        : FromRegisters ? (box_row & 2) | (box_row >> 2 & 4)
                                        : box_row % 4 * 2;
    return buffer + box_row * 256 + (index ^ swizzle) * 16;
  };
  const tiled::Factors factors(args.finish);
#pragma unroll 1
  for (int box = 0; box < S::kRowBlocks * kBoxes; ++box) {
    const int first_row = row + box / kBoxes * 64, first_column = tile.column + box % kBoxes * 64;
    if (first_row >= args.grid.m || first_column >= args.grid.n) continue;  // for all threads alike
    sm90::named_barrier(1 + warpgroup, 128);                                // all have read the box before
#pragma unroll
    for (int i = 0; i < S::kRowBlocks * kBoxes; ++i) {  // registers cannot be indexed
      if (i != box) continue;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float* const x = &sums[i / kBoxes][i % kBoxes * 32 + j * 4];
        const int box_column = 8 * j + lane % 4 * 2;
        const int box_row = FromRegisters ? row_in_registers(thread) : thread / 32 * 16 + lane / 4;
        if (transposed) {
          const uint32_t half = box_row % 4 * 4;
          sm90::store_pair(vector(box_column, box_row / 4) + half, x[0], x[2]);
          sm90::store_pair(vector(box_column + 1, box_row / 4) + half, x[1], x[3]);
        } else {
          const uint32_t half = lane % 2 * 8;
          sm90::store_pair(vector(box_row, box_column / 4) + half, x[0], x[1]);
          sm90::store_pair(vector(box_row + (FromRegisters ? 1 : 8), box_column / 4) + half, x[2], x[3]);
        }
      }
    }
    sm90::named_barrier(1 + warpgroup, 128);
    const int c_row = transposed ? first_column : first_row, rows = transposed ? args.grid.n : args.grid.m;
    const int c_column = (transposed ? first_row : first_column) + thread % 16 * 4;
    const int count = min((transposed ? args.grid.m : args.grid.n) - c_column, 4);
#pragma unroll 2
    for (int box_row = thread / 16; box_row < 64; box_row += 8) {
      float values[4];
      sm90::load_four(values, vector(box_row, thread % 16));
      if (c_row + box_row < rows && count > 0) {
        tiled::finish_four<T>(args.finish, args.c, factors, values, tile.batch, c_row + box_row, c_column, count);
      }
    }
  }
}

/// Run by each of the two multiplying warpgroups: computes all of its tiles.
template <typename S, typename T, bool AKFast, bool BKFast>
__device__ __forceinline__ void compute_all(const KernelArgs& args, const Memory<S>& memory, int rank, int warpgroup) {
  const int thread = threadIdx.x % 128;
  const int step = gridDim.x / S::kCluster;
  const int block = S::kPingPong ? 0 : warpgroup * S::kRowBlocks;
  int unit = blockIdx.x / S::kCluster;
  int buffer = 0;
  Ring<S::kStages> ring;
  uint32_t turn_parity = warpgroup == 0;  // a wait for parity 1 passes a new barrier
  if (S::kPingPong && warpgroup == 1) {
    unit += step;
    ring.skip(args.grid.k_tiles);
  }
  for (; unit < args.grid.units; unit += S::kPingPong ? 2 * step : step) {
    float sums[S::kRowBlocks][S::kN / 2];
    if constexpr (S::kPingPong) {
      // The warpgroup may not wait for its stages before its turn: a parity does not distinguish a stage's next round
      // from the previous one.
      sm90::wait(memory.turn(warpgroup), turn_parity);
      turn_parity ^= 1;
    }
    const auto started = [&] {
      if (S::kPingPong && thread % 32 == 0) sm90::arrive(memory.turn(1 - warpgroup));
    };
    if constexpr (S::kPasses > 1) {
      multiply_in_two<S, T>(args.grid.k_tiles, memory, ring, block, sums);
    } else if constexpr (kFromRegisters<T, AKFast>) {
      multiply_from_registers(args.grid.k_tiles, memory, ring, block, sums, started);
    } else {
      multiply<S, T, AKFast, BKFast>(args.grid.k_tiles, memory, ring, block, sums, started);
    }
    if (S::kPingPong) ring.skip(args.grid.k_tiles);  // the k tiles of the other warpgroup

    const Tile tile = tile_at<S>(args.grid, unit, rank);
    const int row = tile.row + block * 64;
    if constexpr (sizeof(T) == 2) {
      if (args.c_by_tma) {
#pragma unroll
        for (int i = 0; i < S::kRowBlocks; ++i) {
          if (args.finish.bias.data || args.finish.activation) {
            store_by_tma<true, S, T>(args, memory, warpgroup, sums[i], tile, row + i * 64, buffer);
          } else {
            store_by_tma<false, S, T>(args, memory, warpgroup, sums[i], tile, row + i * 64, buffer);
          }
        }
        continue;
      }
    }
    store_finished<S, T, kFromRegisters<T, AKFast>>(args, memory, warpgroup, sums, tile, row);
  }
  if (args.c_by_tma && thread == 0) sm90::wait_for_store_reads<0>();
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// wgmma_kernel: c = a @ b for every matrix of the batch.
//   in      a (m, k), b (k, n) T by their tensor maps, k the unit stride where KFast; TMA writes zeros beyond the edges
//           T float: as TF32, k the unit stride of b; for InTwo shapes, rows of high parts and then of low ones
//   out     c (m, n) T, by its tensor map; or T or float32 of any strides; finished as `FinishArgs` says
//   launch  one block of kThreads per SM, or per tile where those are fewer; kShared dynamic shared memory
//   maths   float32 sums in one fixed order
// The ring of kStages k tiles has two barriers a stage: `full` (loaded) and `empty` (read by all of the cluster). Where
// the two warpgroups take tiles in turn, `turn` tells each that the other has waited for all of its stages.
template <typename S, typename T, bool AKFast, bool BKFast>
__global__ void __launch_bounds__(kThreads, 1) INTEROP_CLUSTER(S::kCluster)
    wgmma_kernel(const __grid_constant__ KernelArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char shared[];
  const Memory<S> memory{(sm90::shared_address(shared) + 1023) & ~uint32_t{1023}};
  const int rank = S::kCluster == 1 ? 0 : sm90::cluster_rank();
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      sm90::init_barrier(memory.full(i), 1);
      sm90::init_barrier(memory.empty(i), S::kReaders);
    }
    for (int i = 0; i < 2; ++i) sm90::init_barrier(memory.turn(i), 4);  // the other warpgroup's warps arrive
    sm90::publish_barriers();
  }
  __syncthreads();
  if (S::kCluster > 1) sm90::cluster_barrier();

  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // tells the compiler that it is uniform in a warp
  if (warpgroup == 0) {
    sm90::fewer_registers<40>();
    if (threadIdx.x == 0) load_all<S, T, AKFast, BKFast>(args, memory, rank);
    __syncwarp();
  } else {
    sm90::more_registers<232>();
    compute_all<S, T, AKFast, BKFast>(args, memory, rank, warpgroup - 1);
    __syncwarp();
  }
  // No block ends while another may arrive at its barriers.
  if (S::kCluster > 1) sm90::cluster_barrier();
#endif
}

// ---- the variants ----

using Kernels = Kernel* [2][2][2];

template <typename S, typename T, bool AKFast, bool BKFast>
Kernel* kernel_of() {
  static Kernel kernel(reinterpret_cast<const void*>(&wgmma_kernel<S, T, AKFast, BKFast>), S::kShared);
  return &kernel;
}

template <typename S>
Variant variant_of(const char* name, const rates::TileTime& time, const Kernels& kernels) {
  Variant variant{name, time, S::kM, S::kN, S::kCluster, S::kShareB, S::kShared, S::kPingPong, {}};
  std::memcpy(variant.kernels, kernels, sizeof kernels);
  return variant;
}

/// The variant for float16 and bfloat16, in every layout.
template <typename S>
Variant of_16_bits(const char* name, const rates::TileTime& time) {
  return variant_of<S>(name, time,
                       {{{kernel_of<S, __half, false, false>(), kernel_of<S, __half, false, true>()},
                         {kernel_of<S, __half, true, false>(), kernel_of<S, __half, true, true>()}},
                        {{kernel_of<S, __nv_bfloat16, false, false>(), kernel_of<S, __nv_bfloat16, false, true>()},
                         {kernel_of<S, __nv_bfloat16, true, false>(), kernel_of<S, __nv_bfloat16, true, true>()}}});
}

/// The variant for float32 as TF32. A k tile takes the tensor cores as long as one of 16 bits.
template <typename S>
Variant of_tf32(const char* name, const rates::TileTime& time) {
  Kernel* from_registers = nullptr;
  if constexpr (S::kPasses == 1) from_registers = kernel_of<S, float, false, true>();
  return variant_of<S>(name, time, {{{nullptr, from_registers}, {nullptr, kernel_of<S, float, true, true>()}}});
}

}  // namespace

Variants variants(MatmulPrecision precision) {
  // row blocks, n, stages, cluster, ping-pong, in two
  static const Variant half[] = {
      of_16_bits<Shape<1, 256, 4, 1, false>>("128x256x64", rates::kHalf_128x256),
      of_16_bits<Shape<2, 128, 6, 2, true>>("128x128x64 ping-pong", rates::kHalfPingPong_128x128),
      of_16_bits<Shape<1, 128, 6, 1, false>>("128x128x64", rates::kHalf_128x128),
      of_16_bits<Shape<1, 64, 8, 1, false>>("128x64x64", rates::kHalf_128x64),
  };
  static const Variant tf32[] = {
      of_tf32<Shape<1, 256, 4, 1, false>>("128x256x32", rates::kTf32_128x256),
      of_tf32<Shape<2, 128, 6, 2, true>>("128x128x32 ping-pong", rates::kTf32PingPong_128x128),
      of_tf32<Shape<1, 64, 8, 1, false>>("128x64x32", rates::kTf32_128x64),
  };
  static const Variant tf32x3[] = {
      of_tf32<Shape<1, 128, 6, 2, false, true>>("128x128x32", rates::kTf32x3_128x128),
      of_tf32<Shape<1, 64, 8, 1, false, true>>("128x64x32", rates::kTf32x3_128x64),
  };
  switch (precision) {
    case MatmulPrecision::tf32:
      return {tf32, static_cast<int>(std::size(tf32))};
    case MatmulPrecision::tf32x3:
      return {tf32x3, static_cast<int>(std::size(tf32x3))};
    default:
      return {half, static_cast<int>(std::size(half))};
  }
}

}  // namespace interop::cuda::wgmma
