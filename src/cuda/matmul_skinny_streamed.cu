/// Products of few rows of float32 and of 16-bit floats on sm_90: the larger operand streams through shared memory, so
/// that more of it is on its way than registers could hold, and a warp has columns enough to read the few rows seldom.
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/matmul_blocks.cuh"
#include "cuda/matmul_skinny.cuh"
#include "cuda/sm90.cuh"

namespace interop::cuda::skinny {
namespace {

/// A warp adds up kRows x kColumns outputs of stages of kStageK of k; it copies its own stages and waits for no other
/// warp. Two blocks fit an SM: 192 KB of b are there or on their way, of which an H200 needs some 40, and one block's
/// last sums go beside the other's copies.
template <typename E, int M, bool KFast>
struct Shape {
  using Element = E;
  static constexpr int kRows = M;
  static constexpr bool kKFast = KFast;
  static constexpr int kItem = sizeof(E), kVector = 16 / kItem;
  static constexpr int kColumns = kStreamedColumns, kStageK = 4 * kVector, kStages = 3;
  static constexpr int kWarpsLog = 2, kWarps = 1 << kWarpsLog, kThreads = 32 * kWarps;
  // A stage is vectors of b and then of a, [column][k] or [k][column], and [row][k]; those of b in an order within
  // their row (see `swizzled`) in which lanes that read at one time read other banks.
  static constexpr int kRowVectors = kKFast ? 4 : kColumns / kVector;  // of b
  static constexpr int kBytesOfB = kColumns * kStageK * kItem;
  static constexpr int kStageBytes = kBytesOfB + M * kStageK * kItem;
  static constexpr int kRingBytes = kStages * kStageBytes;
  static constexpr int kShared = kWarps * kRingBytes;
  static constexpr int kSumVectors = M * kColumns / 4;  // of a warp
  static_assert(32 % kRowVectors == 0, "lanes copy whole rows of b");
  static_assert(kWarps * kSumVectors * 16 <= kShared, "the sums take the place of the stages");
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // others get an empty kernel, which nothing launches

/// Which vector of its row in shared memory is vector `vector` of row `row` of b: a column or a k.
template <typename S>
__device__ __forceinline__ int swizzled(int row, int vector) {
  return vector ^ (S::kKFast ? row / 2 % 4 : row / S::kVector % 4 * 2);
}

/// Copies a warp's stages.
template <typename S>
class Copier {
 public:
  /// `column` is the warp's first, and k ends at `end`.
  __device__ __forceinline__ Copier(const KernelArgs& args, const Place& place, int64_t column, int end)
      : args_(args), row_(threadIdx.x % 32 / S::kRowVectors), vector_(threadIdx.x % S::kRowVectors), end_(end) {
    const int64_t first = column + (S::kKFast ? row_ : vector_ * S::kVector);
    columns_ = static_cast<int>(min(args.n - first, int64_t{S::kColumns}));
    b_ = place.b + first * (S::kKFast ? args.b.mn_stride : S::kItem);
    a_ = place.a;
  }

  /// Queues the copies of the stage whose first k is `k`: zeros beyond the end, the columns and the rows.
  __device__ __forceinline__ void copy(uint32_t stage, int k) const {
    copy_b(stage, k);
    if (S::kItem == 2 || args_.a_vectors) {
      copy_vectors_of_a(stage + S::kBytesOfB, k);
    } else {
      copy_elements_of_a(stage + S::kBytesOfB, k);
    }
  }

 private:
  __device__ __forceinline__ void copy_b(uint32_t to, int k) const {
    constexpr int kStep = 32 / S::kRowVectors, kSteps = (S::kKFast ? S::kColumns : S::kStageK) / kStep;
    const int at = k + (S::kKFast ? vector_ * S::kVector : row_);
    // How many of the rows from the lane's first on are there.
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
    const int lane = threadIdx.x % 32, at = k + lane % 4 * S::kVector;
#pragma unroll
    for (int i = 0; i < S::kRows; i += 8) {
      const int row = i + lane / 4;
      if (S::kRows % 8 != 0 && row >= S::kRows) break;
      tiled::copy_or_zero<16>(to + (i * 4 + lane) * 16, a_ + row * args_.a.mn_stride + at * int64_t{S::kItem},
                              at < end_ && row < args_.m ? 16 : 0);
    }
  }

  __device__ __forceinline__ void copy_elements_of_a(uint32_t to, int k) const {
    const int lane = threadIdx.x % 32, at = k + lane % S::kStageK;
#pragma unroll
    for (int i = 0; i < S::kRows; i += 32 / S::kStageK) {
      const int row = i + lane / S::kStageK;
      tiled::copy_or_zero<4>(to + (i * S::kStageK + lane) * 4, a_ + row * args_.a.mn_stride + at * args_.a.k_stride,
                             at < end_ && row < args_.m ? 4 : 0);
    }
  }

  const KernelArgs& args_;
  int row_, vector_;  // of the first vector of b that the lane copies
  int end_;
  int columns_;  // from the lane's first on
  const char *a_, *b_;
};

/// A warp's sums of float32. A lane has all rows of the columns lane + 32 i, or along n 4 lane + i.
template <typename S>
class Sums32 {
 public:
  __device__ __forceinline__ void add_stage(const char* stage) {
    const int lane = threadIdx.x % 32;
    const float4* const all_b = reinterpret_cast<const float4*>(stage);
    const float4* const all_a = reinterpret_cast<const float4*>(stage + S::kBytesOfB);
#pragma unroll
    for (int vector = 0; vector < 4; ++vector) {
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
        const float4 v = all_a[row * 4 + vector];  // the same for all lanes
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

/// Of 16-bit floats, on the tensor cores: 16 rows of a by 8 columns of b, so that b's vectors in shared memory hold
/// their registers side by side. Lane 4 g + t has vector t of a stage's k, of rows g and g + 8 of a and of column g of
/// every 8; along n, every eighth column makes a group.
template <typename S>
class Sums16 {
 public:
  __device__ __forceinline__ void add_stage(const char* stage) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint4* const all_b = reinterpret_cast<const uint4*>(stage);
    const uint4* const all_a = reinterpret_cast<const uint4*>(stage + S::kBytesOfB);
    const uint4 a[2] = {all_a[lane], all_a[32 + lane]};
    if constexpr (S::kKFast) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const uint4 b = all_b[(8 * group + g) * S::kRowVectors + swizzled<S>(g, t)];
        add(group, 0, a, b.x, b.y);
        add(group, 1, a, b.z, b.w);
      }
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int first = 0; first < kGroups; first += 8) {
          uint4 b[4];  // of 4 k
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            b[i] = all_b[(8 * t + 4 * half + i) * S::kRowVectors + swizzled<S>(8 * t, first + g)];
          }
#pragma unroll
          for (int pair = 0; pair < 4; ++pair) {  // a word has two columns of one k
            const unsigned k0 = word(b[0], pair), k1 = word(b[1], pair);
            const unsigned k2 = word(b[2], pair), k3 = word(b[3], pair);
            add(first + 2 * pair, half, a, __byte_perm(k0, k1, 0x5410), __byte_perm(k2, k3, 0x5410));
            add(first + 2 * pair + 1, half, a, __byte_perm(k0, k1, 0x7632), __byte_perm(k2, k3, 0x7632));
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
      const int column = S::kKFast ? 8 * group + 2 * t : group / 8 * 64 + 16 * t + group % 8;
      constexpr int kNext = S::kKFast ? 1 : 8;
#pragma unroll
      for (int i = 0; i < 4; ++i) to[(g + i / 2 * 8) * S::kColumns + column + i % 2 * kNext] = sums_[group][i];
    }
  }

 private:
  /// `half` of a vector: its 4 k are the lane's share of 16.
  __device__ __forceinline__ void add(int group, int half, const uint4 (&a)[2], unsigned b0, unsigned b1) {
    multiply_16x8x16(sums_[group], word(a[0], 2 * half), word(a[1], 2 * half), word(a[0], 2 * half + 1),
                     word(a[1], 2 * half + 1), b0, b1, typename S::Element{});
  }

  static constexpr int kGroups = S::kColumns / 8;
  float sums_[kGroups][4] = {};
};

template <typename S>
using SumsOf = std::conditional_t<std::is_same<typename S::Element, float>::value, Sums32<S>, Sums16<S>>;

/// Adds up what the warps that share out k have, in the first one's place.
template <typename S>
__device__ __forceinline__ void add_warps(float4* all, int k_warps_log) {
  const int vectors = S::kSumVectors << (S::kWarpsLog - k_warps_log);
  for (int at = threadIdx.x; at < vectors; at += S::kThreads) {
    float4* const to = all + ((at / S::kSumVectors) << k_warps_log) * S::kSumVectors + at % S::kSumVectors;
    float4 sum = *to;
    for (int w = 1; w < 1 << k_warps_log; ++w) {
      const float4 more = to[w * S::kSumVectors];
      sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
    }
    *to = sum;
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// streamed_kernel: c = a @ b for every matrix of a batch, m at most kRows; or the sums of the parts of k.
//   in      a (m, k), of any strides in float32, else with aligned vectors along k; b (k, n), whose vectors of 16 bytes
//           along k (KFast) or n are aligned
//   launch  one cluster for 128 columns (times the groups of warps that do not share out k) of a part of a matrix; its
//           blocks share out k
//   traffic b once, a once for every 128 columns; in flight 16 KB of b a warp
//   maths   a warp's sums, then a block's, then a cluster's, each in a fixed order. In float32 16 FFMA for each vector
//   of
//           a, which all lanes read at once, and 64 for each of b; in 16 bits the tensor cores
// E.g. 16 x 4096 @ 4096 x 4096 of float32: 32 clusters of 8 blocks, each 4 warps of 8 stages.
template <typename S>
__global__ __launch_bounds__(S::kThreads, 2) void streamed_kernel(const __grid_constant__ KernelArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) char shared[];
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // tells the compiler that it is the warp's
  const int rank = sm90::cluster_rank();
  const int k_warps = 1 << args.k_warps_log;
  const int columns = S::kColumns << (S::kWarpsLog - args.k_warps_log);  // of the block
  const Place place = place_of(args, blockIdx.x / args.cluster, columns);

  SumsOf<S> sums;
  const int64_t column = place.column + (warp >> args.k_warps_log) * S::kColumns;
  if (column < args.n) {
    const int begin = (place.part * args.cluster + rank) * args.part_k;
    const int end = min(begin + args.part_k, args.whole_k);
    const Copier<S> copier(args, place, column, end);
    const char* const ring = shared + warp * S::kRingBytes;
    const uint32_t ring_address = sm90::shared_address(ring);
    const int stride = k_warps * S::kStageK;
    int k = begin + (warp & (k_warps - 1)) * S::kStageK, next = k, reads = 0, writes = 0;
    const auto copy_next = [&] {
      if (next < end) copier.copy(ring_address + writes * S::kStageBytes, next);
      asm volatile("cp.async.commit_group;" ::: "memory");  // empty at the end, so that the count stays right
      next += stride;
      writes = writes == S::kStages - 1 ? 0 : writes + 1;
    };
#pragma unroll 1
    for (int i = 0; i < S::kStages - 1; ++i) copy_next();
    for (; k < end; k += stride) {
      asm volatile("cp.async.wait_group %0;" ::"n"(S::kStages - 2) : "memory");
      __syncwarp();  // the stage is there, and all have read the one before, whose place is the next's
      copy_next();
      sums.add_stage(ring + reads * S::kStageBytes);
      reads = reads == S::kStages - 1 ? 0 : reads + 1;
    }
  }
  __syncthreads();
  float4* const all = reinterpret_cast<float4*>(shared);  // [warp][row][column]
  sums.store(reinterpret_cast<float*>(all + warp * S::kSumVectors));
  __syncthreads();
  add_warps<S>(all, args.k_warps_log);
  sm90::cluster_barrier();

  // The blocks of a cluster share out its outputs.
  const int outputs = args.m * columns;
  const int share = (outputs + args.cluster - 1) / args.cluster;
  store_outputs<typename S::Element, float>(
      args, place, columns, rank * share + static_cast<int>(threadIdx.x), min(outputs, (rank + 1) * share), S::kThreads,
      [&](int i, int j) {
        const int at = ((j / S::kColumns) << args.k_warps_log) * S::kSumVectors * 4 + i * S::kColumns + j % S::kColumns;
        const uint32_t address = sm90::shared_address(reinterpret_cast<const float*>(all) + at);
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
  sm90::cluster_barrier();  // what others read must not go before
#endif
}

template <typename E, int M, bool KFast>
Variant variant_of() {
  using S = Shape<E, M, KFast>;
  static Kernel kernel(reinterpret_cast<const void*>(&streamed_kernel<S>), S::kShared);
  return {S::kRows, S::kColumns, S::kStageK, S::kWarpsLog, S::kShared, &kernel};
}

template <typename E, int M>
Variant variant_for(bool k_fast) {
  return k_fast ? variant_of<E, M, true>() : variant_of<E, M, false>();
}

Variant variant_for_float32(int64_t m, bool k_fast) {
  return m <= 4   ? variant_for<float, 4>(k_fast)
         : m <= 8 ? variant_for<float, 8>(k_fast)
                  : variant_for<float, 16>(k_fast);
}

}  // namespace

Variant streamed_variant(DLDataType dtype, int64_t m, bool k_fast) {
  if (dtype.bits == 32) return variant_for_float32(m, k_fast);
  return dtype.code == kDLBfloat ? variant_for<device::BFloat16, 16>(k_fast) : variant_for<device::Half, 16>(k_fast);
}

}  // namespace interop::cuda::skinny
