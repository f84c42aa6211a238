/// Float32 operands made what the TF32 kernels read: rows of k, rounded.
#include "cuda/matmul_pack.h"

#include <cuda_runtime.h>

#include <cstdlib>

#include "cuda/driver_api.h"
#include "cuda/kernel.h"

namespace interop::cuda {
namespace {

constexpr int kTile = 64;  // of mn and of k
constexpr int kThreads = 256;

struct PackArgs {
  Packing operands[2];
  bool k_fast[2];  // do neighbouring threads read neighbours in k (or in mn)?
  int64_t k_tiles[2], mn_tiles[2];
  int64_t plane[2], row[2];
  int64_t first_of_second;  // the blocks before it are the first operand's
};

constexpr uint32_t kInfinity = 0x7f800000u, kQuiet = 0x00400000u, kLower = 0x1fffu;  // what TF32 has not of a float

/// x without its lower bits. NaN stays NaN.
__device__ __forceinline__ float truncated(float x) {
  const uint32_t bits = __float_as_uint(x);
  return __uint_as_float((bits & 0x7fffffffu) > kInfinity ? bits | kQuiet : bits & ~kLower);
}

/// The nearest TF32, but no infinity for a number.
__device__ __forceinline__ float rounded(float x) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) >= kInfinity - (kLower + 1) / 2) return truncated(x);
  return __uint_as_float((bits + (kLower + 1) / 2) & ~kLower);
}

/// What x is more than its high part, truncated(x). It has the sign of x and is zero only for zero, so that in
/// high * low of two operands infinity times a number is the same infinity as in high * high.
__device__ __forceinline__ float low_part(float x) {
  const float high = truncated(x);
  if (isinf(x)) return x;
  const float low = rounded(x - high);
  return low == 0 ? high * 0x1p-30f : low;
}

// pack_kernel: rows of k, rounded to TF32, of one or two operands.
//   in      (mn, k) float32, any strides and batch
//   out     rows of packed_plane(k) floats, zeros beyond k; or of two such planes, the high parts and the low ones
//   launch  one block of kThreads per tile of 64 x 64, the second operand's after the first's
//   traffic reads 4 bytes an element, writes 4 or 8: bound by memory
// A tile passes through shared memory, so that both sides are read and written in neighbours.
__global__ void __launch_bounds__(kThreads) pack_kernel(const __grid_constant__ PackArgs args) {
  __shared__ float tile[kTile][kTile + 1];
  int64_t block = blockIdx.x;
  const int which = block >= args.first_of_second;
  if (which) block -= args.first_of_second;
  const Packing& x = args.operands[which];
  const int64_t k_tiles = args.k_tiles[which], mn_tiles = args.mn_tiles[which];
  const int64_t k0 = block % k_tiles * kTile;
  block /= k_tiles;
  const int64_t mn0 = block % mn_tiles * kTile;
  const int64_t matrix = block / mn_tiles;

  const float* from = x.from + mn0 * x.mn_stride + k0 * x.k_stride;
  int64_t rest = matrix;
#pragma unroll
  for (int i = kPackedBatchDims - 1; i >= 0; --i) {
    if (i >= x.batch_ndim) continue;
    from += rest % x.batch_sizes[i] * x.batch_strides[i];
    rest /= x.batch_sizes[i];
  }
  const int thread = threadIdx.x;
  const bool k_fast = args.k_fast[which];
  const int64_t fast_stride = k_fast ? x.k_stride : x.mn_stride, slow_stride = k_fast ? x.mn_stride : x.k_stride;
  const int64_t k_left = x.k - k0, mn_left = x.mn - mn0;
  const int64_t fast_left = k_fast ? k_left : mn_left, slow_left = k_fast ? mn_left : k_left;
  const int fast = thread % kTile;
#pragma unroll
  for (int i = 0; i < kTile * kTile / kThreads; ++i) {
    const int slow = thread / kTile + i * (kThreads / kTile);
    const bool exists = fast < fast_left && slow < slow_left;
    const float value = exists ? from[fast * fast_stride + slow * slow_stride] : 0.f;
    (k_fast ? tile[slow][fast] : tile[fast][slow]) = value;
  }
  __syncthreads();

  constexpr int kVectors = kTile / 4;
  const int64_t plane = args.plane[which];
  const int k = thread % kVectors * 4;
  if (k0 + k >= plane) return;
#pragma unroll
  for (int i = 0; i < kTile * kVectors / kThreads; ++i) {
    const int mn = thread / kVectors + i * (kThreads / kVectors);
    if (mn >= mn_left) return;
    float* const to = x.to + (matrix * x.mn + mn0 + mn) * args.row[which] + k0 + k;
    const float four[] = {tile[mn][k], tile[mn][k + 1], tile[mn][k + 2], tile[mn][k + 3]};
    if (x.in_two) {
      *reinterpret_cast<float4*>(to) =
          make_float4(truncated(four[0]), truncated(four[1]), truncated(four[2]), truncated(four[3]));
      *reinterpret_cast<float4*>(to + plane) =
          make_float4(low_part(four[0]), low_part(four[1]), low_part(four[2]), low_part(four[3]));
    } else {
      *reinterpret_cast<float4*>(to) =
          make_float4(rounded(four[0]), rounded(four[1]), rounded(four[2]), rounded(four[3]));
    }
  }
}

Kernel g_pack_kernel(reinterpret_cast<const void*>(&pack_kernel));

}  // namespace

int64_t Packing::matrices() const {
  int64_t count = 1;
  for (int i = 0; i < batch_ndim; ++i) count *= batch_sizes[i];
  return count;
}

void launch_packing(const Packing* operands, int count, cudaStream_t stream) {
  PackArgs args{};
  int64_t blocks = 0;
  for (int i = 0; i < count; ++i) {
    const Packing& x = args.operands[i] = operands[i];
    args.k_fast[i] = std::abs(x.k_stride) <= std::abs(x.mn_stride);
    args.plane[i] = packed_plane(x.k);
    args.row[i] = x.row();
    args.k_tiles[i] = (args.plane[i] + kTile - 1) / kTile;
    args.mn_tiles[i] = (x.mn + kTile - 1) / kTile;
    if (i == 1) args.first_of_second = blocks;
    blocks += args.k_tiles[i] * args.mn_tiles[i] * x.matrices();
  }
  if (count == 1) args.first_of_second = blocks;
  const CUfunction function = ready(g_pack_kernel, "packing an operand", "loading the packing kernel");
  void* parameters[] = {&args};
  check(driver().cuLaunchKernel(function, static_cast<unsigned>(blocks), 1, 1, kThreads, 1, 1, 0, stream, parameters,
                                nullptr),
        "packing an operand");
}

}  // namespace interop::cuda
