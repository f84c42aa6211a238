// The tiled matrix product: one kernel for every arithmetic, any strides and any batch. Each file beside it
// instantiates the shapes of one arithmetic.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>
#include <utility>

#include "cuda/elementwise/functors.cuh"
#include "cuda/matmul/finish.cuh"
#include "cuda/matmul/tiled/tiled.h"

namespace interop::cuda::tiled {
namespace {

// ---- the shapes ----

/// A block computes kM x kN outputs, a k tile of kK at a time, with kStages pipeline stages in shared memory. Its warps
/// form a grid; each has kWarpM x kWarpN outputs, of which each thread has kThreadM x kThreadN. Elements are of type
/// Source in memory, and are added up in T.
template <typename T, int M, int N, int K, int Stages, int WarpM, int WarpN, int ThreadM, int ThreadN, int MinBlocks,
          typename Memory = T>
struct Shape {
  using Type = T;
  using Source = Memory;
  static constexpr bool kConverts = !std::is_same<T, Source>::value;
  static constexpr int kM = M, kN = N, kK = K, kStages = Stages;
  static constexpr int kWarpM = WarpM, kWarpN = WarpN, kThreadM = ThreadM, kThreadN = ThreadN;
  static constexpr int kVector = 16 / sizeof(T);
  static constexpr int kLanesM = WarpM / ThreadM, kLanesN = WarpN / ThreadN;
  static constexpr int kWarpsN = N / WarpN;
  static constexpr int kThreads = (M / WarpM) * kWarpsN * 32;
  // A row of shared memory is 4 elements longer than the tile: a warp that writes 8 k times 4 mn of floats then hits
  // every bank once.
  static constexpr int kPitchA = M + 4, kPitchB = N + 4;
  static constexpr int kItemsA = K * kPitchA, kItems = kItemsA + K * kPitchB;  // of one stage
  // On sm_75 shared memory holds one block an SM, and copies need registers that cp.async does not.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  static constexpr int kMinBlocks = 1;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  // With 128 registers, the kernel of the integers spills.
  static constexpr int kMinBlocks = std::is_same<T, uint32_t>::value && M * N == 128 * 128 ? 1 : MinBlocks;
#else
  static constexpr int kMinBlocks = MinBlocks;
#endif
  static constexpr bool kIsLarge = M * N > 64 * 64;  // has a second loop, for blocks inside the matrix
  static_assert(kLanesM * kLanesN == 32 && kLanesN % 2 == 0);
  static_assert(ThreadM % kVector == 0 && ThreadN % kVector == 0 && K % 8 == 0);
};

// ---- arithmetic ----

/// Flips the sign of the imaginary part if `bit` is the sign bit, and leaves it if `bit` is 0.
__device__ __forceinline__ void conjugate(Complex<float>& x, unsigned bit) {
  x.im = __uint_as_float(__float_as_uint(x.im) ^ bit);
}
__device__ __forceinline__ void conjugate(Complex<double>& x, unsigned bit) {
  x.im = __hiloint2double(__double2hiint(x.im) ^ bit, __double2loint(x.im));
}

// ---- copies from global to shared memory ----

/// Copies `bytes` (0 to Bytes) and writes zeros for the rest. The copy is asynchronous from sm_80 on, and bypasses L1
/// if it can.
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

/// Waits until at most `Pending` of this thread's latest stages are still in flight.
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
/// are not copied: the garbage in their place reaches no output that is stored. Beyond k, zeros are written.
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

  __device__ __forceinline__ void arrive() {}  // the copies arrive by themselves

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

/// Copies the tiles of one input whose elements are widened on the way, so that they pass through registers. `next`
/// reads a k tile, and `arrive` writes it to the place that `next` was given. Elements are copied one by one; elements
/// and edges are as in `TileCopy`.
template <typename T, typename Source, int MN, int K, int Threads>
class WideningCopy {
 public:
  static constexpr int kPitch = MN + 4;
  static constexpr int kStepK = 8, kStepMN = Threads / 8;
  static constexpr int kCountK = K / kStepK, kCountMN = MN / kStepMN;
  static_assert(kCountK * kStepK == K && kCountMN * kStepMN == MN);

  __device__ __forceinline__ WideningCopy(const OperandArgs& args, const char* tile, int mn_left, int k_last)
      : args_(args) {
    const int thread = threadIdx.x;
    const int mn = args.k_fast ? thread / 8 : thread % kStepMN;
    const int k = args.k_fast ? thread % 8 : thread / kStepMN;
    from_ = tile + mn * args.mn_stride + k * args.k_stride;
    place_ = k * kPitch + mn;
    k_valid_ = k_last - k;
    mn_valid_ = mn_left - mn;
  }

  template <bool Edge>
  __device__ __forceinline__ void next(T* to, bool is_last) {
    to_ = to + place_;
#pragma unroll
    for (int j = 0; j < kCountK; ++j) {
      const bool in_k = !is_last || j * kStepK < k_valid_;
      const char* from = from_ + j * args_.k_step;
#pragma unroll
      for (int i = 0; i < kCountMN; ++i) {
        const bool exists = in_k && (!Edge || i * kStepMN < mn_valid_);
        values_[j][i] = exists ? *reinterpret_cast<const Source*>(from) : Source{};
        from += args_.mn_step;
      }
    }
    from_ += args_.tile_step;
  }

  __device__ __forceinline__ void arrive() {
#pragma unroll
    for (int j = 0; j < kCountK; ++j) {
#pragma unroll
      for (int i = 0; i < kCountMN; ++i) {
        to_[j * kStepK * kPitch + i * kStepMN] = widen(values_[j][i], args_.format, T{});
      }
    }
  }

 private:
  const OperandArgs& args_;
  const char* from_;
  T* to_;
  int place_;
  int k_valid_, mn_valid_;  // how many of this thread's rows of the last k tile, and of its elements of each, exist
  Source values_[kCountK][kCountMN];
};

/// The copy of a kernel's input, by the type of its elements.
template <typename S, int MN, bool Vectors, bool Converts = S::kConverts>
struct CopyOf {
  using Type = TileCopy<typename S::Type, MN, S::kK, S::kThreads, Vectors>;
};
template <typename S, int MN, bool Vectors>
struct CopyOf<S, MN, Vectors, true> {
  static_assert(!Vectors, "elements that are widened are read one by one");
  using Type = WideningCopy<typename S::Type, typename S::Source, MN, S::kK, S::kThreads>;
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

/// Loads a thread's share of a tile's row: Count values in vectors of 16 bytes, Step apart.
template <typename T, int Count, int Step>
__device__ __forceinline__ void load_fragment(T (&to)[Count], const T* from) {
  constexpr int kVector = 16 / sizeof(T);
#pragma unroll
  for (int group = 0; group < Count / kVector; ++group) {
    *reinterpret_cast<int4*>(&to[group * kVector]) = *reinterpret_cast<const int4*>(from + group * Step);
  }
}

/// sum += a @ b for one tile in shared memory, by multiply_add. The tile's first row is in `a_values[0]` and
/// `b_values[0]` already. While a row is multiplied, the next one is read; for the last row that is the first one of
/// the next tile, whose place `next_tile()` returns.
template <typename S, int GroupM, int GroupN, typename T, typename AfterFirst, typename NextTile>
__device__ __forceinline__ void multiply_tile(unsigned conjugates_a, T (&sum)[S::kThreadM][S::kThreadN],
                                              T (&a_values)[2][S::kThreadM], T (&b_values)[2][S::kThreadN],
                                              const T* tile, int a_place, int b_place, AfterFirst after_first,
                                              NextTile next_tile) {
#pragma unroll
  for (int k = 0; k < S::kK; ++k) {
    if (k == S::kK - 1) tile = next_tile();
    load_fragment<T, S::kThreadM, GroupM>(a_values[(k + 1) % 2], tile + (k + 1) % S::kK * S::kPitchA + a_place);
    load_fragment<T, S::kThreadN, GroupN>(b_values[(k + 1) % 2], tile + (k + 1) % S::kK * S::kPitchB + b_place);
    if constexpr (IsComplex<T>::value) {
#pragma unroll
      for (int i = 0; i < S::kThreadM; ++i) conjugate(a_values[k % 2][i], conjugates_a);
    }
    if (k == 0) after_first();
    // The order decides how ptxas assigns registers, and an fma that reads two registers of one bank takes half a cycle
    // more. In this order (nvcc 13.0, sm_90a) 3 in 10 do. In rising order 6 to 8 do, which costs 1 to 8 % of the time.
#pragma unroll
    for (int step = 0; step < S::kThreadN; ++step) {
      const int j = S::kThreadN - 1 - step;
#pragma unroll
      for (int back = 0; back < S::kThreadM; ++back) {
        const int i = step % 2 ? back : S::kThreadM - 1 - back;
        sum[i][j] = multiply_add(a_values[k % 2][i], b_values[k % 2][j], sum[i][j]);
      }
    }
  }
}

// ---- the epilogue ----

/// Where a thread's first output is in an array of the result's shape; null for an absent array.
__device__ __forceinline__ char* place_in(const KernelArgs& args, const OutputArgs& array, int64_t row,
                                          int64_t column) {
  if (!array.data) return nullptr;
  const int64_t matrix = args.first_matrix + blockIdx.x / (args.row_tiles * args.column_tiles);
  return array.data + matrix_offset(matrix, args.batch_ndim, args.batch_size, array.batch_stride) +
         row * array.row_stride + column * array.column_stride;
}

/// A thread's first output, and the number of rows and columns of the matrix from it on.
struct Region {
  int64_t row, column;
  int rows, columns;
};

/// Finishes and stores sums that have an epilogue, one by one. They are put in local memory first: a loop over
/// registers would unroll this code for each of them.
template <typename T, int ThreadM, int ThreadN, int Run, int GroupM, int GroupN>
__device__ __forceinline__ void finish(const KernelArgs& args, const T (&sum)[ThreadM][ThreadN], char* c,
                                       const Region& region) {
  const FinishArgs& how = args.finish;
  T values[ThreadM * ThreadN];
#pragma unroll
  for (int i = 0; i < ThreadM; ++i) {
#pragma unroll
    for (int j = 0; j < ThreadN; ++j) values[i * ThreadN + j] = sum[i][j];
  }
  const char* const addend = place_in(args, how.addend, region.row, region.column);
  const char* const bias = place_in(args, how.bias, region.row, region.column);
  char* const aux = place_in(args, how.aux, region.row, region.column);
#pragma unroll 1
  for (int index = 0; index < ThreadM * ThreadN; ++index) {
    const int i = index / ThreadN, j = index % ThreadN;
    const int row = i / Run * GroupM + i % Run, column = j / Run * GroupN + j % Run;
    if (row >= region.rows || column >= region.columns) continue;
    const auto step = [row, column](const OutputArgs& array) {
      return row * array.row_stride + column * array.column_stride;
    };
    finish_one<T>(how, values[index],
                  {c + step(args.c), addend ? addend + step(how.addend) : nullptr,
                   bias ? bias + step(how.bias) : nullptr, aux ? aux + step(how.aux) : nullptr});
  }
}

// matmul_tiled_kernel: c = a @ b for every matrix of a batch, finished as `FinishArgs` says.
//   in/out  a (m, k), b (k, n) of Source, c (m, n) of T or of the dtype that `finish` stores; elements are aligned; any
//           strides. VectorsA: m is a's unit stride, and every vector of 16 bytes along it is aligned; VectorsB: the
//           same for n and b
//   launch  grid: one block a tile, matrix by matrix; block: Shape::kThreads; static shared memory, at most 48 KB
//   traffic reads a and b n / kN and m / kM times, mostly from L2; writes c once. Compute-bound, so judge it in FLOP/s
//   maths   one chain of multiply_add along k per output, from 0. Integers wrap. The order is fixed, so every run gives
//           the same bits. k == 0: the sum is zero
// A thread's 8 x 8 float outputs take 64 multiply-adds for 4 vectors read from shared memory. More outputs would leave
// no room for two blocks per SM, which hide each other's barriers. While a row of a tile is multiplied, the next row is
// in flight to registers, and later k tiles are in flight to shared memory (cp.async, kStages deep). Large shapes have
// the loop twice, so that blocks inside the matrix carry no predicates for its edge.
// E.g. m = n = k = 4096, Large32: 1024 blocks, 264 at a time on 132 SMs, each 256 k tiles of 16.
template <typename S, bool VectorsA, bool VectorsB>
__global__ __launch_bounds__(S::kThreads,
                             S::kMinBlocks) void matmul_tiled_kernel(const __grid_constant__ KernelArgs args) {
  using T = typename S::Type;
  __shared__ __align__(16) T stages[S::kStages * S::kItems];  // each: k rows of a's tile, then k rows of b's

  // Which matrix, and which tile of it.
  const char* a = args.a.data;
  const char* b = args.b.data;
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
    }
  }
  const Tile tile = tile_at(index, args.row_tiles, args.column_tiles);
  const int64_t first_row = static_cast<int64_t>(tile.row) * S::kM;
  const int64_t first_column = static_cast<int64_t>(tile.column) * S::kN;
  const int rows_left = static_cast<int>(min(args.m - first_row, static_cast<int64_t>(S::kM)));
  const int columns_left = static_cast<int>(min(args.n - first_column, static_cast<int64_t>(S::kN)));

  // This thread's outputs: rows in runs of kRun, kGroupM apart, and columns likewise. The lowest bit of the lane counts
  // columns and the next ones count rows, so that each half of a warp reads whole lines of shared memory.
  constexpr int kRun = S::kVector, kGroupM = S::kLanesM * kRun, kGroupN = S::kLanesN * kRun;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int warp_row = warp / S::kWarpsN * S::kWarpM;
  const int warp_column = warp % S::kWarpsN * S::kWarpN;
  const int thread_row = warp_row + lane / 2 % S::kLanesM * kRun;
  const int thread_column = warp_column + (lane % 2 + lane / (2 * S::kLanesM) * 2) * kRun;

  T sum[S::kThreadM][S::kThreadN] = {};
  const auto multiply = [&](auto edge) {
    constexpr bool kEdge = decltype(edge)::value;
    typename CopyOf<S, S::kM, VectorsA>::Type copy_a(args.a, a + first_row * args.a.mn_stride, rows_left, args.k_last);
    typename CopyOf<S, S::kN, VectorsB>::Type copy_b(args.b, b + first_column * args.b.mn_stride, columns_left,
                                                     args.k_last);
    int to_copy = args.k_tiles;  // k tiles that are not in flight yet
    int stage = 0, free_stage = (S::kStages - 1) * S::kItems;
    bool copying = false;  // did the last copy_next start a copy, which `arrive` must finish?
    const auto copy_next = [&] {
      copying = to_copy > 0;
      if (copying) {
        copy_a.template next<kEdge>(stages + free_stage, to_copy == 1);
        copy_b.template next<kEdge>(stages + free_stage + S::kItemsA, to_copy == 1);
        --to_copy;
      }
      end_of_stage();  // a stage is counted even if it is empty, at the end
    };
    const auto arrive = [&] {
      if (S::kConverts && copying) {
        copy_a.arrive();
        copy_b.arrive();
      }
    };
    const auto wait_for_tile = [&] {  // the tile has arrived for all threads, and all have finished the one before
      wait_for_stages<S::kStages - 2>();
      __syncthreads();
    };
    const auto next_tile = [&] {
      arrive();
      wait_for_tile();
      free_stage = stage;
      stage = stage == (S::kStages - 1) * S::kItems ? 0 : stage + S::kItems;
      return stages + stage;
    };
#pragma unroll
    for (free_stage = 0; free_stage < (S::kStages - 1) * S::kItems; free_stage += S::kItems) {
      copy_next();
      arrive();
    }
    wait_for_tile();

    T a_values[2][S::kThreadM], b_values[2][S::kThreadN];
    load_fragment<T, S::kThreadM, kGroupM>(a_values[0], stages + thread_row);
    load_fragment<T, S::kThreadN, kGroupN>(b_values[0], stages + S::kItemsA + thread_column);
    for (int tile_k = args.k_tiles; tile_k > 0; --tile_k) {
      multiply_tile<S, kGroupM, kGroupN>(args.conjugates_a, sum, a_values, b_values, stages + stage, thread_row,
                                         S::kItemsA + thread_column, copy_next, next_tile);
    }
  };
  if (args.k_tiles == 0) {
    // the sums stay zero
  } else if (S::kIsLarge && rows_left == S::kM && columns_left == S::kN) {
    multiply(std::bool_constant<!S::kIsLarge>{});
  } else {
    multiply(std::true_type{});
  }

  // Computed only now: during the loop it would occupy two registers.
  char* const c = place_in(args, args.c, first_row + thread_row, first_column + thread_column);
  if (!args.finish.direct) {
    const Region region{first_row + thread_row, first_column + thread_column, rows_left - thread_row,
                        columns_left - thread_column};
    finish<T, S::kThreadM, S::kThreadN, kRun, kGroupM, kGroupN>(args, sum, c, region);
    return;
  }
#pragma unroll
  for (int i = 0; i < S::kThreadM; ++i) {
    const int row = i / kRun * kGroupM + i % kRun;
    if (thread_row + row >= rows_left) continue;
    char* const c_row = c + row * args.c.row_stride;
#pragma unroll
    for (int j = 0; j < S::kThreadN; j += S::kVector) {
      const int column = j / S::kVector * kGroupN;
      const int left = columns_left - thread_column - column;
      if (args.finish.vector_stores && left >= S::kVector) {
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

// ---- instances ----

template <typename S, bool VectorsA, bool VectorsB>
Kernel* kernel_of() {
  static Kernel kernel(reinterpret_cast<const void*>(&matmul_tiled_kernel<S, VectorsA, VectorsB>));
  return &kernel;
}

template <typename S, bool Vectors>
Variant variant_of(const char* name, const rates::Tile& speed) {
  using VectorCopyA = TileCopy<typename S::Type, S::kM, S::kK, S::kThreads, Vectors>;
  using VectorCopyB = TileCopy<typename S::Type, S::kN, S::kK, S::kThreads, Vectors>;
  return {name,
          S::kM,
          S::kN,
          S::kK,
          S::kThreads,
          Vectors,
          VectorCopyA::kStepK,
          VectorCopyB::kStepK,
          speed,
          {{kernel_of<S, false, false>(), kernel_of<S, false, Vectors>()},
           {kernel_of<S, Vectors, false>(), kernel_of<S, Vectors, Vectors>()}}};
}

}  // namespace
}  // namespace interop::cuda::tiled
