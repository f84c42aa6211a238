/// float64, complex128 and TF32 products on the tensor cores of sm_80 and later: cp.async, and mma.sync of float64 or
/// TF32.
#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "cuda/matmul/blocks.cuh"
#include "cuda/matmul/finish_four.cuh"
#include "cuda/matmul/mma/wide_kernels.h"
#include "cuda/matmul/rates.h"
#include "cuda/matmul/tf32.cuh"

namespace interop::cuda::mma_wide {
namespace {

using device::Complex;
using tiled::BlockTile;
using tiled::IsComplex;

// ---- the shapes ----

// Rows of a stage are padded, so that the elements that lanes read at a time are in different banks. These are 4
// neighbours in k and 8 in mn of float32, 4 and 4 of float64, and 4 and 2 of complex128.
constexpr int kPad = 32;  // where mn is the fast dimension
template <typename T>
constexpr int pitch_of_k() {  // where k is
  return kTileBytes + 4 * sizeof(T);
}

/// The bytes of a stage that `size` rows (a) or columns (b) take, whichever dimension is the fast one.
template <typename T>
constexpr int operand_bytes(int size) {
  const int item = sizeof(T);
  return std::max(size * pitch_of_k<T>(), kTileBytes / item * (size * item + kPad));
}

/// A warp has kRows times kColumns blocks of 16 x 8 outputs.
template <typename U, int M, int N, int WarpM, int WarpN, int Stages, int MinBlocks>
struct Shape {
  using T = U;
  static constexpr int kM = M, kN = N, kMinBlocks = MinBlocks;
  static constexpr int kThreads = (M / WarpM) * (N / WarpN) * 32;
  static constexpr int kBytesA = operand_bytes<T>(M), kStageBytes = kBytesA + operand_bytes<T>(N);
  static constexpr int kShared = Stages * kStageBytes;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  static constexpr bool kComplex = IsComplex<T>::value;
  static constexpr int kK = kTileBytes / sizeof(T);
  static constexpr int kChunkItems = kChunk / sizeof(T);
  static constexpr int kWarpM = WarpM, kWarpN = WarpN, kWarpsN = N / WarpN;
  static constexpr int kRows = WarpM / 16, kColumns = WarpN / 8, kDepths = kK / 8;
  static constexpr int kStages = Stages;  // k tiles in shared memory
  static_assert(WarpM % 16 == 0 && WarpN % 8 == 0 && kDepths * kColumns % 2 == 0);
#endif
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

/// Reads threadIdx.x anew, so that what is derived from it does not occupy registers through the loop over k.
__device__ __forceinline__ int thread_index() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

// ---- from global to shared memory ----

/// The distances of neighbours in k and in mn in a stage, in bytes.
template <typename S, int Size, bool KFast>
struct Pitches {
  static constexpr int kItem = sizeof(typename S::T);
  static constexpr int kK = KFast ? kItem : Size * kItem + kPad;
  static constexpr int kMN = KFast ? pitch_of_k<typename S::T>() : kItem;
};

/// One thread's copies of one operand. The thread's chunks of a stage are a fixed number of rows apart.
template <typename S, int Size, bool KFast>
class Copies {
 public:
  /// `from` is the tile's first element; `mn_left` of its rows (a) or columns (b) exist.
  __device__ __forceinline__ Copies(const OperandArgs& args, const char* from, int mn_left) : args_(args) {
    const int row = threadIdx.x / kRowChunks, chunk = threadIdx.x % kRowChunks;
    from_ = from + row * args.slow_stride + chunk * S::kChunkItems * args.fast_stride;
    to_ = row * kRowBytes + chunk * kChunk;
    mn_left_ = mn_left;
    whole_ = (S::kComplex || args.vectors) && mn_left >= Size;
  }

  /// Copies the next k tile, with zeros beyond mn and beyond the `k_left` that are left of k.
  __device__ __forceinline__ void next(uint32_t stage, int k_left) {
    if (whole_ && k_left >= S::kK) {
      const char* from = from_;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        tiled::copy_or_zero<16>(stage + to_ + i * kRowStep * kRowBytes, from, kChunk);
        from += args_.pass_bytes;
      }
    } else {
      next_of_edge(stage + to_, k_left);
    }
    from_ += args_.tile_bytes;
  }

 private:
  static constexpr int kCount = Size * kTileBytes / kChunk / S::kThreads;
  static constexpr int kRowChunks = KFast ? kTileBytes / kChunk : Size / S::kChunkItems;
  static constexpr int kRowBytes = KFast ? Pitches<S, Size, true>::kMN : Pitches<S, Size, false>::kK;
  static constexpr int kRowStep = S::kThreads / kRowChunks;
  static_assert(kCount * S::kThreads * kChunk == Size * kTileBytes && kRowStep * kRowChunks == S::kThreads);

  __device__ __forceinline__ void next_of_edge(uint32_t to, int k_left) const {
    constexpr int kItem = sizeof(typename S::T);
    const int thread = thread_index();
    const int fast_left = (KFast ? k_left : mn_left_) - thread % kRowChunks * S::kChunkItems;
    const int slow_left = (KFast ? mn_left_ : k_left) - thread / kRowChunks;
    const int most = min(max(fast_left, 0), S::kChunkItems) * kItem;
    const char* from = from_;
#pragma unroll 1
    for (int i = 0; i < kCount; ++i) {
      const int bytes = i * kRowStep < slow_left ? most : 0;
      if (S::kComplex || args_.vectors) {
        tiled::copy_or_zero<16>(to, from, bytes);
      } else {
        const char* element = from;
#pragma unroll
        for (int j = 0; j < S::kChunkItems; ++j) {
          tiled::copy_or_zero<kItem>(to + j * kItem, element, j * kItem < bytes ? kItem : 0);
          element += args_.fast_stride;
        }
      }
      from += args_.pass_bytes;
      to += kRowStep * kRowBytes;
    }
  }

  const OperandArgs& args_;
  const char* from_;
  uint32_t to_;
  int mn_left_;
  bool whole_;  // all of mn exists, and may be copied in vectors
};

// ---- from shared memory to registers ----

// With t = lane % 4 and g = lane / 4, an instruction takes from a thread k = t, t + 4, ... of rows g and g + 8 of a and
// of column g of b, and adds to rows g and g + 8 of columns 2t and 2t + 1.

template <typename T>
__device__ __forceinline__ T load(uint32_t from) {
  T value;
  if constexpr (IsComplex<T>::value) {
    asm volatile("ld.shared.v2.f64 {%0, %1}, [%2];" : "=d"(value.re), "=d"(value.im) : "r"(from) : "memory");
  } else if constexpr (std::is_same_v<T, float>) {
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
  } else {
    asm volatile("ld.shared.f64 %0, [%1];" : "=d"(value) : "r"(from) : "memory");
  }
  return value;
}

/// Where a warp's part of an operand is in a stage, as this lane reads it.
template <typename S, int Size, bool KFast>
class Fragments {
 public:
  /// `first` is where the warp's part of the tile begins, in mn.
  __device__ __forceinline__ explicit Fragments(int first) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    place_ = (first + g) * Pitch::kMN + t * Pitch::kK;
  }

  /// The element `eight` eights of mn and `four` fours of k further.
  __device__ __forceinline__ typename S::T load(uint32_t stage, int eight, int four) const {
    return mma_wide::load<typename S::T>(stage + place_ + eight * 8 * Pitch::kMN + four * 4 * Pitch::kK);
  }

 private:
  using Pitch = Pitches<S, Size, KFast>;
  uint32_t place_;
};

/// d += a b for 16 rows, 8 columns and 8 k: a is [k four][row eight], b [k four], d [row eight][column].
__device__ __forceinline__ void multiply_block(double (&d)[2][2], const double (&a)[2][2], const double (&b)[2]) {
#if __CUDA_ARCH__ >= 900
  asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+d"(d[0][0]), "+d"(d[0][1]), "+d"(d[1][0]), "+d"(d[1][1])
      : "d"(a[0][0]), "d"(a[0][1]), "d"(a[1][0]), "d"(a[1][1]), "d"(b[0]), "d"(b[1]));
#else
#pragma unroll
  for (int k = 0; k < 2; ++k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
          : "+d"(d[half][0]), "+d"(d[half][1])
          : "d"(a[k][half]), "d"(b[k]));
    }
  }
#endif
}

__device__ __forceinline__ void multiply_block(float (&d)[2][2], const uint32_t (&a)[2][2], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[1][0]), "+f"(d[1][1])
      : "r"(a[0][0]), "r"(a[0][1]), "r"(a[1][0]), "r"(a[1][1]), "r"(b[0]), "r"(b[1]));
}

/// A real element as the instruction takes it.
__device__ __forceinline__ double factor(double x) { return x; }
__device__ __forceinline__ uint32_t factor(float x) { return device::rounded_to_tf32(x); }

__device__ __forceinline__ double with_sign_turned(double x, unsigned bit) {
  return __hiloint2double(__double2hiint(x) ^ bit, __double2loint(x));
}

/// What a warp multiplies at a time: its rows by 8 columns, for 8 k. Parts are the real and the imaginary part of a
/// complex128.
template <typename S>
struct Step {
  static constexpr bool kTf32 = std::is_same_v<typename S::T, float>;
  static constexpr int kParts = S::kComplex ? 2 : 1;
  using Factor = std::conditional_t<kTf32, uint32_t, double>;
  using Sums = std::conditional_t<kTf32, float, double>[S::kRows][S::kColumns][kParts][2][2];

  struct A {
    Factor values[S::kRows][kParts][2][2];
  };
  struct B {
    Factor values[kParts][2];
  };

  template <typename From>
  static __device__ __forceinline__ void load_a(A& a, const From& from, uint32_t stage, int row, int depth,
                                                unsigned conjugates) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto value = from.load(stage, 2 * row + half, 2 * depth + k);
        if constexpr (S::kComplex) {
          a.values[row][0][k][half] = value.re;
          a.values[row][1][k][half] = with_sign_turned(value.im, conjugates);
        } else {
          a.values[row][0][k][half] = factor(value);
        }
      }
    }
  }

  template <typename From>
  static __device__ __forceinline__ void load_b(B& b, const From& from, uint32_t stage, int column, int depth) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const auto value = from.load(stage, column, 2 * depth + k);
      if constexpr (S::kComplex) {
        b.values[0][k] = value.re;
        b.values[1][k] = value.im;
      } else {
        b.values[0][k] = factor(value);
      }
    }
  }

  static __device__ __forceinline__ void multiply(Sums& sums, const A& a, const B& b, int row, int column) {
    auto& sum = sums[row][column];
    multiply_block(sum[0], a.values[row][0], b.values[0]);
    if constexpr (S::kComplex) {
      constexpr unsigned kSign = 0x80000000u;
      const double negative[] = {with_sign_turned(b.values[1][0], kSign), with_sign_turned(b.values[1][1], kSign)};
      multiply_block(sum[1], a.values[row][0], b.values[1]);
      multiply_block(sum[0], a.values[row][1], negative);
      multiply_block(sum[1], a.values[row][1], b.values[0]);
    }
  }
};

// ---- the epilogue ----

/// One of a lane's outputs of a block: the lane has rows g and g + 8 of columns 2t and 2t + 1.
template <typename S>
__device__ __forceinline__ typename S::T output(const typename Step<S>::Sums& sums, int i, int j, int row, int column) {
  if constexpr (S::kComplex) {
    return {sums[i][j][0][row][column], sums[i][j][1][row][column]};
  } else {
    return sums[i][j][0][row][column];
  }
}

/// Where an output is in an array of the result's shape; null for an absent array.
__device__ __forceinline__ char* place_in(const OutputArgs& array, const BlockTile& tile, int row, int column) {
  return tiled::place_in(array, tile.batch, row, column).data;
}

/// Stores the sums unchanged; a lane's two columns are a vector where they are adjacent and aligned. `row` and `column`
/// are the lane's first.
template <typename S>
__device__ __forceinline__ void store(const KernelArgs& args, const typename Step<S>::Sums& sums, const BlockTile& tile,
                                      int row, int column) {
  using T = typename S::T;
  using Vector = std::conditional_t<std::is_same_v<T, float>, float2, double2>;
  char* const first = place_in(args.c, tile, row, column);
#pragma unroll
  for (int i = 0; i < 2 * S::kRows; ++i) {
    if (row + i * 8 >= args.m) continue;
    char* const c = first + i * 8 * args.c.row_stride;
#pragma unroll
    for (int j = 0; j < S::kColumns; ++j) {
      const int left = args.n - column - j * 8;
      char* const to = c + j * 8 * args.c.column_stride;
      alignas(Vector) const T values[] = {output<S>(sums, i / 2, j, i % 2, 0), output<S>(sums, i / 2, j, i % 2, 1)};
      if (args.finish.vector_stores && left >= 2) {
#pragma unroll
        for (int v = 0; v < static_cast<int>(sizeof(values) / sizeof(Vector)); ++v) {
          reinterpret_cast<Vector*>(to)[v] = reinterpret_cast<const Vector*>(values)[v];
        }
      } else {
        if (left >= 1) *reinterpret_cast<T*>(to) = values[0];
        if (left >= 2) *reinterpret_cast<T*>(to + args.c.column_stride) = values[1];
      }
    }
  }
}

/// Finishes and stores sums that have an epilogue, one by one. They go through local memory: registers cannot be
/// indexed, and unrolled this would be a lot of code.
template <typename S>
__device__ __forceinline__ void finish(const KernelArgs& args, const typename Step<S>::Sums& sums,
                                       const BlockTile& tile, int first_row, int first_column) {
  using T = typename S::T;
  T values[S::kRows * S::kColumns * 4];
#pragma unroll
  for (int i = 0; i < S::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < S::kColumns; ++j) {
#pragma unroll
      for (int v = 0; v < 4; ++v) values[(i * S::kColumns + j) * 4 + v] = output<S>(sums, i, j, v / 2, v % 2);
    }
  }
#pragma unroll 1
  for (int index = 0; index < S::kRows * S::kColumns * 4; ++index) {
    const int v = index % 4, j = index / 4 % S::kColumns, i = index / 4 / S::kColumns;
    const int row = first_row + i * 16 + v / 2 * 8, column = first_column + j * 8 + v % 2;
    if (row >= args.m || column >= args.n) continue;
    const FinishArgs& how = args.finish;
    tiled::finish_one<T>(how, values[index],
                         {place_in(args.c, tile, row, column), place_in(how.addend, tile, row, column),
                          place_in(how.bias, tile, row, column), place_in(how.aux, tile, row, column)});
  }
}

__device__ __forceinline__ const char* first_element(const OperandArgs& args, const BlockTile& tile, int mn) {
  const char* data = args.data + mn * (args.k_fast ? args.slow_stride : args.fast_stride);
#pragma unroll
  for (int i = 0; i < kKernelBatchDims; ++i) data += tile.batch[i] * args.batch_stride[i];
  return data;
}

#endif  // __CUDA_ARCH__ >= 800

// mma_wide_kernel: c = a @ b for every matrix of the batch.
//   in      a (m, k), b (k, n) T, any strides
//   out     c (m, n) T, any strides, finished as `FinishArgs` says
//   launch  one block of S::kThreads per tile of c, S::kShared dynamic shared memory
//   traffic reads a and b n / kN and m / kM times, mostly from L2; writes c once. Compute-bound, so judge it in FLOP/s
//   maths   sums of T in one fixed order, 8 k at a time; complex128 takes four real products; float32 is read as TF32
// Shared memory holds a ring of kStages k tiles: kStages - 1 are in flight while one is multiplied, and the columns of
// that one's next step are in flight to registers. A float64 instruction holds up its warp for 32 cycles, and a
// register that it reads for some more: 16 warps per SM hide that, 8 do not. E.g. m = n = k = 4096 of float64: 2048
// blocks of 256 threads, two per SM, each 256 k tiles of 16.
template <typename S, bool KFastA, bool KFastB>
__global__ void __launch_bounds__(S::kThreads, S::kMinBlocks) mma_wide_kernel(const __grid_constant__ KernelArgs args) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) char shared[];
  using Work = Step<S>;
  constexpr int kSteps = S::kDepths * S::kColumns;
  constexpr int kLastStage = (S::kStages - 1) * S::kStageBytes;

  const auto stages = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const BlockTile first = tiled::tile_of_block<S::kM, S::kN>(args);
  const int warp = threadIdx.x / 32;
  const int warp_row = warp / S::kWarpsN * S::kWarpM, warp_column = warp % S::kWarpsN * S::kWarpN;
  Copies<S, S::kM, KFastA> copies_a(args.a, first_element(args.a, first, first.row), args.m - first.row);
  Copies<S, S::kN, KFastB> copies_b(args.b, first_element(args.b, first, first.column), args.n - first.column);
  const Fragments<S, S::kM, KFastA> rows(warp_row);
  const Fragments<S, S::kN, KFastB> columns(warp_column);
  typename Work::Sums sums = {};

  uint32_t stage = stages;
  const auto copy = [&](uint32_t to, int k_left) {
    if (k_left > 0) {
      copies_a.next(to, k_left);
      copies_b.next(to + S::kBytesA, k_left);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");  // a group is counted even if it is empty, at the end
  };
  const auto wait_for_tile = [&] {  // the tile has arrived for all threads, and all have finished the one before
    asm volatile("cp.async.wait_group %0;" ::"n"(S::kStages - 2) : "memory");
    __syncthreads();
  };

  typename Work::A a;
  typename Work::B b[2];
#pragma unroll 1
  for (int i = 0; i < S::kStages - 1; ++i) copy(stages + i * S::kStageBytes, args.k - i * S::kK);
  wait_for_tile();
#pragma unroll
  for (int i = 0; i < S::kRows; ++i) Work::load_a(a, rows, stage, i, 0, args.conjugates_a);
  Work::load_b(b[0], columns, stage + S::kBytesA, 0, 0);

#pragma unroll 1
  for (int k_left = args.k; k_left > 0; k_left -= S::kK) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int next = (step + 1) % kSteps, next_depth = next / S::kColumns, next_column = next % S::kColumns;
      if (next == 0) {
        wait_for_tile();
        stage = stage == stages + kLastStage ? stages : stage + S::kStageBytes;
      }
      Work::load_b(b[next % 2], columns, stage + S::kBytesA, next_column, next_depth);
      if (step == 0) {
        copy(stage == stages ? stages + kLastStage : stage - S::kStageBytes, k_left - (S::kStages - 1) * S::kK);
      }
#pragma unroll
      for (int i = 0; i < S::kRows; ++i) {
        Work::multiply(sums, a, b[step % 2], i, step % S::kColumns);
        if (next_column == 0) Work::load_a(a, rows, stage, i, next_depth, args.conjugates_a);
      }
    }
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");

  const BlockTile tile = tiled::tile_of_block<S::kM, S::kN>(args);
  const int thread = thread_index(), lane = thread % 32;
  const int row = tile.row + thread / 32 / S::kWarpsN * S::kWarpM + lane / 4;
  const int column = tile.column + thread / 32 % S::kWarpsN * S::kWarpN + lane % 4 * 2;
  if (args.finish.direct) {
    store<S>(args, sums, tile, row, column);
  } else {
    finish<S>(args, sums, tile, row, column);
  }
#endif
}

// ---- the variants ----

template <typename S, bool KFastA, bool KFastB>
Kernel* kernel_of() {
  static Kernel kernel(reinterpret_cast<const void*>(&mma_wide_kernel<S, KFastA, KFastB>), S::kShared);
  return &kernel;
}

template <typename S>
Variant variant_of(const char* name, const rates::Tile& speed) {
  return {name,
          S::kM,
          S::kN,
          S::kThreads,
          S::kShared,
          speed,
          {{kernel_of<S, false, false>(), kernel_of<S, false, true>()},
           {kernel_of<S, true, false>(), kernel_of<S, true, true>()}}};
}

}  // namespace

Variants variants(DLDataType dtype) {
  using Wide = Complex<double>;
  // clang-format off
  //                     T   M    N  warp  stages  blocks an SM
  static const Variant real[] = {
      variant_of<Shape<double, 64, 128,  32, 32,  3,  2>>("64x128x16", rates::kMmaFloat64_64x128),
      variant_of<Shape<double, 64,  64,  16, 32,  4,  2>>("64x64x16", rates::kMmaFloat64_64x64),
      variant_of<Shape<double, 32,  32,  16, 16,  4,  4>>("32x32x16", rates::kMmaFloat64_32x32),
  };
  static const Variant complex[] = {
      variant_of<Shape<Wide, 64, 64,  16, 32,  3,  2>>("64x64x8", rates::kMmaComplex128_64x64),
      variant_of<Shape<Wide, 32, 32,  16, 16,  3,  4>>("32x32x8", rates::kMmaComplex128_32x32),
  };
  // clang-format on
  static const Variant tf32[] = {
      variant_of<Shape<float, 128, 128, 64, 32, 2, 2>>("128x128x32", rates::kMmaTf32_128x128),
      variant_of<Shape<float, 64, 64, 32, 32, 3, 4>>("64x64x32", rates::kMmaTf32_64x64),
  };
  if (dtype == kFloat32) return {tf32, static_cast<int>(std::size(tf32))};
  if (dtype.code == kDLComplex) return {complex, static_cast<int>(std::size(complex))};
  return {real, static_cast<int>(std::size(real))};
}

}  // namespace interop::cuda::mma_wide
