/// Products of few rows: warps that share k among them read the larger operand once, in vectors.
#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "cuda/matmul/skinny/skinny.cuh"

namespace interop::cuda::skinny {
namespace {

// ---- the shapes ----

/// A warp adds up kRows x kColumns outputs. A step is 4 vectors of k, of which lane 4 g + t reads the one at
/// k = t * kVector. Of b, it reads rows g + 8 i of b^T along k if KFast, and otherwise rows k of b along n. Of a, it
/// reads row g (and row g + 8). The tensor cores take the elements like that, up to the order of k and of n; for
/// float32, a's vectors go through shared memory.
template <typename E, int M, bool KFast>
struct Shape {
  using Element = E;
  using Sum = std::conditional_t<std::is_same<E, double>::value, double, float>;
  static constexpr bool kTensor = !std::is_same<E, float>::value;
  static constexpr bool kKFast = KFast;
  static constexpr int kRows = M;
  static constexpr int kVector = 16 / sizeof(E);
  static constexpr int kBlocksM = (M + 7) / 8;  // of 8 rows
  static constexpr bool k16Bits = sizeof(E) == 2;
  // Vectors of b in a step. 128 bytes along k of few columns are read at once: with 64, the bandwidth would be lower.
  static constexpr int kLoads = !kKFast ? kVector : k16Bits ? 2 : 2 * kBlocksM;
  static constexpr int kColumns = KFast ? 8 * kLoads : 8 * kVector;
  static constexpr int kColumnsLog = kColumns == 16 ? 4 : kColumns == 32 ? 5 : 6;
  static constexpr int kStepK = 4 * kVector;
  static constexpr int kSteps = kLoads < 4 ? 2 : 1;  // of a stage: at least 4 vectors of b are in flight at once
  static constexpr int kStageK = kSteps * kStepK;
  static constexpr int kWarpSums = M * kColumns;
  static constexpr int kWarps =
      KFast && (M <= 8 || k16Bits) ? 8 : std::min<int>(16, 32 * 1024 / (kWarpSums * static_cast<int>(sizeof(Sum))));
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kMinBlocks = KFast ? 512 / kThreads : 1;
  static constexpr int kWarpsLog = kWarps == 8 ? 3 : 4;
  static constexpr int kExchangeBytes = kTensor ? 0 : kSteps * M * 4 * 16;  // of a warp: a's vectors of one stage
  static constexpr int kShared = kWarps * std::max<int>(kWarpSums * sizeof(Sum), kExchangeBytes);
  static_assert(kWarps == 8 || kWarps == 16);
  static_assert(kColumns == 1 << kColumnsLog);
  static_assert(kShared <= 48 * 1024);
};

#if __CUDA_ARCH__ >= 800  // other architectures get an empty kernel, which nothing launches

// ---- loading ----

__device__ __forceinline__ float as_float(const uint4& v, int i) { return __uint_as_float(word(v, i)); }
__device__ __forceinline__ double as_double(const uint4& v, int i) {
  return __hiloint2double(static_cast<int>(word(v, 2 * i + 1)), static_cast<int>(word(v, 2 * i)));
}

/// What a thread reads of one stage.
template <typename S>
struct Stage {
  uint4 b[S::kSteps][S::kLoads];
  uint4 a[S::kSteps][S::kBlocksM];
};

/// Where a thread reads a, in vectors or by elements, and b.
template <typename S, bool AVectors>
class Reader {
 public:
  /// `a` and `b` are the matrices, `column` is the warp's first, and k ends at `end`.
  __device__ __forceinline__ Reader(const KernelArgs& args, const char* a, const char* b, int64_t column, int end)
      : args_(args), end_(end) {
    const int g = threadIdx.x % 32 / 4;
    // Beyond the last column, that one is read again, for sums that are not stored.
    if constexpr (S::kKFast) {
#pragma unroll
      for (int i = 0; i < S::kLoads; ++i) b_[i] = b + min(column + 8 * i + g, args.n - 1) * args.b.mn_stride;
    } else {
      b_[0] = b + min(column + g * S::kVector, args.n - S::kVector) * static_cast<int>(sizeof(typename S::Element));
    }
    a_ = a + g * args.a.mn_stride;
  }

  /// Reads the stage whose first k is `k`, with zeros beyond the end.
  __device__ __forceinline__ void read(Stage<S>& to, int k) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      const int at = k + step * S::kStepK + lane % 4 * S::kVector;
      const bool valid = at < end_;
#pragma unroll
      for (int i = 0; i < S::kLoads; ++i) {
        if constexpr (S::kKFast) {
          to.b[step][i] = load_once(b_[i] + at * int64_t{sizeof(typename S::Element)}, valid);
        } else {
          to.b[step][i] = load_once(b_[0] + (at + i) * args_.b.k_stride, valid);
        }
      }
#pragma unroll
      for (int j = 0; j < S::kBlocksM; ++j) {
        to.a[step][j] = read_a<typename S::Element, AVectors>(a_ + j * 8 * args_.a.mn_stride + at * args_.a.k_stride,
                                                              args_.a.k_stride, valid && lane / 4 + 8 * j < args_.m);
      }
    }
  }

 private:
  const KernelArgs& args_;
  const char* b_[S::kKFast ? S::kLoads : 1];
  const char* a_;
  int end_;
};

// ---- multiplying ----

__device__ __forceinline__ void multiply_16x8x16(float (&sum)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                                 unsigned b0, unsigned b1, device::Half) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply_16x8x16(float (&sum)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                                 unsigned b0, unsigned b1, device::BFloat16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply_8x8x4(double (&sum)[2], double a, double b) {
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(sum[0]), "+d"(sum[1])
      : "d"(a), "d"(b));
}

/// A warp's sums of 16-bit floats. The tensor cores' rows are columns of b, 16 at a time, and their columns are rows of
/// a, 8 at a time. A thread has their rows g and g + 8, and of these columns 2 t and 2 t + 1.
template <typename S>
class Sums16 {
 public:
  __device__ __forceinline__ void add_stage(const Stage<S>& stage, char*) {
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // half of the vector: its 4 k are the thread's share of 16
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          const uint4* const b = stage.b[step];
          unsigned low0, high0, low1, high1;  // the column that is row g of the tensor cores', and row g + 8
          if constexpr (S::kKFast) {
            low0 = word(b[2 * group], 2 * half);
            high0 = word(b[2 * group + 1], 2 * half);
            low1 = word(b[2 * group], 2 * half + 1);
            high1 = word(b[2 * group + 1], 2 * half + 1);
          } else {  // a word has two columns of one k
            const unsigned k0 = word(b[4 * half], group), k1 = word(b[4 * half + 1], group);
            const unsigned k2 = word(b[4 * half + 2], group), k3 = word(b[4 * half + 3], group);
            low0 = __byte_perm(k0, k1, 0x5410);
            high0 = __byte_perm(k0, k1, 0x7632);
            low1 = __byte_perm(k2, k3, 0x5410);
            high1 = __byte_perm(k2, k3, 0x7632);
          }
#pragma unroll
          for (int j = 0; j < S::kBlocksM; ++j) {
            multiply_16x8x16(sums_[group][j], low0, high0, low1, high1, word(stage.a[step][j], 2 * half),
                             word(stage.a[step][j], 2 * half + 1), typename S::Element{});
          }
        }
      }
    }
  }

  /// Writes the warp's sums, [row][column].
  __device__ __forceinline__ void store(float* to) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int column = S::kKFast ? 16 * group + g : 8 * g + 2 * group;
      constexpr int kNext = S::kKFast ? 8 : 1;
#pragma unroll
      for (int j = 0; j < S::kBlocksM; ++j) {
        float* const at = to + (8 * j + 2 * t) * S::kColumns + column;
        at[0] = sums_[group][j][0];
        at[S::kColumns] = sums_[group][j][1];
        at[kNext] = sums_[group][j][2];
        at[S::kColumns + kNext] = sums_[group][j][3];
      }
    }
  }

 private:
  static constexpr int kGroups = S::kKFast ? S::kLoads / 2 : 4;
  float sums_[kGroups][S::kBlocksM][4] = {};
};

/// A warp's sums of float64, likewise, but 8 columns of b at a time.
template <typename S>
class Sums64 {
 public:
  __device__ __forceinline__ void add_stage(const Stage<S>& stage, char*) {
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          const double b = S::kKFast ? as_double(stage.b[step][group], k) : as_double(stage.b[step][k], group);
#pragma unroll
          for (int j = 0; j < S::kBlocksM; ++j) multiply_8x8x4(sums_[group][j], b, as_double(stage.a[step][j], k));
        }
      }
    }
  }

  __device__ __forceinline__ void store(double* to) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int column = S::kKFast ? 8 * group + g : 2 * g + group;
#pragma unroll
      for (int j = 0; j < S::kBlocksM; ++j) {
        double* const at = to + (8 * j + 2 * t) * S::kColumns + column;
        at[0] = sums_[group][j][0];
        at[S::kColumns] = sums_[group][j][1];
      }
    }
  }

 private:
  static constexpr int kGroups = S::kKFast ? S::kLoads : 2;
  double sums_[kGroups][S::kBlocksM][2] = {};
};

/// A warp's sums of float32. A thread has all rows of a for its columns of b and its k. The threads of a warp exchange
/// their vectors of a through `exchange`, in shared memory.
template <typename S>
class Sums32 {
 public:
  __device__ __forceinline__ void add_stage(const Stage<S>& stage, char* exchange) {
    const int lane = threadIdx.x % 32;
    uint4* const vectors = reinterpret_cast<uint4*>(exchange);  // [step][row][t]
    __syncwarp();                                               // all have read the stage before
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
      for (int j = 0; j < S::kBlocksM; ++j) {
        if (S::kRows >= 8 || lane / 4 < S::kRows) vectors[(step * S::kRows + 8 * j) * 4 + lane] = stage.a[step][j];
      }
    }
    __syncwarp();
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
      for (int row = 0; row < S::kRows; ++row) {
        const uint4 a = vectors[(step * S::kRows + row) * 4 + lane % 4];
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const float b = S::kKFast ? as_float(stage.b[step][group], k) : as_float(stage.b[step][k], group);
            sums_[group][row] = fmaf(as_float(a, k), b, sums_[group][row]);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void store(float* to) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int column = S::kKFast ? 8 * group + g : 4 * g + group;
#pragma unroll
      for (int row = 0; row < S::kRows; ++row) {
        float sum = sums_[group][row];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (row % 4 == t) to[row * S::kColumns + column] = sum;
      }
    }
  }

 private:
  static constexpr int kGroups = S::kKFast ? S::kLoads : 4;
  float sums_[kGroups][S::kRows] = {};
};

template <typename S>
using SumsOf =
    std::conditional_t<std::is_same<typename S::Element, float>::value, Sums32<S>,
                       std::conditional_t<std::is_same<typename S::Element, double>::value, Sums64<S>, Sums16<S>>>;

#endif  // __CUDA_ARCH__ >= 800

// skinny_kernel: c = a @ b for every matrix of a batch, m at most kRows; or the partial sums of split-k.
//   in      a (m, k) of any strides; b (k, n), whose vectors of 16 bytes along k (KFast) or n are aligned
//   launch  one block for kColumns columns (times the groups of warps that do not share k) of a part of a matrix
//   traffic b once, a once for every block; in flight 4 to 8 KB a warp
//   maths   a thread's, then a warp's, then a block's sums, each in a fixed order; on tensor cores, except float32
// E.g. 8 x 4096 @ 4096 x 4096 of bfloat16, k adjacent: 256 blocks of 8 warps, each 8 stages of 64 k of 16 columns.
template <typename S>
__global__ __launch_bounds__(S::kThreads, S::kMinBlocks) void skinny_kernel(const __grid_constant__ KernelArgs args) {
#if __CUDA_ARCH__ >= 800
  using Sum = typename S::Sum;
  __shared__ __align__(16) char shared[S::kShared];
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // tells the compiler that it is uniform in a warp
  const int k_warps = 1 << args.k_warps_log;
  const int columns_log = S::kColumnsLog + S::kWarpsLog - args.k_warps_log;  // of the block

  const Place place = place_of(args, blockIdx.x, gridDim.x, 1 << columns_log);

  SumsOf<S> sums;
  const int64_t column = place.column + (warp >> args.k_warps_log) * S::kColumns;
  const auto add_all = [&](auto a_vectors) {
    const int begin = place.part * args.part_k;
    const int end = min(begin + args.part_k, args.whole_k);
    const Reader<S, decltype(a_vectors)::value> reader(args, place.a, place.b, column, end);
    char* const exchange = shared + warp * S::kExchangeBytes;
    const int stride = k_warps * S::kStageK;
    int k = begin + (warp & (k_warps - 1)) * S::kStageK;
    constexpr bool kReadsAhead = S::kTensor || S::kBlocksM == 1;  // reads the next stage while one is multiplied
    Stage<S> now;
    if constexpr (kReadsAhead) {
      Stage<S> next;
      reader.read(now, k);
      while (k < end) {  // two stages, so that none is copied
        reader.read(next, k + stride);
        sums.add_stage(now, exchange);
        k += stride;
        if (k >= end) break;
        reader.read(now, k + stride);
        sums.add_stage(next, exchange);
        k += stride;
      }
    } else {  // too few registers to read ahead
      for (; k < end; k += stride) {
        reader.read(now, k);
        sums.add_stage(now, exchange);
      }
    }
  };
  if (column < args.n) args.a_vectors ? add_all(std::true_type{}) : add_all(std::false_type{});
  if (S::kExchangeBytes) __syncthreads();
  Sum* const all = reinterpret_cast<Sum*>(shared);  // [warp][row][column]
  sums.store(all + warp * S::kWarpSums);
  __syncthreads();

  store_outputs<typename S::Element, Sum>(
      args, place, columns_log, threadIdx.x, args.m << columns_log, S::kThreads, [&](int i, int j) {
        const Sum* const from =
            all + ((j / S::kColumns) << args.k_warps_log) * S::kWarpSums + i * S::kColumns + j % S::kColumns;
        Sum sum = from[0];
        for (int w = 1; w < k_warps; ++w) sum += from[w * S::kWarpSums];
        return sum;
      });
#endif
}

// ---- the variants ----

template <typename E, int M, bool KFast>
Variant variant_of() {
  using S = Shape<E, M, KFast>;
  static Kernel kernel(reinterpret_cast<const void*>(&skinny_kernel<S>));
  return {S::kRows, S::kColumns, S::kStageK, S::kWarpsLog, 0, &kernel};
}

template <typename E, bool KFast>
Variant variant_for_rows(int64_t m) {
  if constexpr (std::is_same<E, float>::value) {
    if (m == 1) return variant_of<E, 1, KFast>();
    if (m == 2) return variant_of<E, 2, KFast>();
    if (m <= 4) return variant_of<E, 4, KFast>();
  }
  return m <= 8 ? variant_of<E, 8, KFast>() : variant_of<E, kMostRows, KFast>();
}

template <typename E>
Variant variant_for(int64_t m, bool k_fast) {
  return k_fast ? variant_for_rows<E, true>(m) : variant_for_rows<E, false>(m);
}

}  // namespace

Variant registers_variant(DLDataType dtype, int64_t m, bool k_fast) {
  if (dtype.code == kDLBfloat) return variant_for<device::BFloat16>(m, k_fast);
  return dtype.bits == 16   ? variant_for<device::Half>(m, k_fast)
         : dtype.bits == 32 ? variant_for<float>(m, k_fast)
                            : variant_for<double>(m, k_fast);
}

}  // namespace interop::cuda::skinny
