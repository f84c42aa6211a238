/// Packs operands into what the tensor-core kernels of sm_90 read: rows of k that start at multiples of 128 bytes.
#include "cuda/matmul/pack.h"

#include <interop/error.h>

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <type_traits>

#include "cuda/driver/driver_api.h"
#include "cuda/driver/kernel.h"

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

// ---- packing elements: each `write` packs x[0], x[1], ... into 16 bytes of every plane ----

constexpr uint32_t kInfinity = 0x7f800000u, kQuiet = 0x00400000u, kLower = 0x1fffu;  // kLower: the bits that TF32 drops

/// x without its lower bits. NaN stays NaN.
__device__ __forceinline__ float truncated(float x) {
  const uint32_t bits = __float_as_uint(x);
  return __uint_as_float((bits & 0x7fffffffu) > kInfinity ? bits | kQuiet : bits & ~kLower);
}

/// The nearest TF32 number. A finite x never becomes infinity.
__device__ __forceinline__ float rounded(float x) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) >= kInfinity - (kLower + 1) / 2) return truncated(x);
  return __uint_as_float((bits + (kLower + 1) / 2) & ~kLower);
}

/// The low part of x: what its high part, truncated(x), leaves. It has the sign of x and is zero only for zero. So
/// where one operand is infinite, high * low is the same infinity as high * high.
__device__ __forceinline__ float low_part(float x) {
  const float high = truncated(x);
  if (isinf(x)) return x;
  const float low = rounded(x - high);
  return low == 0 ? high * 0x1p-30f : low;
}

struct ToTf32 {
  using Element = float;
  static constexpr int kCount = 4;
  __device__ static void write(const float* x, float* to, int64_t, const Packing&) {
    *reinterpret_cast<float4*>(to) = make_float4(rounded(x[0]), rounded(x[1]), rounded(x[2]), rounded(x[3]));
  }
};

struct ToTf32InTwo {
  using Element = float;
  static constexpr int kCount = 4;
  __device__ static void write(const float* x, float* to, int64_t plane, const Packing&) {
    *reinterpret_cast<float4*>(to) = make_float4(truncated(x[0]), truncated(x[1]), truncated(x[2]), truncated(x[3]));
    *reinterpret_cast<float4*>(to + plane) =
        make_float4(low_part(x[0]), low_part(x[1]), low_part(x[2]), low_part(x[3]));
  }
};

struct As16Bits {
  using Element = uint16_t;
  static constexpr int kCount = 8;
  __device__ static void write(const uint16_t* x, uint16_t* to, int64_t, const Packing&) {
    alignas(16) uint16_t eight[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) eight[i] = x[i];
    *reinterpret_cast<uint4*>(to) = reinterpret_cast<const uint4&>(eight);
  }
};

template <typename Integer>
struct ToBytes {
  using Element = Integer;
  static constexpr int kCount = 16;
  __device__ static void write(const Integer* x, uint8_t* to, int64_t plane, const Packing& packing) {
#pragma unroll
    for (int at = 0; at < static_cast<int>(sizeof(Integer)); ++at) {
      if (at >= packing.planes) break;
      uint32_t words[4] = {};
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        uint32_t byte = static_cast<uint32_t>(x[i] >> (8 * at)) & 0xff;
        if (sizeof(Integer) == 1 && packing.is_bool) byte = byte != 0;
        words[i / 4] |= byte << (i % 4 * 8);
      }
      *reinterpret_cast<uint4*>(to + at * plane) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
};

// pack_kernel: rows of k, of one or two operands.
//   in      (mn, k) elements, any strides and batch
//   out     rows of planes of Packing::plane() packed elements, zeros beyond k
//   launch  one block of kThreads per tile of 64 x 64, the second operand's after the first's
//   traffic reads each element once, writes each of its planes once: bound by memory
// A tile passes through shared memory, so that both reads and writes are coalesced.
template <typename To>
__global__ void __launch_bounds__(kThreads) pack_kernel(const __grid_constant__ PackArgs args) {
  using Element = typename To::Element;
  __shared__ Element tile[kTile][kTile + 1];
  int64_t block = blockIdx.x;
  const int which = block >= args.first_of_second;
  if (which) block -= args.first_of_second;
  const Packing& x = args.operands[which];
  const int64_t k_tiles = args.k_tiles[which], mn_tiles = args.mn_tiles[which];
  const int64_t k0 = block % k_tiles * kTile;
  block /= k_tiles;
  const int64_t mn0 = block % mn_tiles * kTile;
  const int64_t matrix = block / mn_tiles;

  const Element* from = static_cast<const Element*>(x.from) + mn0 * x.mn_stride + k0 * x.k_stride;
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
    const Element value = exists ? from[fast * fast_stride + slow * slow_stride] : Element(0);
    (k_fast ? tile[slow][fast] : tile[fast][slow]) = value;
  }
  __syncthreads();

  using Out = std::conditional_t<To::kCount == 16, uint8_t, Element>;
  constexpr int kVectors = kTile / To::kCount;
  const int64_t plane = args.plane[which];
  const int k = thread % kVectors * To::kCount;
  if (k0 + k >= plane) return;
#pragma unroll
  for (int i = 0; i < kTile * kVectors / kThreads; ++i) {
    const int mn = thread / kVectors + i * (kThreads / kVectors);
    if (mn >= mn_left) return;
    To::write(&tile[mn][k], static_cast<Out*>(x.to) + (matrix * x.mn + mn0 + mn) * args.row[which] + k0 + k, plane, x);
  }
}

template <typename To>
Kernel& kernel_of() {
  static Kernel kernel(reinterpret_cast<const void*>(&pack_kernel<To>));
  return kernel;
}

Kernel& kernel_for(const Packing& packing) {
  switch (packing.as) {
    case Packed::tf32:
      return kernel_of<ToTf32>();
    case Packed::tf32_in_two:
      return kernel_of<ToTf32InTwo>();
    case Packed::bits_16:
      return kernel_of<As16Bits>();
    default:
      return packing.item == 1   ? kernel_of<ToBytes<uint8_t>>()
             : packing.item == 2 ? kernel_of<ToBytes<uint16_t>>()
             : packing.item == 4 ? kernel_of<ToBytes<uint32_t>>()
                                 : kernel_of<ToBytes<uint64_t>>();
  }
}

/// Queues one kernel that packs `count` operands, 1 or 2, of the same dtype and in the same way.
void launch_packing(const Packing* operands, int count, cudaStream_t stream) {
  PackArgs args{};
  int64_t blocks = 0;
  for (int i = 0; i < count; ++i) {
    const Packing& x = args.operands[i] = operands[i];
    args.k_fast[i] = std::abs(x.k_stride) <= std::abs(x.mn_stride);
    args.plane[i] = x.plane();
    args.row[i] = x.row();
    args.k_tiles[i] = ceil_div(args.plane[i], kTile);
    args.mn_tiles[i] = ceil_div(x.mn, kTile);
    if (i == 1) args.first_of_second = blocks;
    blocks += args.k_tiles[i] * args.mn_tiles[i] * x.matrices();
  }
  if (count == 1) args.first_of_second = blocks;
  const CUfunction function = ready(kernel_for(operands[0]), "packing an operand", "loading the packing kernel");
  void* parameters[] = {&args};
  check(driver().cuLaunchKernel(function, static_cast<unsigned>(blocks), 1, 1, kThreads, 1, 1, 0, stream, parameters,
                                nullptr),
        "packing an operand");
}

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

/// The packing of an operand; `stride` is its stride of a BatchDim. Broadcast dimensions are packed once.
Packing packing_of(const Gemm& gemm, const void* data, DLDataType dtype, int64_t mn, int64_t mn_stride,
                   int64_t k_stride, int64_t BatchDim::* stride, Packed as) {
  Packing x;
  x.from = data;
  x.mn = mn;
  x.k = gemm.k;
  x.mn_stride = mn_stride;
  x.k_stride = k_stride;
  x.as = as;
  x.item = dtype.bits / 8;
  x.is_bool = dtype.code == kDLBool;
  if (as == Packed::tf32_in_two) x.planes = 2;
  if (as == Packed::bytes) x.planes = std::min(x.item, gemm.out_dtype.bits / 8);
  for (int i = 0; i < gemm.batch_ndim; ++i) {
    // A product with more dimensions is not packed (see can_pack), but the length of its rows is asked for.
    if (gemm.batch[i].*stride == 0 || x.batch_ndim == kPackedBatchDims) continue;
    x.batch_sizes[x.batch_ndim] = gemm.batch[i].size;
    x.batch_strides[x.batch_ndim++] = gemm.batch[i].*stride;
  }
  return x;
}

/// Gives an operand its place in the workspace, and `gemm` the batch strides of the packed copy.
void place(Packing& x, char*& memory, Gemm& gemm, int64_t BatchDim::* stride) {
  x.to = memory;
  memory += aligned(x.bytes());
  int64_t step = x.mn * x.row();
  for (int i = gemm.batch_ndim - 1; i >= 0; --i) {
    if (gemm.batch[i].*stride == 0) continue;
    gemm.batch[i].*stride = step;
    step *= gemm.batch[i].size;
  }
}

int varying(const Gemm& gemm, int64_t BatchDim::* stride) {
  int count = 0;
  for (int i = 0; i < gemm.batch_ndim; ++i) count += gemm.batch[i].*stride != 0;
  return count;
}

}  // namespace

int64_t Packing::plane() const {
  const int64_t line = 128 / packed_item();
  return ceil_div(k, line) * line;
}

int64_t Packing::matrices() const {
  int64_t count = 1;
  for (int i = 0; i < batch_ndim; ++i) count *= batch_sizes[i];
  return count;
}

Packing packing_of_a(const Gemm& gemm, Packed as) {
  return packing_of(gemm, gemm.a, gemm.dtype, gemm.m, gemm.a_strides.row, gemm.a_strides.column, &BatchDim::a_stride,
                    as);
}
Packing packing_of_b(const Gemm& gemm, Packed as) {
  return packing_of(gemm, gemm.b, gemm.b_dtype, gemm.n, gemm.b_strides.column, gemm.b_strides.row, &BatchDim::b_stride,
                    as);
}

bool can_pack(const Gemm& gemm, bool packs_a, bool packs_b) {
  if (packs_a && varying(gemm, &BatchDim::a_stride) > kPackedBatchDims) return false;
  return !packs_b || varying(gemm, &BatchDim::b_stride) <= kPackedBatchDims;
}

std::size_t packed_bytes(const Gemm& gemm, bool packs_a, bool packs_b, Packed as) {
  return (packs_a ? aligned(packing_of_a(gemm, as).bytes()) : 0) +
         (packs_b ? aligned(packing_of_b(gemm, as).bytes()) : 0);
}

void pack(Gemm& gemm, bool packs_a, bool packs_b, Packed as, void* workspace, cudaStream_t stream) {
  Packing operands[2];
  int count = 0;
  char* memory = static_cast<char*>(workspace);
  if (packs_a) {
    Packing& x = operands[count++] = packing_of_a(gemm, as);
    place(x, memory, gemm, &BatchDim::a_stride);
    gemm.a = x.to;
    gemm.a_strides = {x.row(), 1};
  }
  if (packs_b) {
    Packing& x = operands[count++] = packing_of_b(gemm, as);
    place(x, memory, gemm, &BatchDim::b_stride);
    gemm.b = x.to;
    gemm.b_strides = {1, x.row()};
  }
  if (count > 0) launch_packing(operands, count, stream);
}

}  // namespace interop::cuda
