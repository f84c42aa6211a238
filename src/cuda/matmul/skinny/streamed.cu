/// Products of few rows of float32 on sm_90. The larger operand streams through shared memory: more of it is in flight
/// than registers could hold, and a warp has so many columns that it seldom reads the few rows.
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/matmul/blocks.cuh"
#include "cuda/matmul/skinny/skinny.cuh"
#include "cuda/matmul/wgmma/sm90.cuh"

namespace interop::cuda::skinny {
namespace {

/// A block adds up kRows x kColumns outputs in stages of kStageK of k, of which each warp has kWarpK. All warps copy. A
/// stage consists of runs of 128 bytes or more: with runs of 64, memory is slower by as much as half. Four blocks fit
/// an SM. They have 192 KB of b loaded or in flight, of which an H200 needs about 40. While one block waits, or stores
/// its sums, the others multiply.
template <int M, bool KFast>
struct Shape {
  static constexpr int kRows = M;
  static constexpr bool kKFast = KFast;
  static constexpr int kItem = sizeof(float), kVector = 16 / kItem;
  static constexpr int kWarpsLog = 2, kWarps = 1 << kWarpsLog, kThreads = 32 * kWarps;
  static constexpr int kColumnsLog = 7, kColumns = 1 << kColumnsLog, kWarpK = 2 * kVector, kStageK = kWarps * kWarpK,
                       kStages = 3;
  // A stage has vectors of b, as [column][k] (KFast) or [k][column], and then of a, as [row][k].
  static constexpr int kRowVectors = (kKFast ? kStageK : kColumns) / kVector;  // of b
  static constexpr int kVectorsOfA = kStageK / kVector;                        // in a row of it
  static constexpr int kBytesOfB = kColumns * kStageK * kItem;
  static constexpr int kStageBytes = kBytesOfB + M * kStageK * kItem;
  static constexpr int kShared = kStages * kStageBytes;
  static constexpr int kSumVectors = M * kColumns / 4;  // of a warp
  static_assert(kThreads % kRowVectors == 0 && kThreads % kVectorsOfA == 0, "threads copy whole rows");
  static_assert(kWarps * kSumVectors * 16 <= kShared, "the sums take the place of the stages");
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // other architectures get an empty kernel, which nothing launches

/// The place of vector `vector` in row `row` of b in shared memory, where a row is a column or a k. If lanes read
/// different rows at a time, they find their vectors in different banks.
template <typename S>
__device__ __forceinline__ int swizzled(int row, int vector) {
  return S::kKFast ? vector ^ row % 8 : vector;
}

/// Copies a block's stages.
template <typename S>
class Copier {
 public:
  /// k ends at `end`.
  __device__ __forceinline__ Copier(const KernelArgs& args, const Place& place, int end)
      : args_(args), row_(threadIdx.x / S::kRowVectors), vector_(threadIdx.x % S::kRowVectors), end_(end) {
    const int64_t first = place.column + (S::kKFast ? row_ : vector_ * S::kVector);
    columns_ = static_cast<int>(min(args.n - first, int64_t{S::kColumns}));
    b_ = place.b + first * (S::kKFast ? args.b.mn_stride : S::kItem);
    a_ = place.a;
  }

  /// Queues the copies of the stage whose first k is `k`, with zeros beyond the end, the columns and the rows.
  __device__ __forceinline__ void copy(uint32_t stage, int k) const {
    copy_b(stage, k);
    if (args_.a_vectors) {
      copy_vectors_of_a(stage + S::kBytesOfB, k);
    } else {
      copy_elements_of_a(stage + S::kBytesOfB, k);
    }
  }

 private:
  __device__ __forceinline__ void copy_b(uint32_t to, int k) const {
    constexpr int kStep = S::kThreads / S::kRowVectors, kSteps = (S::kKFast ? S::kColumns : S::kStageK) / kStep;
    const int at = k + (S::kKFast ? vector_ * S::kVector : row_);
    // How many rows exist from the thread's first one on.
    const int rows = S::kKFast ? (at < end_ ? columns_ : 0) : (columns_ > 0 ? end_ - at : 0);
    const char* from = b_ + at * (S::kKFast ? int64_t{S::kItem} : args_.b.k_stride);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int row = row_ + i * kStep;
      tiled::copy_or_zero<16>(to + (row * S::kRowVectors + swizzled<S>(row, vector_)) * 16, from,
                              i * kStep < rows ? 16 : 0);
      from += kStep * (S::kKFast ? args_.b.mn_stride : args_.b.k_stride);
    }
  }

  __device__ __forceinline__ void copy_vectors_of_a(uint32_t to, int k) const {
    constexpr int kStep = S::kThreads / S::kVectorsOfA;
    const int first = threadIdx.x / S::kVectorsOfA, at = k + threadIdx.x % S::kVectorsOfA * S::kVector;
#pragma unroll
    for (int i = 0; i < S::kRows; i += kStep) {
      const int row = i + first;
      if (S::kRows % kStep != 0 && row >= S::kRows) break;
      tiled::copy_or_zero<16>(to + (i * S::kVectorsOfA + threadIdx.x) * 16,
                              a_ + row * args_.a.mn_stride + at * int64_t{S::kItem},
                              at < end_ && row < args_.m ? 16 : 0);
    }
  }

  __device__ __forceinline__ void copy_elements_of_a(uint32_t to, int k) const {
    constexpr int kStep = S::kThreads / S::kStageK;
    const int first = threadIdx.x / S::kStageK, at = k + threadIdx.x % S::kStageK;
#pragma unroll
    for (int i = 0; i < S::kRows; i += kStep) {
      const int row = i + first;
      tiled::copy_or_zero<4>(to + (i * S::kStageK + threadIdx.x) * 4,
                             a_ + row * args_.a.mn_stride + at * args_.a.k_stride, at < end_ && row < args_.m ? 4 : 0);
    }
  }

  const KernelArgs& args_;
  int row_, vector_;  // of the first vector of b that the thread copies
  int end_;
  int columns_;  // from the thread's first on
  const char *a_, *b_;
};

/// A warp's sums. A lane has all rows of the columns lane + 32 i (KFast) or 4 lane + i.
template <typename S>
class Sums {
 public:
  /// Adds the share of a stage that warp `warp` has.
  __device__ __forceinline__ void add_stage(const char* stage, int warp) {
    const int lane = threadIdx.x % 32;
    const float4* const all_b = reinterpret_cast<const float4*>(stage);
    const float4* const all_a = reinterpret_cast<const float4*>(stage + S::kBytesOfB);
#pragma unroll 1
    for (int of_warp = 0; of_warp < S::kWarpK / S::kVector; ++of_warp) {
      const int vector = warp * (S::kWarpK / S::kVector) + of_warp;
      float b[4][4];  // [column][k]
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (S::kKFast) {
          const float4 v = all_b[(lane + 32 * i) * S::kRowVectors + swizzled<S>(lane, vector)];
          b[i][0] = v.x, b[i][1] = v.y, b[i][2] = v.z, b[i][3] = v.w;
        } else {
          const int k = 4 * vector + i;
          const float4 v = all_b[k * S::kRowVectors + swizzled<S>(k, lane)];
          b[0][i] = v.x, b[1][i] = v.y, b[2][i] = v.z, b[3][i] = v.w;
        }
      }
#pragma unroll
      for (int row = 0; row < S::kRows; ++row) {
        const float4 v = all_a[row * S::kVectorsOfA + vector];  // the same for all lanes
        const float a[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sums_[row][i] = fmaf(a[k], b[i][k], sums_[row][i]);
        }
      }
    }
  }

  /// Writes the warp's sums, [row][column].
  __device__ __forceinline__ void store(float* to) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int row = 0; row < S::kRows; ++row) {
      if constexpr (S::kKFast) {
#pragma unroll
        for (int i = 0; i < 4; ++i) to[row * S::kColumns + lane + 32 * i] = sums_[row][i];
      } else {
        reinterpret_cast<float4*>(to)[row * (S::kColumns / 4) + lane] =
            make_float4(sums_[row][0], sums_[row][1], sums_[row][2], sums_[row][3]);
      }
    }
  }

 private:
  float sums_[S::kRows][4] = {};
};

/// Adds up the sums of the warps, in the place of the first one's.
template <typename S>
__device__ __forceinline__ void add_warps(float4* all) {
  for (int at = threadIdx.x; at < S::kSumVectors; at += S::kThreads) {
    float4 sum = all[at];
#pragma unroll
    for (int w = 1; w < S::kWarps; ++w) {
      const float4 more = all[w * S::kSumVectors + at];
      sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
    }
    all[at] = sum;
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// streamed_kernel: c = a @ b for every matrix of a batch, m at most kRows; or the partial sums of split-k.
//   in      a (m, k) of any strides; b (k, n), whose vectors of 16 bytes along k (KFast) or n are aligned
//   launch  one cluster for 128 columns of a part of a matrix; its blocks share k
//   traffic b once, a once for every 128 columns; in flight 32 KB of b a block
//   maths   a warp's sums, then a block's, then a cluster's, each in a fixed order: 16 FFMA for each vector of a, which
//           all lanes read at once, and 64 for each of b
// E.g. 16 x 4096 @ 4096 x 11008 of float32: 86 clusters of 4 blocks, each 32 stages.
template <typename S>
__global__ __launch_bounds__(S::kThreads,
                             kStreamedBlocks) void streamed_kernel(const __grid_constant__ KernelArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) char shared[];
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // tells the compiler that it is uniform in a warp
  const int rank = sm90::cluster_rank();
  const Place place = place_of(args, blockIdx.x / args.cluster, gridDim.x / args.cluster, S::kColumns);

  Sums<S> sums;
  const int begin = (place.part * args.cluster + rank) * args.part_k;
  const int end = min(begin + args.part_k, args.whole_k);
  const Copier<S> copier(args, place, end);
  const uint32_t ring = sm90::shared_address(shared);
  int next = begin, reads = 0, writes = 0;
  const auto copy_next = [&] {
    if (next < end) copier.copy(ring + writes * S::kStageBytes, next);
    asm volatile("cp.async.commit_group;" ::: "memory");  // a group is counted even if it is empty, at the end
    next += S::kStageK;
    writes = writes == S::kStages - 1 ? 0 : writes + 1;
  };
#pragma unroll 1
  for (int i = 0; i < S::kStages - 1; ++i) copy_next();
#pragma unroll 1
  for (int k = begin; k < end; k += S::kStageK) {
    asm volatile("cp.async.wait_group %0;" ::"n"(S::kStages - 2) : "memory");
    __syncthreads();  // the stage has arrived, and all have read the one before, which the next copy overwrites
    copy_next();
    sums.add_stage(shared + reads * S::kStageBytes, warp);
    reads = reads == S::kStages - 1 ? 0 : reads + 1;
  }
  __syncthreads();
  float4* const all = reinterpret_cast<float4*>(shared);  // [warp][row][column]
  sums.store(reinterpret_cast<float*>(all + warp * S::kSumVectors));
  __syncthreads();
  add_warps<S>(all);
  sm90::cluster_barrier();

  // Each block of a cluster stores a share of the cluster's outputs.
  const int outputs = args.m * S::kColumns;
  const int share = (outputs + args.cluster - 1) / args.cluster;
  store_outputs<float, float>(args, place, S::kColumnsLog, rank * share + static_cast<int>(threadIdx.x),
                              min(outputs, (rank + 1) * share), S::kThreads, [&](int i, int j) {
                                const uint32_t address =
                                    sm90::shared_address(reinterpret_cast<const float*>(all) + i * S::kColumns + j);
                                float of_block[kMostBlocks];
#pragma unroll
                                for (int block = 0; block < kMostBlocks; ++block) {
                                  if (block < args.cluster) of_block[block] = sm90::load_from(address, block);
                                }
                                float sum = of_block[0];
#pragma unroll
                                for (int block = 1; block < kMostBlocks; ++block) {
                                  if (block < args.cluster) sum += of_block[block];
                                }
                                return sum;
                              });
  sm90::cluster_barrier();  // no block ends while others read its shared memory
#endif
}

template <int M, bool KFast>
Variant variant_of() {
  using S = Shape<M, KFast>;
  static Kernel kernel(reinterpret_cast<const void*>(&streamed_kernel<S>), S::kShared);
  return {S::kRows, S::kColumns, S::kStageK, S::kWarpsLog, S::kShared, &kernel};
}

template <bool KFast>
Variant variant_for_rows(int64_t m) {
  if constexpr (!KFast) {
    if (m <= 4) return variant_of<4, KFast>();
  }
  return m <= 8 ? variant_of<8, KFast>() : variant_of<16, KFast>();
}

}  // namespace

Variant streamed_variant(int64_t m, bool k_fast) {
  return k_fast ? variant_for_rows<true>(m) : variant_for_rows<false>(m);
}

}  // namespace interop::cuda::skinny
