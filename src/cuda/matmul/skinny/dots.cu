/// Products of the fewest rows, where k is the larger operand's unit stride. They are dot products, and read as a copy
/// does.
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/matmul/skinny/skinny.cuh"

namespace interop::cuda::skinny {
namespace {

/// A warp adds up M x kColumns outputs. Of each column it reads kChunks chunks of 512 bytes along k, all in flight at
/// once. Long runs of few columns give the best bandwidth: 64 bytes of each of many columns took up to twice as long on
/// an H200. A `Short` k does not fill two chunks, so there are twice as many columns with one chunk each.
template <typename E, int M, bool Short>
struct Shape {
  using Element = E;
  static constexpr int kRows = M;
  static constexpr int kVector = 16 / sizeof(E);
  static constexpr int kColumnsLog = sizeof(E) == 2 || Short ? 2 : 1, kColumns = 1 << kColumnsLog;
  static constexpr int kChunks = sizeof(E) == 2 || Short ? 1 : 2;
  static constexpr int kChunkK = 32 * kVector, kStageK = kChunks * kChunkK;
  static constexpr int kWarpsLog = 3, kWarps = 1 << kWarpsLog, kThreads = 32 * kWarps;
  static constexpr int kMinBlocks = M == 1 ? 4 : 3;  // 64 or 48 KB are in flight per SM
  static constexpr int kWarpSums = M * kColumns;
  static_assert(kWarpSums <= 16, "each is added up over all lanes");
};

#if __CUDA_ARCH__ >= 800  // other architectures get an empty kernel, which nothing launches

__device__ __forceinline__ void unpack(const uint4& v, float (&to)[4], float) {
  to[0] = __uint_as_float(v.x), to[1] = __uint_as_float(v.y);
  to[2] = __uint_as_float(v.z), to[3] = __uint_as_float(v.w);
}
template <typename E>
__device__ __forceinline__ void unpack(const uint4& v, float (&to)[8], E) {
#pragma unroll
  for (int i = 0; i < 8; ++i) to[i] = device::to_float(E{static_cast<uint16_t>(word(v, i / 2) >> (i % 2 * 16))});
}

template <typename S>
struct Sums {
  float of[S::kColumns][S::kRows] = {};

  /// Adds the products of one chunk.
  __device__ __forceinline__ void add(const uint4 (&b)[S::kColumns], const uint4 (&a)[S::kRows]) {
    float of_a[S::kRows][S::kVector];
#pragma unroll
    for (int row = 0; row < S::kRows; ++row) unpack(a[row], of_a[row], typename S::Element{});
#pragma unroll
    for (int column = 0; column < S::kColumns; ++column) {
      float of_b[S::kVector];
      unpack(b[column], of_b, typename S::Element{});
#pragma unroll
      for (int i = 0; i < S::kVector; ++i) {
#pragma unroll
        for (int row = 0; row < S::kRows; ++row) of[column][row] = fmaf(of_a[row][i], of_b[i], of[column][row]);
      }
    }
  }
};

#endif  // __CUDA_ARCH__ >= 800

// dots_kernel: c = a @ b for every matrix of a batch, m at most kRows; or the partial sums of split-k.
//   in      a (m, k) of any strides; b (k, n), whose vectors of 16 bytes along k are aligned
//   launch  one block for kColumns columns (times the groups of warps that do not share k) of a part of a matrix
//   traffic b once, a once for every block, mostly from L1; in flight 2 KB of b a warp, 24 warps an SM or more
//   maths   a thread's sums, then a warp's, then a block's, each in a fixed order
// E.g. 1 x 4096 @ 4096 x 4096 of float32: 2048 blocks of 8 warps, each 2 stages of 256 k of 2 columns.
template <typename S>
__global__ __launch_bounds__(S::kThreads, S::kMinBlocks) void dots_kernel(const __grid_constant__ KernelArgs args) {
#if __CUDA_ARCH__ >= 800
  using E = typename S::Element;
  __shared__ float shared[S::kWarps][S::kWarpSums];
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // tells the compiler that it is uniform in a warp
  const int lane = threadIdx.x % 32;
  const int k_warps = 1 << args.k_warps_log;
  const int columns_log = S::kColumnsLog + S::kWarpsLog - args.k_warps_log;  // of the block
  const Place place = place_of(args, blockIdx.x, gridDim.x, 1 << columns_log);

  Sums<S> sums;
  const int64_t first = place.column + (warp >> args.k_warps_log) * S::kColumns;
  if (first < args.n) {
    const int begin = place.part * args.part_k;
    const int end = min(begin + args.part_k, args.whole_k);
    const char* b[S::kColumns];
#pragma unroll
    for (int i = 0; i < S::kColumns; ++i) {  // beyond the last column, that one again: the sums are not stored
      b[i] = place.b + min(first + i, args.n - 1) * args.b.mn_stride;
    }
    const auto add_all = [&](auto a_vectors) {
      for (int k = begin + (warp & (k_warps - 1)) * S::kStageK; k < end; k += k_warps * S::kStageK) {
        uint4 of_b[S::kChunks][S::kColumns];
#pragma unroll
        for (int chunk = 0; chunk < S::kChunks; ++chunk) {
          const int at = k + chunk * S::kChunkK + lane * S::kVector;
#pragma unroll
          for (int i = 0; i < S::kColumns; ++i) {
            of_b[chunk][i] = load_once(b[i] + at * int64_t{sizeof(E)}, at < end);
          }
        }
#pragma unroll
        for (int chunk = 0; chunk < S::kChunks; ++chunk) {
          const int at = k + chunk * S::kChunkK + lane * S::kVector;
          uint4 of_a[S::kRows];
#pragma unroll
          for (int row = 0; row < S::kRows; ++row) {
            of_a[row] = read_a<E, decltype(a_vectors)::value>(place.a + row * args.a.mn_stride + at * args.a.k_stride,
                                                              args.a.k_stride, at < end && row < args.m);
          }
          sums.add(of_b[chunk], of_a);
        }
      }
    };
    args.a_vectors ? add_all(std::true_type{}) : add_all(std::false_type{});
  }
#pragma unroll
  for (int i = 0; i < S::kWarpSums; ++i) {
    float sum = sums.of[i % S::kColumns][i / S::kColumns];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) shared[warp][i] = sum;  // [row][column]
  }
  __syncthreads();

  store_outputs<E, float>(args, place, columns_log, threadIdx.x, args.m << columns_log, S::kThreads, [&](int i, int j) {
    const int from = (j >> S::kColumnsLog) << args.k_warps_log, at = i * S::kColumns + j % S::kColumns;
    float of_warp[S::kWarps];
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) of_warp[w] = w < k_warps ? shared[from + w][at] : 0;
    float sum = of_warp[0];
#pragma unroll
    for (int w = 1; w < S::kWarps; ++w) sum += of_warp[w];
    return sum;
  });
#endif
}

template <typename E, int M, bool Short>
Variant variant_of() {
  using S = Shape<E, M, Short>;
  static Kernel kernel(reinterpret_cast<const void*>(&dots_kernel<S>));
  return {S::kRows, S::kColumns, S::kStageK, S::kWarpsLog, 0, &kernel};
}

template <typename E, bool Short = false>
Variant variant_for(int64_t m) {
  if (m == 1) return variant_of<E, 1, Short>();
  if constexpr (sizeof(E) == 4 && !Short) {
    if (m > 2) return variant_of<E, 4, Short>();
  }
  return variant_of<E, 2, Short>();
}

}  // namespace

Variant dots_variant(DLDataType dtype, int64_t m, int64_t k) {
  if (dtype.code == kDLBfloat) return variant_for<device::BFloat16>(m);
  if (dtype.bits == 16) return variant_for<device::Half>(m);
  const Variant variant = variant_for<float>(m);
  return k < variant.stage_k && m <= 2 ? variant_for<float, true>(m) : variant;
}

}  // namespace interop::cuda::skinny
