/// Products of few rows: warps that share k among them read the larger operand once, in vectors.
#include "cuda/matmul/skinny/skinny.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <type_traits>

#include "cuda/driver/driver_api.h"
#include "cuda/driver/kernel.h"
#include "cuda/matmul/rates.h"
#include "cuda/matmul/skinny/skinny.cuh"
#include "cuda/matmul/split.h"

namespace interop::cuda::skinny {
namespace {

using tiled::matrices;

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

// ---- the kernels ----

constexpr double kMostGrid = std::numeric_limits<int>::max();  // blocks

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

/// The three kernels. A variant of the plan is one of them, doubled, plus 1 where the larger operand is read along k.
enum class Kind { registers, dots, streamed };

int variant_number(Kind kind, bool k_fast) { return 2 * static_cast<int>(kind) + k_fast; }
Kind kind_of(int number) { return static_cast<Kind>(number / 2); }
bool is_k_fast(int number) { return number % 2 == 1; }

/// The shape of a kernel for this product. `gemm` is oriented.
Variant variant_at(const Gemm& gemm, int number) {
  const DLDataType dtype = gemm.dtype;
  const int64_t m = gemm.m;
  const bool k_fast = is_k_fast(number);
  if (kind_of(number) == Kind::streamed) return streamed_variant(m, k_fast);
  if (kind_of(number) == Kind::dots) return dots_variant(dtype, m, gemm.k);
  if (dtype.code == kDLBfloat) return variant_for<device::BFloat16>(m, k_fast);
  return dtype.bits == 16   ? variant_for<device::Half>(m, k_fast)
         : dtype.bits == 32 ? variant_for<float>(m, k_fast)
                            : variant_for<double>(m, k_fast);
}

CUlaunchAttribute cluster_of(int blocks) {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  return attribute;
}

/// The launch of `blocks` blocks. Only the streamed kernel, which has dynamic shared memory, has clusters.
CUlaunchConfig launch_config(const Variant& variant, int64_t blocks, CUlaunchAttribute& cluster, cudaStream_t stream) {
  return {static_cast<unsigned>(blocks),
          1,
          1,
          32u << variant.warps_log,
          1,
          1,
          static_cast<unsigned>(variant.shared_bytes),
          stream,
          &cluster,
          variant.shared_bytes > 0 ? 1u : 0u};
}

// ---- which products ----

bool is_aligned(const void* data, int64_t strides, int64_t item) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && strides * item % 16 == 0;
}

/// May b be read in vectors, along k (then `k_fast` is set) or along n?
bool reads_b(const Gemm& gemm, bool& k_fast) {
  const int64_t item = item_bytes(gemm.dtype);
  int64_t strides = 0;
  for (int i = 0; i < gemm.batch_ndim; ++i) strides |= gemm.batch[i].b_stride;
  k_fast = gemm.b_strides.row == 1 || gemm.k == 1;
  if (k_fast && is_aligned(gemm.b, strides | (gemm.n > 1 ? gemm.b_strides.column : 0), item)) return true;
  k_fast = false;
  return gemm.b_strides.column == 1 && gemm.n * item % 16 == 0 &&
         is_aligned(gemm.b, strides | gemm.b_strides.row, item);
}

/// Is k a's unit stride, and are its vectors aligned?
bool reads_a_in_vectors(const Gemm& gemm) {
  int64_t strides = gemm.m > 1 ? gemm.a_strides.row : 0;
  for (int i = 0; i < gemm.batch_ndim; ++i) strides |= gemm.batch[i].a_stride;
  return gemm.a_strides.column == 1 && is_aligned(gemm.a, strides, item_bytes(gemm.dtype));
}

/// The product with its few rows in a: `gemm`, or its transpose in `flipped`; null if it is not served.
const Gemm* oriented(const Gemm& gemm, Gemm& flipped, bool& k_fast) {
  const bool few_columns = gemm.n <= kMostRows && gemm.n < gemm.m;
  if (!few_columns) return gemm.m <= kMostRows && reads_b(gemm, k_fast) ? &gemm : nullptr;
  flipped = gemm;
  tiled::transpose(flipped);
  return reads_b(flipped, k_fast) ? &flipped : nullptr;
}

double bytes_of_b(const Gemm& gemm) {
  return static_cast<double>(gemm.n) * gemm.k * matrices(gemm) * item_bytes(gemm.dtype);
}

// ---- the grids ----

/// Is the product computed as dot products? With more rows, or where k does not fill a warp's stage, the other kernels
/// are as quick. `gemm` is oriented.
bool are_dots(const Gemm& gemm, bool k_fast) {
  const int bits = gemm.dtype.bits;
  if (!k_fast || bits == 64 || gemm.m > (bits == 16 ? rates::kMostDotRowsOfHalf : rates::kMostDotRowsOfFloat32))
    return false;
  const Variant variant = dots_variant(gemm.dtype, gemm.m, gemm.k);
  if (gemm.k < variant.stage_k) return false;
  return static_cast<double>(ceil_div(gemm.n, variant.columns)) * matrices(gemm) <= kMostGrid;
}

bool streams(const Gemm& gemm, bool k_fast, const Device& device, Way way) {
  if (way != Way::chosen) return way == Way::shared_memory && may_stream(gemm, device);
  const int fewest_rows = k_fast                                    ? rates::kLeastStreamedAlongK
                          : bytes_of_b(gemm) < rates::kMuchStreamed ? rates::kLeastStreamedOfFew
                                                                    : 1;
  if (gemm.m < fewest_rows || !may_stream(gemm, device)) return false;
  const int columns = streamed_variant(gemm.m, k_fast).columns;
  return 4 * gemm.n >= 3 * ceil_div(gemm.n, int64_t{columns}) * columns;
}

/// How a product is divided into blocks, and about how long its kernel takes.
struct Grid {
  MatmulKernel kernel;
  int parts = 0;
  int64_t blocks = 0;
  double us = 0;
};

/// The blocks that share the columns of a matrix, or of a part of it.
int64_t column_blocks(const Gemm& gemm, const Variant& variant, const MatmulKernel& kernel) {
  return ceil_div(gemm.n, int64_t{variant.columns} << (variant.warps_log - kernel.k_warps_log));
}

Grid divided(const Gemm& gemm, const Variant& variant, int number, int parts, int cluster) {
  Grid grid;
  grid.kernel.variant = number;
  grid.kernel.cluster = cluster;
  grid.kernel.part_k =
      static_cast<int>(ceil_div(ceil_div(gemm.k, int64_t{parts} * cluster), variant.stage_k) * variant.stage_k);
  grid.parts = static_cast<int>(ceil_div(gemm.k, int64_t{grid.kernel.part_k} * cluster));
  return grid;
}

void set_k_warps(Grid& grid, const Gemm& gemm, const Variant& variant, int log) {
  grid.kernel.k_warps_log = log;
  grid.blocks = column_blocks(gemm, variant, grid.kernel) * grid.parts * matrices(gemm) * grid.kernel.cluster;
}

Grid grid_of_registers(const Gemm& gemm, bool k_fast, int parts, const Device& device) {
  const int number = variant_number(are_dots(gemm, k_fast) ? Kind::dots : Kind::registers, k_fast);
  const Variant variant = variant_at(gemm, number);
  Grid grid = divided(gemm, variant, number, parts, 1);
  const int sms = device.multiprocessors();
  // Warps take columns instead of k where half of them would have no k. They also do where each would have less than
  // two stages, as long as there are blocks for all SMs.
  for (int log = variant.warps_log;; --log) {
    set_k_warps(grid, gemm, variant, log);
    const int part_k = grid.kernel.part_k;
    if (log == 0 || part_k >= 2 * variant.stage_k << log) break;
    if (2 * part_k > variant.stage_k << log && grid.blocks < rates::kEnoughBlocksOfSm * sms) break;
  }
  const double bytes = bytes_of_b(gemm), of_block = bytes / grid.blocks;
  const double busiest = std::ceil(static_cast<double>(grid.blocks) / sms) * of_block;
  grid.us = std::max(
      {of_block / (rates::kWarpRate * (1 << variant.warps_log)), busiest / rates::kSmRate, bytes / rates::kMemoryRate});
  return grid;
}

/// How many blocks of the streamed kernel the device holds at once, in clusters of `cluster`; negative if it takes no
/// clusters of that size. A cluster lies in one GPC, and some GPCs have fewer SMs.
int resident_blocks(const Variant& variant, int cluster, int device) {
  static std::atomic<int> kept[kMaxDevices][kMostBlocks];  // the same for all variants
  std::atomic<int>& blocks = kept[device][cluster - 1];
  if (const int known = blocks.load(std::memory_order_relaxed)) return known;
  const CUfunction function = ready(*variant.kernel, "launching a product", "loading the matmul kernel");
  CUlaunchAttribute attribute = cluster_of(cluster);
  const CUlaunchConfig config = launch_config(variant, cluster, attribute, nullptr);
  int clusters = 0;
  const CUresult status = driver().cuOccupancyMaxActiveClusters(&clusters, function, &config);
  if (status != CUDA_ERROR_INVALID_CLUSTER_SIZE) check(status, "launching a product");
  blocks.store(clusters > 0 ? clusters * cluster : -1, std::memory_order_relaxed);
  return blocks;
}

Grid grid_of_streamed(const Gemm& gemm, bool k_fast, int parts, const Device& device) {
  const int number = variant_number(Kind::streamed, k_fast);
  const Variant variant = variant_at(gemm, number);
  const int sms = device.multiprocessors();
  const double stage_us = rates::kStageUs + rates::kStageUsOfRow * variant.rows;
  const double memory_us = bytes_of_b(gemm) / rates::kFastestMemory;
  Grid best;
  for (int cluster = 1; cluster <= kMostBlocks; ++cluster) {
    const int held = resident_blocks(variant, cluster, device.index());
    if (held < 0 && cluster > 1) continue;
    const int64_t resident = std::max(held, 1);
    Grid grid = divided(gemm, variant, number, parts, cluster);
    set_k_warps(grid, gemm, variant, variant.warps_log);
    const auto time_of = [&](int64_t blocks) {  // for so many resident blocks
      const double of_an_sm = static_cast<double>(blocks) / sms * (cluster > 1 ? rates::kUnevenClusters : 1);
      const double busiest = std::min(std::ceil(of_an_sm), double{kStreamedBlocks});
      return grid.kernel.part_k / variant.stage_k * std::max(busiest * stage_us, rates::kAloneUs) + rates::kBlockUs;
    };
    const int64_t rounds = grid.blocks / resident, left = grid.blocks % resident;
    const double busy = rounds * time_of(resident) + (left > 0 ? time_of(left) : 0);
    grid.us = std::max(busy, memory_us) + rates::kNotOverlapped * busy;
    if (best.blocks == 0 || grid.us < best.us) best = grid;
  }
  return best;
}

/// Chooses the grids of one product. `asked` is served.
class Grids {
 public:
  Grids(const Gemm& asked, const Device& device, Way way)
      : gemm_(*oriented(asked, flipped_, k_fast_)),
        device_(device),
        is_transposed_(&gemm_ == &flipped_),
        streams_(streams(gemm_, k_fast_, device, way)) {}
  Grids(const Grids&) = delete;
  Grids& operator=(const Grids&) = delete;

  const Gemm& gemm() const { return gemm_; }
  Grid in_parts(int count) const {
    return streams_ ? grid_of_streamed(gemm_, k_fast_, count, device_)
                    : grid_of_registers(gemm_, k_fast_, count, device_);
  }
  MatmulPlan plan(const Grid& undivided, const Grid& chosen) const {
    MatmulPlan plan;
    plan.family = MatmulFamily::skinny;
    plan.transposed = is_transposed_;
    plan.parts = chosen.parts;
    plan.kernel = chosen.kernel;
    plan.undivided = undivided.kernel;
    if (plan.parts > 1) plan.workspace_bytes = tiled::partial_bytes(gemm_, plan.parts);
    return plan;
  }

 private:
  Gemm flipped_;
  bool k_fast_;
  const Gemm& gemm_;
  const Device& device_;
  const bool is_transposed_, streams_;
};

}  // namespace

bool serves(const Gemm& gemm, const Device& device) {
  if (std::min(gemm.m, gemm.n) > kMostRows) return false;
  const bool is_float = gemm.dtype.code == kDLFloat || gemm.dtype.code == kDLBfloat;
  if (!is_float || gemm.dtype.bits < 16 || gemm.b_dtype != gemm.dtype) return false;
  if (gemm.m < 1 || gemm.n < 1 || gemm.k < 1 || gemm.batch_ndim > kKernelBatchDims) return false;
  const double of_matrix = static_cast<double>(std::max(gemm.m, gemm.n)) * gemm.k;
  if (of_matrix * matrices(gemm) < rates::kSkinnyElements || gemm.k > std::numeric_limits<int>::max() / 2) return false;
  if (static_cast<double>(ceil_div(std::max(gemm.m, gemm.n), 16)) * matrices(gemm) > kMostGrid) return false;
  Gemm flipped;
  bool k_fast;
  const Gemm* const found = oriented(gemm, flipped, k_fast);
  if (!found) return false;
  // Many small matrices go to the tiled kernels: a block here has at most one.
  const bool is_cheap = found->m <= rates::kSkinnyCheapRows && (k_fast || gemm.dtype.bits != 16);
  if (of_matrix < rates::kSkinnyElements / (is_cheap ? rates::kSkinnyCheaper : 1)) return false;
  return device.has_sm80_code();
}

bool may_stream(const Gemm& gemm, const Device& device) { return gemm.dtype == kFloat32 && device.has_sm90a_code(); }

MatmulPlan choose(const Gemm& asked, std::size_t most_bytes, const Device& device, Way way) {
  const Grids grids(asked, device, way);
  const Grid undivided = grids.in_parts(1);
  if (!tiled::may_divide(asked)) return grids.plan(undivided, undivided);
  const auto time = [&](const Grid& grid) {
    if (grid.parts == 1) return grid.us;
    return grid.us + (rates::kSumUs + 2 * tiled::partial_bytes(grids.gemm(), grid.parts) / rates::kMemoryRate);
  };
  const int64_t enough_blocks = rates::kEnoughBlocksOfSm * device.multiprocessors();
  Grid grid = undivided, best = undivided;
  double best_us = time(grid);
  for (int count = 2; count <= rates::kMostParts && grid.blocks < enough_blocks; count += std::max(1, count / 2)) {
    grid = grids.in_parts(count);
    if (tiled::partial_bytes(grids.gemm(), grid.parts) > most_bytes) break;
    const double us = time(grid);
    if (us < best_us) {
      best_us = us;
      best = grid;
    }
  }
  return grids.plan(undivided, best);
}

MatmulPlan choose_in_parts(const Gemm& gemm, int parts, const Device& device, Way way) {
  const Grids grids(gemm, device, way);
  return grids.plan(grids.in_parts(1), grids.in_parts(parts));
}

void launch(const Gemm& gemm, const MatmulPlan& plan, void* workspace, cudaStream_t stream) {
  const bool is_divided = plan.parts > 1 && workspace;
  const MatmulKernel& kernel = is_divided ? plan.kernel : plan.undivided;
  const Variant variant = variant_at(gemm, kernel.variant);
  const int parts = is_divided ? plan.parts : 1;
  const int64_t item = item_bytes(gemm.dtype);

  KernelArgs args{};
  args.a = {static_cast<const char*>(gemm.a), gemm.a_strides.row * item, gemm.a_strides.column * item, {}};
  args.b = {static_cast<const char*>(gemm.b), gemm.b_strides.column * item, gemm.b_strides.row * item, {}};
  args.c = tiled::output_args(gemm.c, gemm.c_strides, item_bytes(gemm.out_dtype));
  args.finish = tiled::finish_args(gemm, false);
  args.m = static_cast<int>(gemm.m);
  args.n = gemm.n;
  args.k = static_cast<int>(gemm.k);
  args.whole_k = static_cast<int>(gemm.k / (16 / item) * (16 / item));
  args.parts = parts;
  args.part_k = kernel.part_k;
  args.cluster = kernel.cluster;
  const int64_t columns = column_blocks(gemm, variant, kernel);
  args.column_blocks = divisor_of(columns);
  args.k_warps_log = kernel.k_warps_log;
  args.a_vectors = reads_a_in_vectors(gemm);
  args.is_plain = gemm.is_plain();
  args.down_rows = std::abs(gemm.c_strides.row) < std::abs(gemm.c_strides.column);
  args.batch_ndim = gemm.batch_ndim;
  for (int i = 0; i < gemm.batch_ndim; ++i) {
    args.a.batch_stride[i] = gemm.batch[i].a_stride * item;
    args.b.batch_stride[i] = gemm.batch[i].b_stride * item;
  }
  tiled::set_output_batch(gemm, 0, args.batch_size, args.c, args.finish);
  args.matrices = matrices(gemm);
  args.partials = is_divided ? static_cast<char*>(workspace) : nullptr;

  const CUfunction function = ready(*variant.kernel, "launching a product", "loading the matmul kernel");
  void* parameters[] = {&args};
  CUlaunchAttribute attribute = cluster_of(kernel.cluster);
  const CUlaunchConfig config =
      launch_config(variant, columns * parts * args.matrices * kernel.cluster, attribute, stream);
  check(driver().cuLaunchKernelEx(&config, function, parameters, nullptr), "launching a product");
  if (is_divided) tiled::launch_sum_of_parts(gemm, workspace, parts, stream);
}

std::string describe(const Gemm& gemm, const MatmulPlan& plan) {
  const int number = plan.kernel.variant, rows = variant_at(gemm, number).rows;
  const Kind kind = kind_of(number);
  return std::string("skinny ") +
         (kind == Kind::streamed ? "streamed "
          : kind == Kind::dots   ? "dots "
                                 : "") +
         std::to_string(rows) + (rows == 1 ? " row, " : " rows, ") + dtype_name(gemm.dtype);
}

}  // namespace interop::cuda::skinny
