/// Batches of small products of 16-bit floats: a warp computes whole products, straight from global memory.
#include "cuda/matmul/mma/many.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <limits>
#include <string>

#include "cuda/driver/driver_api.h"
#include "cuda/driver/kernel.h"
#include "cuda/matmul/finish_four.cuh"
#include "cuda/matmul/mma/product.cuh"

namespace interop::cuda::mma_many {
namespace {

using tiled::kKernelBatchDims;
using tiled::matrices;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int64_t kLeastMatrices = 32, kMostRows = 32, kMostK = 64;

/// One array of matrices. Rows are along the unit stride; strides are in bytes.
struct MatrixArgs {
  const char* data;
  int64_t row_stride;
  int64_t batch_stride[kKernelBatchDims];
};

struct KernelArgs {
  MatrixArgs a, b, c;
  int m, n, k;
  int64_t matrices;
  int batch_ndim;
  int64_t batch_size[kKernelBatchDims];
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

// The order in which lanes see a dimension. An instruction takes 16 of k: with g = lane / 4 and t = lane % 4, a lane
// has positions 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. These are its neighbours 4 t to 4 t + 3, so that it reads and stores
// 8 bytes at a time. Where a dimension is across such rows, position g of the two halves is then the row below.

__device__ __forceinline__ int row_at(int g, int half) { return g / 2 * 4 + g % 2 + half * 2; }

/// Transposes a matrix of 8 x 8 elements among the lanes.
__device__ __forceinline__ uint32_t transposed(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

__device__ __forceinline__ const char* matrix_of(const KernelArgs& args, const MatrixArgs& array, int64_t matrix) {
  return array.data + (args.batch_ndim <= 1
                           ? matrix * array.batch_stride[0]
                           : tiled::matrix_offset(matrix, args.batch_ndim, args.batch_size, array.batch_stride));
}

/// 16 of mn by 16 of k of an operand, as the instruction takes them: [half of mn][half of k].
struct Block {
  uint32_t at[2][2];
};

/// Loads a block, with zeros beyond the ends. KFast: k is the unit stride, and mn is in the order of `row_at` if
/// Permuted. Otherwise, mn is the unit stride, and always in that order.
template <bool KFast, bool Permuted>
__device__ __forceinline__ Block load(const MatrixArgs& array, const char* matrix, int mn, int k, int mn_end,
                                      int k_end) {
  const int g = threadIdx.x % 32 / 4, four = threadIdx.x % 4 * 4;
  const int first = (KFast ? k : mn) + four, row = KFast ? mn : k;
  const int rows_end = KFast ? mn_end : k_end;
  const bool exists = first < (KFast ? k_end : mn_end);
  Block block;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = row + (KFast && !Permuted ? g + half * 8 : row_at(g, half));
    uint2 v = make_uint2(0, 0);
    if (exists && at < rows_end) v = __ldg(reinterpret_cast<const uint2*>(matrix + at * array.row_stride + first * 2));
    if constexpr (KFast) {
      block.at[half][0] = v.x, block.at[half][1] = v.y;
    } else {
      block.at[0][half] = transposed(v.x), block.at[1][half] = transposed(v.y);
    }
  }
  return block;
}

#endif  // __CUDA_ARCH__ >= 800

// many_kernel: c = a @ b for every matrix of the batch, m and n at most 16 * Blocks.
//   in      a (m, k), b (k, n) T, 8-byte aligned along their unit stride
//   out     c (m, n) T, n the unit stride
//   launch  one warp for each product; no shared memory
//   traffic a, b and c once, in whole rows
//   maths   float32 sums in one fixed order
// E.g. 20000 products of 16 x 16 x 16: 2500 blocks; a warp reads 256 bytes at a time, and multiplies twice.
template <typename T, bool AKFast, bool BKFast, int Blocks>
__global__ void __launch_bounds__(kThreads) many_kernel(const __grid_constant__ KernelArgs args) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const int64_t matrix = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (matrix >= args.matrices) return;
  const char* const a = matrix_of(args, args.a, matrix);
  const char* const b = matrix_of(args, args.b, matrix);
  float sums[Blocks][Blocks][2][4] = {};  // [rows][columns][half of the columns]
#pragma unroll 2
  for (int k = 0; k < args.k; k += 16) {
    Block of_a[Blocks], of_b[Blocks];
#pragma unroll
    for (int i = 0; i < Blocks; ++i) {
      of_a[i] = load<AKFast, false>(args.a, a, i * 16, k, args.m, args.k);
      of_b[i] = load<BKFast, true>(args.b, b, i * 16, k, args.n, args.k);
    }
#pragma unroll
    for (int i = 0; i < Blocks; ++i) {
      const uint32_t rows[4] = {of_a[i].at[0][0], of_a[i].at[1][0], of_a[i].at[0][1], of_a[i].at[1][1]};
#pragma unroll
      for (int j = 0; j < Blocks; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          mma::product<T>(sums[i][j][half], rows, of_b[j].at[half][0], of_b[j].at[half][1]);
        }
      }
    }
  }
  char* const c = const_cast<char*>(matrix_of(args, args.c, matrix));
  const int g = threadIdx.x % 32 / 4, four = threadIdx.x % 4 * 4;
#pragma unroll
  for (int i = 0; i < Blocks; ++i) {
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
      const int row = i * 16 + (AKFast ? g + lower * 8 : row_at(g, lower));
#pragma unroll
      for (int j = 0; j < Blocks; ++j) {
        const int column = j * 16 + four;
        if (row >= args.m || column >= args.n) continue;
        const auto& halves = sums[i][j];
        *reinterpret_cast<uint2*>(c + row * args.c.row_stride + column * 2) =
            make_uint2(tiled::rounded_pair<T>(halves[0][2 * lower], halves[0][2 * lower + 1]),
                       tiled::rounded_pair<T>(halves[1][2 * lower], halves[1][2 * lower + 1]));
      }
    }
  }
#endif
}

// ---- the variants ----

template <typename T, bool AKFast, bool BKFast, int Blocks>
Kernel& kernel_of() {
  static Kernel kernel(reinterpret_cast<const void*>(&many_kernel<T, AKFast, BKFast, Blocks>));
  return kernel;
}

template <typename T, int Blocks>
Kernel& kernel_for(bool a_k_fast, bool b_k_fast) {
  if (a_k_fast) return b_k_fast ? kernel_of<T, true, true, Blocks>() : kernel_of<T, true, false, Blocks>();
  return b_k_fast ? kernel_of<T, false, true, Blocks>() : kernel_of<T, false, false, Blocks>();
}

template <typename T>
Kernel& kernel_for(bool a_k_fast, bool b_k_fast, int blocks) {
  return blocks == 1 ? kernel_for<T, 1>(a_k_fast, b_k_fast) : kernel_for<T, 2>(a_k_fast, b_k_fast);
}

int blocks_of(const Gemm& gemm) { return gemm.m <= 16 && gemm.n <= 16 ? 1 : 2; }
bool is_bfloat16(const Gemm& gemm) { return gemm.dtype.code == kDLBfloat; }

// ---- what is served ----

/// May the matrices be read in fours along the dimension of this length, whose stride is the unit one?
bool has_fours(const Gemm& gemm, const void* data, int64_t length, int64_t stride, int64_t rows, int64_t row_stride,
               int64_t BatchDim::* batch_stride) {
  if (stride != 1 || length % 4 != 0) return false;
  int64_t strides = rows > 1 ? row_stride : 0;
  for (int i = 0; i < gemm.batch_ndim; ++i) strides |= gemm.batch[i].*batch_stride;
  return strides % 4 == 0 && reinterpret_cast<uintptr_t>(data) % 8 == 0;
}

bool has_fours_of_a(const Gemm& gemm, bool k_fast) {
  const MatrixStrides& s = gemm.a_strides;
  return k_fast ? has_fours(gemm, gemm.a, gemm.k, s.column, gemm.m, s.row, &BatchDim::a_stride)
                : has_fours(gemm, gemm.a, gemm.m, s.row, gemm.k, s.column, &BatchDim::a_stride);
}

bool has_fours_of_b(const Gemm& gemm, bool k_fast) {
  const MatrixStrides& s = gemm.b_strides;
  return k_fast ? has_fours(gemm, gemm.b, gemm.k, s.row, gemm.n, s.column, &BatchDim::b_stride)
                : has_fours(gemm, gemm.b, gemm.n, s.column, gemm.k, s.row, &BatchDim::b_stride);
}

}  // namespace

bool serves(const Gemm& gemm, const Device& device) {
  const bool is_half = gemm.dtype.code == kDLFloat && gemm.dtype.bits == 16;
  if ((!is_half && !is_bfloat16(gemm)) || gemm.b_dtype != gemm.dtype || gemm.out_dtype != gemm.dtype) return false;
  if (gemm.m < 1 || gemm.n < 1 || gemm.k < 1 || gemm.m > kMostRows || gemm.n > kMostRows || gemm.k > kMostK)
    return false;
  const int64_t count = matrices(gemm);
  if (count < kLeastMatrices || ceil_div(count, kWarps) > std::numeric_limits<int>::max()) return false;
  if (gemm.batch_ndim > kKernelBatchDims || !gemm.is_plain() || gemm.b_conjugated) return false;
  return (has_fours_of_a(gemm, true) || has_fours_of_a(gemm, false)) &&
         (has_fours_of_b(gemm, true) || has_fours_of_b(gemm, false)) &&
         has_fours(gemm, gemm.c, gemm.n, gemm.c_strides.column, gemm.m, gemm.c_strides.row, &BatchDim::c_stride) &&
         device.has_sm80_code();
}

void launch(const Gemm& gemm, cudaStream_t stream) {
  const bool a_k_fast = has_fours_of_a(gemm, true), b_k_fast = has_fours_of_b(gemm, true);
  KernelArgs args{};
  args.a = {static_cast<const char*>(gemm.a), 2 * (a_k_fast ? gemm.a_strides.row : gemm.a_strides.column), {}};
  args.b = {static_cast<const char*>(gemm.b), 2 * (b_k_fast ? gemm.b_strides.column : gemm.b_strides.row), {}};
  args.c = {static_cast<const char*>(gemm.c), 2 * gemm.c_strides.row, {}};
  args.m = static_cast<int>(gemm.m);
  args.n = static_cast<int>(gemm.n);
  args.k = static_cast<int>(gemm.k);
  args.matrices = matrices(gemm);
  args.batch_ndim = gemm.batch_ndim;
  for (int i = 0; i < gemm.batch_ndim; ++i) {
    args.batch_size[i] = gemm.batch[i].size;
    args.a.batch_stride[i] = 2 * gemm.batch[i].a_stride;
    args.b.batch_stride[i] = 2 * gemm.batch[i].b_stride;
    args.c.batch_stride[i] = 2 * gemm.batch[i].c_stride;
  }
  Kernel& kernel = is_bfloat16(gemm) ? kernel_for<__nv_bfloat16>(a_k_fast, b_k_fast, blocks_of(gemm))
                                     : kernel_for<__half>(a_k_fast, b_k_fast, blocks_of(gemm));
  const CUfunction function = ready(kernel, "launching a product", "loading the matmul kernel");
  void* parameters[] = {&args};
  check(driver().cuLaunchKernel(function, static_cast<unsigned>(ceil_div(args.matrices, kWarps)), 1, 1, kThreads, 1, 1,
                                0, stream, parameters, nullptr),
        "launching a product");
}

std::string describe(const Gemm& gemm) {
  const std::string size = std::to_string(16 * blocks_of(gemm));
  return "mma many " + size + "x" + size + ", " + dtype_name(gemm.dtype);
}

}  // namespace interop::cuda::mma_many
