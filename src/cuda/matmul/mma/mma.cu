/// float16 and bfloat16 products on the tensor cores of sm_80 and later: cp.async, ldmatrix, mma.sync.
#include "cuda/matmul/mma/mma.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <limits>
#include <string>

#include "cuda/driver/driver_api.h"
#include "cuda/driver/kernel.h"
#include "cuda/matmul/blocks.cuh"
#include "cuda/matmul/blocks.h"
#include "cuda/matmul/finish_four.cuh"
#include "cuda/matmul/mma/product.cuh"
#include "cuda/matmul/rates.h"

namespace interop::cuda::mma {
namespace {

using tiled::BlockTile;
using tiled::FinishArgs;
using tiled::kKernelBatchDims;
using tiled::matrices;
using tiled::OutputArgs;

// ---- the kernel's arguments ----

/// One input as a (mn, k) matrix, where mn is m for a and n for b. One of the two has the unit stride: the fast one.
struct OperandArgs {
  const char* data;
  int64_t slow_stride;  // in bytes, as all strides here
  int64_t batch_stride[kKernelBatchDims];
  int k_fast;
  int vectors;  // are all runs of 8 elements along the fast dimension 16-byte aligned? Else 4-byte aligned
};

struct KernelArgs {
  OperandArgs a, b;
  OutputArgs c;
  FinishArgs finish;
  int m, n, k;
  int row_tiles, column_tiles;
  int64_t first_matrix;  // of this launch
  int64_t batch_size[kKernelBatchDims];
};

// ---- the shapes ----

constexpr int kThreads = 128, kK = 32, kStages = 3;
constexpr int kChunk = 16;  // bytes that a thread copies at a time: 8 elements

/// Four warps form a square, and each has a quarter of the tile's outputs.
template <int Size>
struct Shape {
  static constexpr int kSize = Size, kWarp = Size / 2;  // in rows and in columns
  static constexpr int kBytes = Size * kK * 2, kStageBytes = 2 * kBytes;
  static constexpr int kChunks = kBytes / kChunk / kThreads;  // of one operand, by one thread
  static constexpr int kPieces = kWarp / 16;                  // of 16 rows or columns, in a warp's quarter
  static constexpr int kShared = kStages * kStageBytes;
  static constexpr int kStoreBytes = 32 * kWarp * 4;  // of a warp: 32 rows of sums
  static_assert(kShared <= 48 * 1024 && 4 * kStoreBytes <= kShared && kChunks >= 1 && kPieces % 2 == 0);
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

// ---- from global to shared memory ----

// A stage of an operand consists of rows along the fast dimension. If that is k, there is a row of 32 elements for each
// mn; otherwise there is a row of all mn of the tile for each k. The 16-byte chunks of a row are swizzled, so that
// ldmatrix reads 8 chunks below one another from different banks: chunk i of a row of 64 bytes is at i ^ row / 2 % 4,
// and of a longer row at i ^ row % 8.

/// One thread's copies of one operand. The thread's chunks of a stage are a fixed number of rows apart.
template <typename S>
class Copies {
 public:
  /// `from` is the tile's first element; `mn_left` of its rows (a) or columns (b) exist.
  __device__ __forceinline__ Copies(const OperandArgs& args, const char* from, int mn_left, int k)
      : args_(args), k_fast_(args.k_fast) {
    const int row_chunks = k_fast_ ? kK / 8 : S::kSize / 8;
    const int row = threadIdx.x / row_chunks, chunk = threadIdx.x % row_chunks;
    slow_step_ = kThreads / row_chunks;
    slow_bytes_ = slow_step_ * args.slow_stride;
    tile_bytes_ = k_fast_ ? kK * 2 : kK * args.slow_stride;
    fast_left_ = (k_fast_ ? k : mn_left) - chunk * 8;
    slow_left_ = (k_fast_ ? mn_left : k) - row;
    from_ = from + row * args.slow_stride + chunk * kChunk;
    to_ = row * row_chunks * kChunk + (chunk ^ (k_fast_ ? row / 2 % 4 : row % 8)) * kChunk;
  }

  /// Copies the next k tile, with zeros beyond the matrix.
  __device__ __forceinline__ void next(uint32_t stage) {
    const int most = min(max(2 * min(fast_left_, 8), 0), kChunk);
#pragma unroll
    for (int i = 0; i < S::kChunks; ++i) {
      const int bytes = i * slow_step_ < slow_left_ ? most : 0;
      const char* const from = from_ + i * slow_bytes_;
      const uint32_t to = stage + to_ + i * kThreads * kChunk;
      if (args_.vectors) {
        tiled::copy_or_zero<16>(to, from, bytes);
      } else {
#pragma unroll 1
        for (int j = 0; j < kChunk; j += 4) {
          tiled::copy_or_zero<4>(to + j, from + j, min(max(bytes - j, 0), 4));
        }
      }
    }
    from_ += tile_bytes_;
    (k_fast_ ? fast_left_ : slow_left_) -= kK;
  }

 private:
  const OperandArgs& args_;
  bool k_fast_;
  const char* from_;
  uint32_t to_;
  int64_t slow_bytes_, tile_bytes_;  // from one chunk, and one k tile, to the next
  int slow_step_;                    // rows from one chunk to the next
  int fast_left_, slow_left_;        // elements and rows that exist, from the first chunk on
};

// ---- from shared memory to registers ----

/// Loads four 8 x 8 matrices. They are transposed where the rows of shared memory are k, so that a register holds
/// neighbours in k there, too.
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t from, int k_fast) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.s32 p, %5, 0;\n"
      "@p ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
      "@!p ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
      : "r"(from), "r"(k_fast)
      : "memory");
}

/// The pieces of one operand that a warp multiplies. Each is 16 of mn by 16 of k, in four registers: the (low, low),
/// (high, low), (low, high) and (high, high) halves of (mn, k).
template <typename S>
class Fragments {
 public:
  uint32_t values[S::kPieces][4];

  /// `first` is where the warp's quarter begins, in mn.
  __device__ __forceinline__ Fragments(const OperandArgs& args, int first) : k_fast_(args.k_fast) {
    const int lane = threadIdx.x % 32;
    if (k_fast_) {
      const int row = first + lane % 16;
      place_ = row * 64 + (lane / 16 ^ row / 2 % 4) * kChunk;
    } else {
      const int row = lane % 8 + lane / 16 * 8;
      place_ = row * S::kSize * 2 + ((first / 8 + lane / 8 % 2) ^ row % 8) * kChunk;
    }
  }

  /// `step`: the first or the second 16 of k.
  __device__ __forceinline__ void load(uint32_t stage, int step) {
#pragma unroll
    for (int i = 0; i < S::kPieces; ++i) {
      // The swizzle is an exclusive or, and so are steps along a row.
      const uint32_t place =
          k_fast_ ? (place_ ^ step * 2 * kChunk) + i * 16 * 64 : (place_ ^ i * 2 * kChunk) + step * 16 * S::kSize * 2;
      load_matrices(values[i], stage + place, k_fast_);
    }
  }

 private:
  int k_fast_;
  uint32_t place_;
};

// ---- a block's tile ----

__device__ __forceinline__ const char* first_element(const OperandArgs& args, const BlockTile& tile, int mn) {
  const char* data = args.data + mn * (args.k_fast ? args.slow_stride : 2);
#pragma unroll
  for (int i = 0; i < kKernelBatchDims; ++i) data += tile.batch[i] * args.batch_stride[i];
  return data;
}

/// Finishes and stores a warp's quarter of the sums. 32 rows at a time go through its shared memory, so that a thread
/// then has four neighbours of a row, and the stores are coalesced.
template <typename S, typename T>
__device__ __forceinline__ void store(const KernelArgs& args, float* buffer,
                                      const float (&sums)[S::kPieces][2 * S::kPieces][4], const BlockTile& tile) {
  constexpr int kVectors = S::kWarp / 4;  // in a row
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_row = tile.row + warp / 2 * S::kWarp, first_column = tile.column + warp % 2 * S::kWarp;
  // Vectors of four are swizzled, so that the rows that a warp writes at a time are in different banks.
  const auto vector = [buffer](int row, int index) { return buffer + row * S::kWarp + (index ^ row % 4 * 2) * 4; };
  const tiled::Factors factors(args.finish);
#pragma unroll 1
  for (int part = 0; part < S::kPieces / 2; ++part) {
    __syncwarp();  // all have read the part before
#pragma unroll
    for (int i = 0; i < S::kPieces; ++i) {  // registers cannot be indexed
      if (i / 2 != part) continue;
#pragma unroll
      for (int j = 0; j < 2 * S::kPieces; ++j) {
        const int row = i % 2 * 16 + lane / 4, index = 2 * j + lane % 4 / 2, half = lane % 2 * 2;
        *reinterpret_cast<float2*>(vector(row, index) + half) = make_float2(sums[i][j][0], sums[i][j][1]);
        *reinterpret_cast<float2*>(vector(row + 8, index) + half) = make_float2(sums[i][j][2], sums[i][j][3]);
      }
    }
    __syncwarp();
    const int column = first_column + lane % kVectors * 4;
    const int count = min(args.n - column, 4);
#pragma unroll 2
    for (int i = lane / kVectors; i < 32; i += 32 / kVectors) {
      const int row = first_row + part * 32 + i;
      const float4 four = *reinterpret_cast<const float4*>(vector(i, lane % kVectors));
      float values[4] = {four.x, four.y, four.z, four.w};
      if (row < args.m && count > 0) {
        tiled::finish_four<T>(args.finish, args.c, factors, values, tile.batch, row, column, count);
      }
    }
  }
}

#endif  // __CUDA_ARCH__ >= 800

// mma_kernel: c = a @ b for every matrix of the batch.
//   in      a (m, k), b (k, n) T, one unit stride in each, 4-byte aligned
//   out     c (m, n) T or float32, any strides, finished as `FinishArgs` says
//   launch  one block of kThreads per tile of c, kShared dynamic shared memory; two blocks an SM
//   maths   float32 sums in one fixed order
// Shared memory holds a ring of kStages k tiles: kStages - 1 are in flight while one is multiplied.
template <typename S, typename T>
__global__ void __launch_bounds__(kThreads, 2) mma_kernel(const __grid_constant__ KernelArgs args) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) char shared[];
  const auto stages = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const BlockTile tile = tiled::tile_of_block<S::kSize, S::kSize>(args);
  const int warp = threadIdx.x / 32;
  Copies<S> a(args.a, first_element(args.a, tile, tile.row), args.m - tile.row, args.k);
  Copies<S> b(args.b, first_element(args.b, tile, tile.column), args.n - tile.column, args.k);
  Fragments<S> rows(args.a, warp / 2 * S::kWarp), columns(args.b, warp % 2 * S::kWarp);
  float sums[S::kPieces][2 * S::kPieces][4] = {};

  int to_copy = (args.k + kK - 1) / kK;
  const int k_tiles = to_copy;
  uint32_t free_stage = stages;
  const auto next_of = [&](uint32_t stage) {
    return stage == stages + (kStages - 1) * S::kStageBytes ? stages : stage + S::kStageBytes;
  };
  const auto copy_next = [&] {
    if (to_copy > 0) {
      a.next(free_stage);
      b.next(free_stage + S::kBytes);
      --to_copy;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");  // a group is counted even if it is empty, at the end
    free_stage = next_of(free_stage);
  };

  const auto multiply = [&] {
#pragma unroll
    for (int i = 0; i < S::kPieces; ++i) {
#pragma unroll
      for (int j = 0; j < 2 * S::kPieces; ++j) {
        product<T>(sums[i][j], rows.values[i], columns.values[j / 2][j % 2], columns.values[j / 2][j % 2 + 2]);
      }
    }
  };
  const auto load = [&](uint32_t stage, int step) {
    rows.load(stage, step);
    columns.load(stage + S::kBytes, step);
  };

  uint32_t stage = stages;
#pragma unroll 1
  for (int k_tile = 1 - kStages; k_tile < k_tiles; ++k_tile) {
    if (k_tile >= 0) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
      __syncthreads();  // the tile has arrived for all threads, and all have finished the one before, which is free
      load(stage, 0);
    }
    copy_next();
    if (k_tile < 0) continue;  // only the first tiles are in flight
    multiply();
#pragma unroll
    for (int step = 1; step < kK / 16; ++step) {
      load(stage, step);
      multiply();
    }
    stage = next_of(stage);
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();  // the stages are free
  store<S, T>(args, reinterpret_cast<float*>(shared + warp * S::kStoreBytes), sums, tile);
#endif
}

// ---- the variants ----

/// A shape, and about what share of an SM's peak its products reach.
struct Variant {
  const char* name;
  int size, shared_bytes;
  double rate;
  Kernel* kernels[2];  // [bfloat16]
};

template <typename S, typename T>
Kernel* kernel_of() {
  static Kernel kernel(reinterpret_cast<const void*>(&mma_kernel<S, T>));
  return &kernel;
}

template <typename S>
Variant variant_of(const char* name, double rate) {
  return {name, S::kSize, S::kShared, rate, {kernel_of<S, __half>(), kernel_of<S, __nv_bfloat16>()}};
}

constexpr int kVariants = 2;

const Variant* variants() {
  static const Variant list[kVariants] = {
      variant_of<Shape<128>>("128x128x32", rates::kMma128x128),
      variant_of<Shape<64>>("64x64x32", rates::kMma64x64),
  };
  return list;
}

// ---- what is served ----

bool is_bfloat16(const Gemm& gemm) { return gemm.dtype.code == kDLBfloat; }

/// One of a and b as a (mn, k) matrix.
struct Layout {
  bool served = false, k_fast = false;
  int64_t slow_stride = 0;  // in elements
  int64_t strides = 0;      // all that are not the unit one, or'ed: their common alignment
};

Layout layout_of(const Gemm& gemm, const void* data, int64_t mn, int64_t mn_stride, int64_t k_stride,
                 int64_t BatchDim::* batch_stride) {
  Layout layout;
  if (gemm.k == 1) k_stride = mn_stride == 1 ? 0 : 1;  // the stride of a dimension of size 1 is not used
  if (mn == 1) mn_stride = k_stride == 1 ? 0 : 1;
  layout.k_fast = k_stride == 1;
  layout.slow_stride = layout.k_fast ? mn_stride : k_stride;
  layout.strides = layout.slow_stride;
  for (int i = 0; i < gemm.batch_ndim; ++i) layout.strides |= gemm.batch[i].*batch_stride;
  layout.served =
      (layout.k_fast || mn_stride == 1) && layout.strides % 2 == 0 && reinterpret_cast<uintptr_t>(data) % 4 == 0;
  return layout;
}

Layout layout_a(const Gemm& gemm) {
  return layout_of(gemm, gemm.a, gemm.m, gemm.a_strides.row, gemm.a_strides.column, &BatchDim::a_stride);
}
Layout layout_b(const Gemm& gemm) {
  return layout_of(gemm, gemm.b, gemm.n, gemm.b_strides.column, gemm.b_strides.row, &BatchDim::b_stride);
}

// ---- the launcher ----

OperandArgs operand_args(const void* data, const Layout& layout) {
  OperandArgs args{};
  args.data = static_cast<const char*>(data);
  args.slow_stride = layout.slow_stride * 2;
  args.k_fast = layout.k_fast;
  args.vectors = layout.strides % 8 == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0;
  return args;
}

/// Launches the matrices of batch dimensions [first, batch_ndim), at most kKernelBatchDims of them.
void launch_batch(const Gemm& gemm, int first, const Variant& variant, cudaStream_t stream) {
  KernelArgs args{};
  args.a = operand_args(gemm.a, layout_a(gemm));
  args.b = operand_args(gemm.b, layout_b(gemm));
  args.c = tiled::output_args(gemm.c, gemm.c_strides, item_bytes(gemm.out_dtype));
  args.finish = tiled::finish_args(gemm, false);
  const CUfunction function =
      ready(*variant.kernels[is_bfloat16(gemm)], "launching a product", "loading the matmul kernel");
  tiled::launch_blocks(args, gemm, first, variant.size, variant.size, kThreads, variant.shared_bytes, function, stream);
}

}  // namespace

bool serves(const Gemm& gemm, const Device& device) {
  const bool is_half = gemm.dtype.code == kDLFloat && gemm.dtype.bits == 16;
  if ((!is_half && !is_bfloat16(gemm)) || gemm.b_dtype != gemm.dtype) return false;
  if (gemm.out_dtype != gemm.dtype && gemm.out_dtype != kFloat32) return false;
  if (gemm.m < 1 || gemm.n < 1 || gemm.k < 1 || matrices(gemm) < 1) return false;
  constexpr int64_t kMost = std::numeric_limits<int>::max() - 1024;  // coordinates and tiles are 32-bit
  if (gemm.m > kMost || gemm.n > kMost || gemm.k > kMost) return false;
  if (ceil_div(gemm.m, 64) * ceil_div(gemm.n, 64) > kMost) return false;
  return layout_a(gemm).served && layout_b(gemm).served && device.has_sm80_code();
}

Estimate choose(const Gemm& gemm, const Device& device) {
  const int sms = device.multiprocessors();
  Estimate best{kVariants - 1, std::numeric_limits<double>::infinity()};
  for (int i = 0; i < kVariants; ++i) {
    const Variant& variant = variants()[i];
    const int64_t tiles = ceil_div(gemm.m, variant.size) * ceil_div(gemm.n, variant.size) * matrices(gemm);
    const double us = static_cast<double>(ceil_div(tiles, sms)) * variant.size * variant.size * gemm.k / variant.rate /
                      rates::kMmaRate;
    if (us < best.us) best = {i, us};
  }
  return best;
}

void launch_variant(int variant, const Gemm& gemm, cudaStream_t stream) {
  // Batch dimensions beyond what the kernel takes are walked here, one launch or more for each of their matrices.
  const int walked = std::max(0, gemm.batch_ndim - kKernelBatchDims);
  tiled::walk_batch(gemm, walked, [&](const Gemm& part) { launch_batch(part, walked, variants()[variant], stream); });
}

std::string describe(const Gemm& gemm, int variant) {
  return std::string("mma ") + variant_name(variant) + ", " + dtype_name(gemm.dtype);
}

int variant_count() { return kVariants; }

const char* variant_name(int variant) { return variants()[variant].name; }

}  // namespace interop::cuda::mma
