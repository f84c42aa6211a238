/// float64, complex128 and TF32 products by mma.sync: what is served, the choice of the tile, and the launch.
#include "cuda/matmul/mma/wide.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>

#include "cuda/driver/driver_api.h"
#include "cuda/matmul/blocks.h"
#include "cuda/matmul/mma/wide_kernels.h"
#include "cuda/matmul/rates.h"

namespace interop::cuda::mma_wide {
namespace {

using tiled::matrices;

/// One of a and b as a (mn, k) matrix, of which `threads` threads copy tiles of `size` rows or columns.
OperandArgs operand_args(const Gemm& gemm, const void* data, int64_t mn, int64_t mn_stride, int64_t k_stride,
                         int64_t BatchDim::* batch_stride, int size, int threads) {
  OperandArgs args{};
  const int64_t item = item_bytes(gemm.dtype);
  // The stride of a dimension of size 1 is not used, and may be anything.
  if (gemm.k == 1) k_stride = mn_stride == 1 ? 0 : 1;
  if (mn == 1) mn_stride = k_stride == 1 ? 0 : 1;
  args.data = static_cast<const char*>(data);
  args.k_fast = k_stride == 1 || (mn_stride != 1 && std::abs(k_stride) < std::abs(mn_stride));
  args.fast_stride = (args.k_fast ? k_stride : mn_stride) * item;
  args.slow_stride = (args.k_fast ? mn_stride : k_stride) * item;
  args.pass_bytes = threads / (args.k_fast ? kTileBytes / kChunk : size * item / kChunk) * args.slow_stride;
  args.tile_bytes = kTileBytes / item * (args.k_fast ? args.fast_stride : args.slow_stride);
  int64_t strides = args.slow_stride;
  for (int i = 0; i < gemm.batch_ndim; ++i) strides |= gemm.batch[i].*batch_stride * item;
  args.vectors = args.fast_stride == item && strides % kChunk == 0 && reinterpret_cast<uintptr_t>(data) % kChunk == 0;
  return args;
}

OperandArgs operand_a(const Gemm& gemm, const Variant& variant) {
  return operand_args(gemm, gemm.a, gemm.m, gemm.a_strides.row, gemm.a_strides.column, &BatchDim::a_stride, variant.m,
                      variant.threads);
}
OperandArgs operand_b(const Gemm& gemm, const Variant& variant) {
  return operand_args(gemm, gemm.b, gemm.n, gemm.b_strides.column, gemm.b_strides.row, &BatchDim::b_stride, variant.n,
                      variant.threads);
}

/// May sums without an epilogue be stored as vectors?
bool stores_vectors(const Gemm& gemm) {
  int64_t strides = gemm.c_strides.row;
  for (int i = 0; i < gemm.batch_ndim; ++i) strides |= gemm.batch[i].c_stride;
  return gemm.c_strides.column == 1 && strides * item_bytes(gemm.dtype) % kChunk == 0 &&
         reinterpret_cast<uintptr_t>(gemm.c) % kChunk == 0;
}

/// Launches the matrices of batch dimensions [first, batch_ndim), at most kKernelBatchDims of them.
void launch_batch(const Gemm& gemm, int first, const Variant& variant, cudaStream_t stream) {
  constexpr unsigned kSignBit = 0x80000000u;
  KernelArgs args{};
  args.a = operand_a(gemm, variant);
  args.b = operand_b(gemm, variant);
  args.c = tiled::output_args(gemm.c, gemm.c_strides, item_bytes(gemm.out_dtype));
  args.finish = tiled::finish_args(gemm, stores_vectors(gemm));
  // If b is lazily conjugated, the epilogue conjugates the result: a @ conj(b) = conj(conj(a) @ b). So only the sign of
  // a's imaginary parts may have to change here.
  args.conjugates_a = gemm.a_conjugated != gemm.b_conjugated ? kSignBit : 0;
  const CUfunction function =
      ready(*variant.kernels[args.a.k_fast][args.b.k_fast], "launching a product", "loading the matmul kernel");
  tiled::launch_blocks(args, gemm, first, variant.m, variant.n, variant.threads, variant.shared_bytes, function,
                       stream);
}

}  // namespace

bool serves(const Gemm& gemm, MatmulPrecision precision, const Device& device) {
  const bool is_complex = gemm.dtype.code == kDLComplex && gemm.dtype.bits == 128;
  const bool is_exact = precision == MatmulPrecision::exact && (gemm.dtype == kFloat64 || is_complex);
  const bool is_tf32 = precision == MatmulPrecision::tf32 && gemm.dtype == kFloat32;
  if (!is_exact && !is_tf32) return false;
  if (gemm.b_dtype != gemm.dtype || gemm.out_dtype != gemm.dtype) return false;
  if (gemm.m < 1 || gemm.n < 1 || gemm.k < 1 || matrices(gemm) < 1) return false;
  constexpr int64_t kMost = std::numeric_limits<int>::max() - 1024;  // coordinates and tiles are 32-bit
  if (gemm.m > kMost || gemm.n > kMost || gemm.k > kMost) return false;
  if (ceil_div(gemm.m, 32) * ceil_div(gemm.n, 32) > kMost) return false;
  return device.has_sm80_code();
}

Estimate choose(const Gemm& gemm, const Device& device) {
  const double each = gemm.dtype.code == kDLComplex ? rates::kMmaComplex128
                      : gemm.dtype == kFloat32      ? rates::kMmaTf32
                                                    : 1;
  const int sms = device.multiprocessors();
  const auto [list, count] = variants(gemm.dtype);
  Estimate best{count - 1, std::numeric_limits<double>::infinity()};
  for (int i = 0; i < count; ++i) {
    const int64_t tiles = ceil_div(gemm.m, list[i].m) * ceil_div(gemm.n, list[i].n) * matrices(gemm);
    const double blocks = static_cast<double>(ceil_div(tiles, sms)) + list[i].speed.start;
    const double us = each * blocks * list[i].m * list[i].n * gemm.k / list[i].speed.rate / rates::kMmaWideRate;
    if (us < best.us) best = {i, us};
  }
  if (gemm.dtype != kFloat32) return best;
  const Variant& variant = list[best.variant];
  best.us *= 1 + rates::kMmaTf32ByElements * (!operand_a(gemm, variant).vectors + !operand_b(gemm, variant).vectors);
  return best;
}

void launch_variant(int variant, const Gemm& gemm, cudaStream_t stream) {
  // Batch dimensions beyond what the kernel takes are walked here, one launch or more for each of their matrices.
  const int walked = std::max(0, gemm.batch_ndim - kKernelBatchDims);
  const Variant& chosen = variants(gemm.dtype).first[variant];
  tiled::walk_batch(gemm, walked, [&](const Gemm& part) { launch_batch(part, walked, chosen, stream); });
}

std::string describe(const Gemm& gemm, int variant) {
  return std::string("mma ") + variant_name(gemm.dtype, variant) + ", " +
         (gemm.dtype == kFloat32 ? "tf32" : dtype_name(gemm.dtype));
}

int variant_count(DLDataType dtype) { return variants(dtype).count; }

const char* variant_name(DLDataType dtype, int variant) { return variants(dtype).first[variant].name; }

}  // namespace interop::cuda::mma_wide
