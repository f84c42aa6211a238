/// Our own matrix product: a tiled kernel for float32 and float64 that takes any strides and any batch.
#include <interop/error.h>

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "cuda/driver_api.h"
#include "cuda/kernel.h"
#include "cuda/matmul_backends.h"

namespace interop::cuda {
namespace {

// ---- what the kernel is told ----

constexpr int kKernelBatchDims = 4;

/// One input as a (mn, k) matrix, where mn is m for a and n for b. All steps in bytes; the last three follow from the
/// strides and the kernel's shape, and are here so that the kernel adds constants instead of keeping registers.
struct OperandArgs {
  const char* data;
  int64_t mn_stride, k_stride;
  int64_t mn_step, k_step;  // between the elements that one thread copies
  int64_t tile_step;        // from one k tile to the next
  int64_t batch_stride[kKernelBatchDims];
  int k_fast;  // do neighbouring threads copy neighbours in k (or in mn)?
};

struct OutputArgs {
  char* data;
  int64_t row_stride, column_stride;
  int64_t batch_stride[kKernelBatchDims];
  int vector_stores;  // columns are adjacent, and every fourth (second) one is 16-byte aligned
};

struct KernelArgs {
  OperandArgs a, b;
  OutputArgs c;
  int64_t m, n;
  int k_tiles, k_last;  // how many k tiles; the length of the last one
  unsigned row_tiles, column_tiles;
  int64_t first_matrix;  // of this launch
  int batch_ndim;
  int64_t batch_size[kKernelBatchDims];
};

// ---- the shapes ----

/// A block computes kM x kN outputs, kK products at a time, from kStages tiles in shared memory. Its warps stand in a
/// grid of kWarpM x kWarpN outputs each, and a thread has kThreadM x kThreadN of those.
template <typename T, int M, int N, int K, int Stages, int WarpM, int WarpN, int ThreadM, int ThreadN, int MinBlocks>
struct Shape {
  using Type = T;
  static constexpr int kM = M, kN = N, kK = K, kStages = Stages;
  static constexpr int kWarpM = WarpM, kWarpN = WarpN, kThreadM = ThreadM, kThreadN = ThreadN;
  static constexpr int kVector = 16 / sizeof(T);
  static constexpr int kLanesM = WarpM / ThreadM, kLanesN = WarpN / ThreadN;
  static constexpr int kWarpsN = N / WarpN;
  static constexpr int kThreads = (M / WarpM) * kWarpsN * 32;
  // A row of shared memory is 4 elements longer than the tile: a warp that writes 8 k times 4 mn of floats, or reads 4
  // k times 8 mn of doubles, then hits every bank once.
  static constexpr int kPitchA = M + 4, kPitchB = N + 4;
  static constexpr int kItemsA = K * kPitchA, kItems = kItemsA + K * kPitchB;  // of one stage
  // On sm_75 shared memory holds one block an SM, and copies need registers that cp.async does not.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  static constexpr int kMinBlocks = 1;
#else
  static constexpr int kMinBlocks = MinBlocks;
#endif
  static constexpr bool kIsLarge = M * N > 64 * 64;  // has a loop for blocks that no edge of the matrix cuts
  static_assert(kLanesM * kLanesN == 32 && kLanesN % 2 == 0);
  static_assert(ThreadM % kVector == 0 && ThreadN % kVector == 0 && K % 8 == 0);
};

// clang-format off
//                       T        M    N   K  stages warp     thread  blocks an SM
using Large32 = Shape<float,   128, 128, 16, 2,    64, 32,   8, 8,   2>;
using Medium32 = Shape<float,   64,  64,  8, 4,    32, 32,   8, 4,   4>;
using Narrow32 = Shape<float,   32,  64, 16, 4,    32, 16,   4, 4,   6>;
using Small32 = Shape<float,    32,  32, 16, 4,    32, 16,   4, 4,   8>;
using Large64 = Shape<double,  128,  64,  8, 3,    64, 32,   8, 8,   2>;
using Small64 = Shape<double,   32,  32,  8, 4,    32, 16,   4, 4,   6>;
// clang-format on

// ---- copies from global to shared memory ----

/// Copies `bytes` (0 to Bytes) and writes zeros for the rest. Asynchronous from sm_80 on; bypasses L1 where it can.
template <int Bytes>
__device__ __forceinline__ void copy_or_zero(void* to, const char* from, int bytes) {
#if __CUDA_ARCH__ >= 800
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(Bytes), "r"(bytes)
                 : "memory");
  }
#else
  if (Bytes == 16 && bytes == 16) {
    *static_cast<int4*>(to) = *reinterpret_cast<const int4*>(from);
    return;
  }
#pragma unroll
  for (int i = 0; i < Bytes; i += 4) {
    static_cast<int*>(to)[i / 4] = i < bytes ? reinterpret_cast<const int*>(from)[i / 4] : 0;
  }
#endif
}

__device__ __forceinline__ void end_of_stage() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/// Waits until at most `Pending` of this thread's latest stages are still on their way.
template <int Pending>
__device__ __forceinline__ void wait_for_stages() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
#endif
}

/// Copies the tiles of one input, one k tile a call, to shared memory as [k][mn].
///
/// A thread copies elements at (k0 + j * 8, mn0 + i * threads / 8) one by one, or, where Vectors is set (mn is the unit
/// stride and everything is 16-byte aligned), whole vectors along mn. Rows and columns beyond the edge of the matrix
/// are not copied: what stands in their place meets no output that is stored. Beyond k, zeros are written.
template <typename T, int MN, int K, int Threads, bool Vectors>
class TileCopy {
 public:
  static constexpr int kItem = Vectors ? 16 / sizeof(T) : 1;
  static constexpr int kBytes = kItem * sizeof(T);
  static constexpr int kPitch = MN + 4;
  static constexpr int kStepK = Vectors ? Threads / (MN / kItem) : 8;
  static constexpr int kStepMN = Vectors ? MN : Threads / 8;
  static constexpr int kCountK = K / kStepK, kCountMN = MN / kStepMN;
  static_assert(kCountK * kStepK == K && kCountMN * kStepMN == MN);

  /// `tile` is the first element to copy; `mn_left` of its rows (a) or columns (b) exist, and `k_last` of the last k
  /// tile.
  __device__ __forceinline__ TileCopy(const OperandArgs& args, const char* tile, int mn_left, int k_last)
      : args_(args) {
    const int thread = threadIdx.x;
    int mn, k;
    if constexpr (Vectors) {
      mn = thread % (MN / kItem) * kItem;
      k = thread / (MN / kItem);
      valid_ = min(max(mn_left - mn, 0), kItem) * static_cast<int>(sizeof(T));
    } else {
      mn = args.k_fast ? thread / 8 : thread % kStepMN;
      k = args.k_fast ? thread % 8 : thread / kStepMN;
      valid_ = 0;
#pragma unroll
      for (int i = 0; i < kCountMN; ++i) valid_ |= (mn + i * kStepMN < mn_left) << i;
    }
    from_ = tile + mn * args.mn_stride + k * args.k_stride;
    to_ = k * kPitch + mn;
    k_valid_ = k_last - k;
  }

  /// Copies the next k tile to `to`. Edge: parts of it may not exist.
  template <bool Edge>
  __device__ __forceinline__ void next(T* to, bool is_last) {
#pragma unroll
    for (int j = 0; j < kCountK; ++j) {
      const bool in_k = !is_last || j * kStepK < k_valid_;
      const char* from = from_ + j * args_.k_step;
#pragma unroll
      for (int i = 0; i < kCountMN; ++i) {
        T* const element = to + to_ + j * kStepK * kPitch + i * kStepMN;
        if constexpr (Vectors) {
          if (!Edge || valid_ > 0) copy_or_zero<16>(element, from, in_k ? (Edge ? valid_ : kBytes) : 0);
        } else {
          if (!Edge || valid_ >> i & 1) copy_or_zero<kBytes>(element, from, in_k ? kBytes : 0);
          from += args_.mn_step;
        }
      }
    }
    from_ += args_.tile_step;
  }

 private:
  const OperandArgs& args_;
  const char* from_;
  int to_;
  int k_valid_;  // how many of this thread's rows of the last k tile exist, counted from its first
  int valid_;    // vectors: the bytes of each that exist; else: a bit for each i
};

// ---- the kernel ----

struct Tile {
  unsigned row, column;
};

/// The order in which a matrix's tiles are computed: down columns of 16 tiles, so that blocks that run together share
/// their rows of a and columns of b in L2.
__device__ __forceinline__ Tile tile_at(unsigned index, unsigned row_tiles, unsigned column_tiles) {
  constexpr unsigned kBand = 16;
  const unsigned band = index / (kBand * column_tiles);
  const unsigned height = min(kBand, row_tiles - band * kBand);
  const unsigned within = index - band * kBand * column_tiles;
  return {band * kBand + within % height, within / height};
}

/// One thread's vector of a tile's row: kCount values in groups of one 16-byte vector, kStep apart.
template <typename T, int Count, int Step>
__device__ __forceinline__ void load_fragment(T (&to)[Count], const T* from) {
  constexpr int kVector = 16 / sizeof(T);
#pragma unroll
  for (int group = 0; group < Count / kVector; ++group) {
    *reinterpret_cast<int4*>(&to[group * kVector]) = *reinterpret_cast<const int4*>(from + group * Step);
  }
}

/// Do T's products go to the tensor cores? float64's do, from sm_80 on: those add and round as fma does.
template <typename T>
__host__ __device__ constexpr bool uses_tensor_cores() {
#if __CUDA_ARCH__ >= 800
  return std::is_same<T, double>::value;
#else
  return false;
#endif
}

/// sum += a @ b for 16 rows, 8 columns and 8 k of a warp. With t = lane % 4 and g = lane / 4, a thread has k = t and t
/// + 4 of rows g (a_low) and g + 8 (a_high) of a and of column g of b, and columns 2t and 2t + 1 of the same rows of
/// sum.
[[maybe_unused]] __device__ __forceinline__ void multiply_16x8x8(double* low, double* high, const double (&a_low)[2],
                                                                 const double (&a_high)[2], const double (&b)[2]) {
#if __CUDA_ARCH__ >= 900
  asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+d"(low[0]), "+d"(low[1]), "+d"(high[0]), "+d"(high[1])
      : "d"(a_low[0]), "d"(a_high[0]), "d"(a_low[1]), "d"(a_high[1]), "d"(b[0]), "d"(b[1]));
#elif __CUDA_ARCH__ >= 800
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(low[0]), "+d"(low[1])
        : "d"(a_low[k]), "d"(b[k]));
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(high[0]), "+d"(high[1])
        : "d"(a_high[k]), "d"(b[k]));
  }
#endif
}

/// sum += a @ b for one tile in shared memory, by fma. The first row of the tile is in `a_values[0]` and `b_values[0]`
/// already; the next row is read while one is multiplied, and that of the next tile after `next_tile()`, which returns
/// where it begins.
template <typename S, int GroupM, int GroupN, typename T, typename AfterFirst, typename NextTile>
__device__ __forceinline__ void multiply_tile(T (&sum)[S::kThreadM][S::kThreadN], T (&a_values)[2][S::kThreadM],
                                              T (&b_values)[2][S::kThreadN], const T* tile, int a_place, int b_place,
                                              AfterFirst after_first, NextTile next_tile) {
#pragma unroll
  for (int k = 0; k < S::kK; ++k) {
    if (k == S::kK - 1) tile = next_tile();
    load_fragment<T, S::kThreadM, GroupM>(a_values[(k + 1) % 2], tile + (k + 1) % S::kK * S::kPitchA + a_place);
    load_fragment<T, S::kThreadN, GroupN>(b_values[(k + 1) % 2], tile + (k + 1) % S::kK * S::kPitchB + b_place);
    if (k == 0) after_first();
    // The order decides which registers ptxas gives to whom, and an fma that reads two of them from one bank costs half
    // a cycle more. In this order (nvcc 13.0, sm_90a) 3 in 10 do, and in rising order 6 to 8: 1 to 8 % of the time.
#pragma unroll
    for (int step = 0; step < S::kThreadN; ++step) {
      const int j = S::kThreadN - 1 - step;
#pragma unroll
      for (int back = 0; back < S::kThreadM; ++back) {
        const int i = step % 2 ? back : S::kThreadM - 1 - back;
        sum[i][j] = fma(a_values[k % 2][i], b_values[k % 2][j], sum[i][j]);
      }
    }
  }
}

/// sum += a @ b for one tile in shared memory, by tensor cores; `a` and `b` are this thread's first elements in it.
template <typename S>
__device__ __forceinline__ void multiply_tile_by_tensor_cores(double (&sum)[S::kThreadM][S::kThreadN], const double* a,
                                                              const double* b) {
  static_assert(S::kThreadM * 8 == S::kWarpM && S::kThreadN * 4 == S::kWarpN && S::kThreadM % 2 == 0);
#pragma unroll
  for (int k = 0; k < S::kK; k += 8) {
    double a_values[S::kThreadM][2], b_values[S::kThreadN / 2][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < S::kThreadM; ++i) a_values[i][half] = a[(k + half * 4) * S::kPitchA + i * 8];
#pragma unroll
      for (int j = 0; j < S::kThreadN / 2; ++j) b_values[j][half] = b[(k + half * 4) * S::kPitchB + j * 8];
    }
#pragma unroll
    for (int i = 0; i < S::kThreadM; i += 2) {
#pragma unroll
      for (int j = 0; j < S::kThreadN / 2; ++j) {
        multiply_16x8x8(&sum[i][j * 2], &sum[i + 1][j * 2], a_values[i], a_values[i + 1], b_values[j]);
      }
    }
  }
}

// matmul_tiled_kernel: c = a @ b for every matrix of a batch.
//   in/out  a (m, k), b (k, n), c (m, n) of T, aligned to T, any strides
//           VectorsA: m is a's unit stride, and every vector of 16 bytes along it is aligned; VectorsB: n of b, alike
//   launch  grid: one block a tile, matrix by matrix; block: Shape::kThreads; static shared memory, at most 48 KB
//   traffic reads a and b n / kN and m / kM times, mostly from L2; writes c once. Compute-bound, so judge it in FLOP/s
//   maths   float32: one chain of fma along k per output, from 0. float64: the same, or by tensor cores (sm_80 on).
//           The order is fixed: the same bits every run. k == 0 writes zeros
// A thread's 8 x 8 float outputs make 64 multiply-adds of 4 vectors read from shared memory; more would not leave room
// for two blocks an SM, which hide each other's barriers. Tiles of later k are on their way to shared memory (cp.async,
// kStages deep) and the next row of a tile on its way to registers, while this one is multiplied. Large shapes have the
// loop twice, so that blocks inside the matrix carry no predicates for its edge.
// E.g. m = n = k = 4096, Large32: 1024 blocks, 264 at a time on 132 SMs, each 256 k tiles of 16.
template <typename S, bool VectorsA, bool VectorsB>
__global__ __launch_bounds__(S::kThreads,
                             S::kMinBlocks) void matmul_tiled_kernel(const __grid_constant__ KernelArgs args) {
  using T = typename S::Type;
  __shared__ __align__(16) T stages[S::kStages * S::kItems];  // each: k rows of a's tile, then k rows of b's

  // Which matrix, and which tile of it.
  const char* a = args.a.data;
  const char* b = args.b.data;
  char* c = args.c.data;
  unsigned index = blockIdx.x;
  if (args.batch_ndim > 0) {
    const unsigned tiles = args.row_tiles * args.column_tiles;
    int64_t matrix = args.first_matrix + index / tiles;
    index %= tiles;
    for (int dim = args.batch_ndim - 1; dim >= 0; --dim) {
      int64_t at = matrix;
      if (dim > 0) {
        matrix /= args.batch_size[dim];
        at -= matrix * args.batch_size[dim];
      }
      a += at * args.a.batch_stride[dim];
      b += at * args.b.batch_stride[dim];
      c += at * args.c.batch_stride[dim];
    }
  }
  const Tile tile = tile_at(index, args.row_tiles, args.column_tiles);
  const int64_t first_row = static_cast<int64_t>(tile.row) * S::kM;
  const int64_t first_column = static_cast<int64_t>(tile.column) * S::kN;
  const int rows_left = static_cast<int>(min(args.m - first_row, static_cast<int64_t>(S::kM)));
  const int columns_left = static_cast<int>(min(args.n - first_column, static_cast<int64_t>(S::kN)));

  // Which outputs are this thread's: rows in runs of kRunM, kGroupM apart, and columns alike. With fma the lowest bit
  // of the lane counts columns and the next ones rows, so that each half of a warp reads whole lines of shared memory.
  constexpr bool kTensor = uses_tensor_cores<T>();
  constexpr int kRunM = kTensor ? 1 : S::kVector, kGroupM = kTensor ? 8 : S::kLanesM * S::kVector;
  constexpr int kGroupN = kTensor ? 8 : S::kLanesN * S::kVector;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int warp_row = warp / S::kWarpsN * S::kWarpM;
  const int warp_column = warp % S::kWarpsN * S::kWarpN;
  const int thread_row = warp_row + (kTensor ? lane / 4 : lane / 2 % S::kLanesM * S::kVector);
  const int thread_column =
      warp_column + (kTensor ? lane % 4 * 2 : (lane % 2 + lane / (2 * S::kLanesM) * 2) * S::kVector);

  T sum[S::kThreadM][S::kThreadN] = {};
  const auto multiply = [&](auto edge) {
    constexpr bool kEdge = decltype(edge)::value;
    TileCopy<T, S::kM, S::kK, S::kThreads, VectorsA> copy_a(args.a, a + first_row * args.a.mn_stride, rows_left,
                                                            args.k_last);
    TileCopy<T, S::kN, S::kK, S::kThreads, VectorsB> copy_b(args.b, b + first_column * args.b.mn_stride, columns_left,
                                                            args.k_last);
    int to_copy = args.k_tiles;  // k tiles that are not on their way yet
    int stage = 0, free_stage = (S::kStages - 1) * S::kItems;
    const auto copy_next = [&] {
      if (to_copy > 0) {
        copy_a.template next<kEdge>(stages + free_stage, to_copy == 1);
        copy_b.template next<kEdge>(stages + free_stage + S::kItemsA, to_copy == 1);
        --to_copy;
      }
      end_of_stage();  // empty at the end, so that the count of stages stays right
    };
    const auto wait_for_tile = [&] {  // it has arrived, for all threads; and all have done with the one before
      wait_for_stages<S::kStages - 2>();
      __syncthreads();
    };
    const auto next_tile = [&] {
      wait_for_tile();
      free_stage = stage;
      stage = stage == (S::kStages - 1) * S::kItems ? 0 : stage + S::kItems;
      return stages + stage;
    };
#pragma unroll
    for (free_stage = 0; free_stage < (S::kStages - 1) * S::kItems; free_stage += S::kItems) copy_next();
    wait_for_tile();

    if constexpr (kTensor) {
      const int a_place = lane % 4 * S::kPitchA + warp_row + lane / 4;
      const int b_place = S::kItemsA + lane % 4 * S::kPitchB + warp_column + lane / 4;
      for (int tile_k = args.k_tiles; tile_k > 0; --tile_k) {
        copy_next();
        multiply_tile_by_tensor_cores<S>(sum, stages + stage + a_place, stages + stage + b_place);
        next_tile();
      }
    } else {
      T a_values[2][S::kThreadM], b_values[2][S::kThreadN];
      load_fragment<T, S::kThreadM, kGroupM>(a_values[0], stages + thread_row);
      load_fragment<T, S::kThreadN, kGroupN>(b_values[0], stages + S::kItemsA + thread_column);
      for (int tile_k = args.k_tiles; tile_k > 0; --tile_k) {
        multiply_tile<S, kGroupM, kGroupN>(sum, a_values, b_values, stages + stage, thread_row,
                                           S::kItemsA + thread_column, copy_next, next_tile);
      }
    }
  };
  if (args.k_tiles == 0) {
    // c is zero
  } else if (S::kIsLarge && rows_left == S::kM && columns_left == S::kN) {
    multiply(std::bool_constant<!S::kIsLarge>{});
  } else {
    multiply(std::true_type{});
  }

  c += (first_row + thread_row) * args.c.row_stride + (first_column + thread_column) * args.c.column_stride;
#pragma unroll
  for (int i = 0; i < S::kThreadM; ++i) {
    const int row = i / kRunM * kGroupM + i % kRunM;
    if (thread_row + row >= rows_left) continue;
    char* const c_row = c + row * args.c.row_stride;
#pragma unroll
    for (int j = 0; j < S::kThreadN; j += S::kVector) {
      const int column = j / S::kVector * kGroupN;
      const int left = columns_left - thread_column - column;
      if (args.c.vector_stores && left >= S::kVector) {
        *reinterpret_cast<int4*>(c_row + column * sizeof(T)) = *reinterpret_cast<const int4*>(&sum[i][j]);
      } else {
#pragma unroll
        for (int v = 0; v < S::kVector; ++v) {
          if (v < left) *reinterpret_cast<T*>(c_row + (column + v) * args.c.column_stride) = sum[i][j + v];
        }
      }
    }
  }
}

// ---- the instances, and which one a product gets ----

/// The kernels of one shape, by [VectorsA][VectorsB], and how fast it is: n blocks of it on one SM take as long as
/// (n + start) * kM * kN / rate multiply-adds do at the SM's peak, for each k. Fitted to an H100.
struct Variant {
  const char* name;
  int m, n, k, threads;
  bool reads_vectors;
  int step_vectors_m, step_vectors_n;  // rows of k that a pass of vector copies takes, for a and for b
  double rate, start;
  Kernel* kernels[2][2];
};

template <typename S, bool VectorsA, bool VectorsB>
Kernel* kernel_of() {
  static Kernel kernel(reinterpret_cast<const void*>(&matmul_tiled_kernel<S, VectorsA, VectorsB>));
  return &kernel;
}

template <typename S, bool Vectors>
Variant variant_of(const char* name, double rate, double start) {
  using CopyA = TileCopy<typename S::Type, S::kM, S::kK, S::kThreads, Vectors>;
  using CopyB = TileCopy<typename S::Type, S::kN, S::kK, S::kThreads, Vectors>;
  return {name,
          S::kM,
          S::kN,
          S::kK,
          S::kThreads,
          Vectors,
          CopyA::kStepK,
          CopyB::kStepK,
          rate,
          start,
          {{kernel_of<S, false, false>(), kernel_of<S, false, Vectors>()},
           {kernel_of<S, Vectors, false>(), kernel_of<S, Vectors, Vectors>()}}};
}

constexpr int kVariants32 = 4, kVariants64 = 2;

const Variant* variants32() {
  static const Variant variants[kVariants32] = {
      variant_of<Large32, true>("128x128x16", 0.777, 0.174), variant_of<Medium32, true>("64x64x8", 0.647, 0.235),
      variant_of<Narrow32, false>("32x64x16", 0.563, 0.386), variant_of<Small32, false>("32x32x16", 0.426, 0.44)};
  return variants;
}

const Variant* variants64() {
  static const Variant variants[kVariants64] = {variant_of<Large64, true>("128x64x8", 0.70, 0.30),
                                                variant_of<Small64, false>("32x32x8", 0.35, 0.50)};
  return variants;
}

int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

int64_t batch_size(const Gemm& gemm) {
  int64_t size = 1;
  for (int i = 0; i < gemm.batch_ndim; ++i) size *= gemm.batch[i].size;
  return size;
}

/// The variant whose busiest SM should finish first.
const Variant& choose(const Gemm& gemm) {
  const bool is_double = gemm.dtype.bits == 64;
  const Variant* const variants = is_double ? variants64() : variants32();
  const int count = is_double ? kVariants64 : kVariants32;
  const Variant* best = &variants[count - 1];
  if (gemm.m <= best->m && gemm.n <= best->n && gemm.batch_ndim == 0) return *best;  // one block: nothing to weigh
  const int64_t matrices = batch_size(gemm);
  const int sms = multiprocessors(current_device("launching a product"));
  double best_time = std::numeric_limits<double>::infinity();
  for (int i = 0; i < count; ++i) {
    const Variant& variant = variants[i];
    const double tiles = static_cast<double>(ceil_div(gemm.m, variant.m)) * ceil_div(gemm.n, variant.n) * matrices;
    const double time = variant.m * variant.n * (std::ceil(tiles / sms) + variant.start) / variant.rate;
    if (time < best_time) {
      best_time = time;
      best = &variant;
    }
  }
  return *best;
}

// ---- the launcher ----

/// c^T = b^T a^T: the kernel stores along rows of c, so a column-major c is computed as its transpose.
void transpose(Gemm& gemm) {
  std::swap(gemm.m, gemm.n);
  std::swap(gemm.a, gemm.b);
  std::swap(gemm.a_strides, gemm.b_strides);
  for (MatrixStrides* strides : {&gemm.a_strides, &gemm.b_strides, &gemm.c_strides})
    std::swap(strides->row, strides->column);
  for (int i = 0; i < gemm.batch_ndim; ++i) std::swap(gemm.batch[i].a_stride, gemm.batch[i].b_stride);
}

/// One array of a product, strides in elements. For c, mn stands for its columns and k for its rows.
struct Operand {
  const void* data;
  int64_t mn_stride, k_stride;
  int64_t batch_strides;  // those of all batch dimensions, or'ed: their common alignment
};

/// Is every 16-byte vector along mn, counted from the start, 16-byte aligned in every matrix of the batch?
bool has_vectors(const Operand& operand, int64_t k, int64_t item) {
  if (operand.mn_stride != 1 || reinterpret_cast<uintptr_t>(operand.data) % 16 != 0) return false;
  return ((k > 1 ? operand.k_stride : 0) | operand.batch_strides) * item % 16 == 0;
}

OperandArgs operand_args(const Operand& operand, int64_t mn, int64_t k, const Variant& variant, bool vectors,
                         int vector_step, int64_t item) {
  OperandArgs args{};
  args.data = static_cast<const char*>(operand.data);
  args.mn_stride = operand.mn_stride * item;
  args.k_stride = operand.k_stride * item;
  args.mn_step = variant.threads / 8 * args.mn_stride;
  args.k_step = (vectors ? vector_step : 8) * args.k_stride;
  args.tile_step = variant.k * args.k_stride;
  args.k_fast = k > 1 && (mn == 1 || std::abs(operand.k_stride) < std::abs(operand.mn_stride));
  return args;
}

/// Launches the matrices of at most kKernelBatchDims batch dimensions, in as many grids as they need.
void launch_batch(KernelArgs& args, int64_t matrices, const Variant& variant, Kernel& kernel, cudaStream_t stream) {
  const int64_t tiles = static_cast<int64_t>(args.row_tiles) * args.column_tiles;
  const int64_t matrices_a_grid = std::numeric_limits<int>::max() / tiles;
  const CUfunction function = ready(kernel, "launching a product", "loading the matmul kernel");
  void* parameters[] = {&args};
  for (args.first_matrix = 0; args.first_matrix < matrices; args.first_matrix += matrices_a_grid) {
    const auto blocks = static_cast<unsigned>(std::min(matrices - args.first_matrix, matrices_a_grid) * tiles);
    check(driver().cuLaunchKernel(function, blocks, 1, 1, variant.threads, 1, 1, 0, stream, parameters, nullptr),
          "launching a product");
  }
}

/// Puts batch dimensions [first, last) of `gemm` into `args`; returns the number of matrices.
int64_t set_batch(KernelArgs& args, const Gemm& gemm, int first, int last, int64_t item) {
  int64_t matrices = 1;
  args.batch_ndim = last - first;
  for (int i = first; i < last; ++i) {
    const BatchDim& dim = gemm.batch[i];
    args.batch_size[i - first] = dim.size;
    args.a.batch_stride[i - first] = dim.a_stride * item;
    args.b.batch_stride[i - first] = dim.b_stride * item;
    args.c.batch_stride[i - first] = dim.c_stride * item;
    matrices *= dim.size;
  }
  return matrices;
}

}  // namespace

namespace tiled {

void launch(const Gemm& asked, cudaStream_t stream) {
  if (asked.m == 0 || asked.n == 0 || batch_size(asked) == 0) return;
  const bool transposed = asked.c_strides.row == 1 && asked.c_strides.column != 1;
  Gemm flipped;
  if (transposed) {
    flipped = asked;
    transpose(flipped);
  }
  const Gemm& gemm = transposed ? flipped : asked;

  const int64_t item = gemm.dtype.bits / 8;
  const Variant& variant = choose(gemm);
  Operand a{gemm.a, gemm.a_strides.row, gemm.a_strides.column, 0};
  Operand b{gemm.b, gemm.b_strides.column, gemm.b_strides.row, 0};
  Operand c{gemm.c, gemm.c_strides.column, gemm.c_strides.row, 0};
  for (int i = 0; i < gemm.batch_ndim; ++i) {
    a.batch_strides |= gemm.batch[i].a_stride;
    b.batch_strides |= gemm.batch[i].b_stride;
    c.batch_strides |= gemm.batch[i].c_stride;
  }
  const bool vectors_a = variant.reads_vectors && has_vectors(a, gemm.k, item);
  const bool vectors_b = variant.reads_vectors && has_vectors(b, gemm.k, item);

  KernelArgs args{};
  args.a = operand_args(a, gemm.m, gemm.k, variant, vectors_a, variant.step_vectors_m, item);
  args.b = operand_args(b, gemm.n, gemm.k, variant, vectors_b, variant.step_vectors_n, item);
  args.c.data = static_cast<char*>(gemm.c);
  args.c.row_stride = gemm.c_strides.row * item;
  args.c.column_stride = gemm.c_strides.column * item;
  args.c.vector_stores = has_vectors(c, gemm.m, item);
  args.m = gemm.m;
  args.n = gemm.n;
  const int64_t k_tiles = ceil_div(gemm.k, variant.k);
  const int64_t row_tiles = ceil_div(gemm.m, variant.m);
  const int64_t column_tiles = ceil_div(gemm.n, variant.n);
  constexpr int64_t kMax = std::numeric_limits<int>::max();
  if (k_tiles > kMax || row_tiles > kMax || row_tiles * column_tiles > kMax) {
    throw ValueError("interop.matmul: m = " + std::to_string(gemm.m) + ", n = " + std::to_string(gemm.n) +
                     ", k = " + std::to_string(gemm.k) + " is more than the tiled kernel can count");
  }
  args.k_tiles = static_cast<int>(k_tiles);
  args.k_last = static_cast<int>(gemm.k - (k_tiles - 1) * variant.k);
  args.row_tiles = static_cast<unsigned>(row_tiles);
  args.column_tiles = static_cast<unsigned>(column_tiles);

  // Batch dimensions beyond what the kernel takes are walked here, one launch or more for each of their matrices.
  Kernel& kernel = *variant.kernels[vectors_a][vectors_b];
  const int walked = std::max(0, gemm.batch_ndim - kKernelBatchDims);
  const int64_t matrices = set_batch(args, gemm, walked, gemm.batch_ndim, item);
  int64_t at[kMaxDims] = {};
  for (;;) {
    launch_batch(args, matrices, variant, kernel, stream);
    int dim = walked - 1;
    for (; dim >= 0; --dim) {
      const BatchDim& step = gemm.batch[dim];
      const int64_t steps = ++at[dim] < step.size ? 1 : 1 - step.size;  // on, or back to the start
      args.a.data += steps * step.a_stride * item;
      args.b.data += steps * step.b_stride * item;
      args.c.data += steps * step.c_stride * item;
      if (steps == 1) break;
      at[dim] = 0;
    }
    if (dim < 0) return;
  }
}

std::string describe(const Gemm& gemm) {
  if (gemm.m == 0 || gemm.n == 0 || batch_size(gemm) == 0) return "nothing to compute";
  return std::string("tiled ") + choose(gemm).name + ", " + (gemm.dtype.bits == 64 ? "float64" : "float32");
}

}  // namespace tiled
}  // namespace interop::cuda
