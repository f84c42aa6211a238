/// The general kernels, which compute any product: chooses among their tiles, and launches them.
#include "cuda/matmul/tiled/tiled.h"

#include <interop/error.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "cuda/driver/driver_api.h"

namespace interop::cuda::tiled {
namespace {

// ---- which kernels ----

/// The kernels that read a's dtype.
Variants variants_for(DLDataType dtype) {
  const int bits = dtype.bits;
  if (dtype.code == kDLComplex) return bits == 64 ? complex64_variants() : complex128_variants();
  if (is_integral(dtype)) {
    return bits == 8    ? int8_variants()
           : bits == 16 ? int16_variants()
           : bits == 32 ? int32_variants()
                        : int64_variants();
  }
  return bits == 8    ? float8_variants()
         : bits == 16 ? float16_variants()
         : bits == 32 ? float32_variants()
                      : float64_variants();
}

/// The format of elements of this dtype for those kernels.
Format format_of(DLDataType dtype) {
  switch (dtype.code) {
    case kDLBool:
      return Format::boolean;
    case kDLInt:
      return dtype.bits == 8 ? Format::int8 : dtype.bits == 16 ? Format::int16 : Format::plain;
    case kDLUInt:
      return dtype.bits == 8 ? Format::uint8 : dtype.bits == 16 ? Format::uint16 : Format::plain;
    case kDLFloat:
      return dtype.bits == 16 ? Format::float16 : Format::plain;
    case kDLBfloat:
      return Format::bfloat16;
    case kDLFloat8_e4m3fn:
      return Format::float8_e4m3fn;
    case kDLFloat8_e5m2:
      return Format::float8_e5m2;
    default:
      return Format::plain;
  }
}

/// A variant, and the work of the busiest SM: multiply-adds at the SM's peak, for each k.
struct Choice {
  int variant;
  double work;
};

/// The variant whose busiest SM should finish first.
Choice least_work(const Gemm& gemm, const Device& device) {
  const auto [variants, count] = variants_for(gemm.dtype);
  const auto work = [](const Variant& variant, double blocks) {
    return variant.m * variant.n * (blocks + variant.speed.start) / variant.speed.rate;
  };
  const Variant& last = variants[count - 1];
  Choice best{count - 1, work(last, 1)};
  if (gemm.m <= last.m && gemm.n <= last.n && gemm.batch_ndim == 0) return best;  // one block: nothing to weigh
  const int64_t batch = matrices(gemm);
  const int sms = device.multiprocessors();
  best.work = std::numeric_limits<double>::infinity();
  for (int i = 0; i < count; ++i) {
    const Variant& variant = variants[i];
    const double tiles = static_cast<double>(ceil_div(gemm.m, variant.m)) * ceil_div(gemm.n, variant.n) * batch;
    const double variant_work = work(variant, std::ceil(tiles / sms));
    if (variant_work < best.work) best = {i, variant_work};
  }
  return best;
}

// ---- the launcher ----

/// One array of a product, strides in elements. For c, mn stands for its columns and k for its rows.
struct Operand {
  const void* data;
  int64_t mn_stride, k_stride;
  int64_t batch_strides;  // those of all batch dimensions, or'ed: their common alignment
};

/// Is every 16-byte vector along mn, counted from the start, 16-byte aligned in every matrix of the batch?
bool has_vectors(const Operand& operand, int64_t k, int64_t item) {
  if (operand.mn_stride != 1 || reinterpret_cast<uintptr_t>(operand.data) % 16 != 0) return false;
  return ((k > 1 ? operand.k_stride : 0) | operand.batch_strides) * item % 16 == 0;
}

OperandArgs operand_args(const Operand& operand, int64_t mn, int64_t k, const Variant& variant, bool vectors,
                         int vector_step, DLDataType dtype) {
  OperandArgs args;
  const int64_t item = dtype.bits / 8;
  args.format = format_of(dtype);
  args.data = static_cast<const char*>(operand.data);
  args.mn_stride = operand.mn_stride * item;
  args.k_stride = operand.k_stride * item;
  args.mn_step = variant.threads / 8 * args.mn_stride;
  args.k_step = (vectors ? vector_step : 8) * args.k_stride;
  args.tile_step = variant.k * args.k_stride;
  args.k_fast = k > 1 && (mn == 1 || std::abs(operand.k_stride) < std::abs(operand.mn_stride));
  return args;
}

/// Launches the matrices of at most kKernelBatchDims batch dimensions, in as many grids as they need.
void launch_batch(KernelArgs& args, int64_t matrices, const Variant& variant, Kernel& kernel, cudaStream_t stream) {
  const int64_t tiles = static_cast<int64_t>(args.row_tiles) * args.column_tiles;
  const int64_t matrices_a_grid = std::numeric_limits<int>::max() / tiles;
  const CUfunction function = ready(kernel, "launching a product", "loading the matmul kernel");
  void* parameters[] = {&args};
  for (args.first_matrix = 0; args.first_matrix < matrices; args.first_matrix += matrices_a_grid) {
    const auto blocks = static_cast<unsigned>(std::min(matrices - args.first_matrix, matrices_a_grid) * tiles);
    check(driver().cuLaunchKernel(function, blocks, 1, 1, variant.threads, 1, 1, 0, stream, parameters, nullptr),
          "launching a product");
  }
}

/// Puts the batch dimensions of `gemm` from `first` on into `args`; returns the number of matrices.
int64_t set_batch(KernelArgs& args, const Gemm& gemm, int first) {
  const int64_t item = item_bytes(gemm.dtype);
  int64_t matrices = 1;
  args.batch_ndim = gemm.batch_ndim - first;
  for (int i = 0; i < args.batch_ndim; ++i) {
    const BatchDim& dim = gemm.batch[first + i];
    args.a.batch_stride[i] = dim.a_stride * item;
    args.b.batch_stride[i] = dim.b_stride * item;
    matrices *= dim.size;
  }
  set_output_batch(gemm, first, args.batch_size, args.c, args.finish);
  return matrices;
}

[[noreturn]] void refuse_size(const Gemm& gemm) {
  throw ValueError("interop.matmul: m = " + std::to_string(gemm.m) + ", n = " + std::to_string(gemm.n) +
                   ", k = " + std::to_string(gemm.k) + " is more than the tiled kernel can count");
}

/// The sign bit in the upper 32-bit word of the real or imaginary part.
constexpr unsigned kSignBit = 0x80000000u;

}  // namespace

OutputArgs output_args(const void* data, const MatrixStrides& strides, int64_t item) {
  return {static_cast<char*>(const_cast<void*>(data)), strides.row * item, strides.column * item, {}};
}

FinishArgs finish_args(const Gemm& gemm, bool vectors) {
  FinishArgs args;
  const int64_t item = item_bytes(gemm.out_dtype);
  args.conjugates = gemm.b_conjugated;
  args.format = format_of(gemm.out_dtype);
  args.direct = gemm.is_plain() && !args.conjugates && args.format == Format::plain;
  args.vector_stores = vectors;
  args.scales = gemm.scales;
  args.activation = static_cast<int>(gemm.activation);
  std::memcpy(args.alpha, gemm.alpha.bytes, sizeof args.alpha);
  std::memcpy(args.beta, gemm.beta.bytes, sizeof args.beta);
  args.factors[0] = gemm.factor_a;
  args.factors[1] = gemm.factor_b;
  args.addend = output_args(gemm.addend, gemm.addend_strides, item);
  args.bias = output_args(gemm.bias, gemm.bias_strides, item);
  args.aux = output_args(gemm.aux, gemm.aux_strides, item);
  return args;
}

void set_output_batch(const Gemm& gemm, int first, int64_t (&sizes)[kKernelBatchDims], OutputArgs& c,
                      FinishArgs& finish) {
  const int64_t item = item_bytes(gemm.out_dtype);
  for (int i = first; i < gemm.batch_ndim; ++i) {
    const BatchDim& dim = gemm.batch[i];
    sizes[i - first] = dim.size;
    c.batch_stride[i - first] = dim.c_stride * item;
    finish.addend.batch_stride[i - first] = dim.addend_stride * item;
    finish.aux.batch_stride[i - first] = dim.aux_stride * item;
  }
}

void transpose(Gemm& gemm) {
  std::swap(gemm.m, gemm.n);
  std::swap(gemm.a, gemm.b);
  std::swap(gemm.dtype, gemm.b_dtype);
  std::swap(gemm.a_strides, gemm.b_strides);
  std::swap(gemm.a_conjugated, gemm.b_conjugated);
  for (MatrixStrides* strides :
       {&gemm.a_strides, &gemm.b_strides, &gemm.c_strides, &gemm.addend_strides, &gemm.bias_strides, &gemm.aux_strides})
    std::swap(strides->row, strides->column);
  for (int i = 0; i < gemm.batch_ndim; ++i) std::swap(gemm.batch[i].a_stride, gemm.batch[i].b_stride);
}

Estimate choose(const Gemm& gemm, const Device& device) {
  const double slower = gemm.dtype.code == kDLComplex ? rates::kComplexSlower
                        : !is_integral(gemm.dtype)    ? 1
                        : gemm.dtype.bits == 64       ? rates::kInt64Slower
                                                      : rates::kIntegerSlower;
  const Choice best = least_work(gemm, device);
  return {best.variant, slower * gemm.k * best.work / rates::kGeneralPeak};
}

std::string describe(const Gemm& gemm, int variant) {
  return std::string(variants_for(gemm.dtype).first[variant].name) + ", " + dtype_name(gemm.dtype);
}

void launch_variant(int chosen, const Gemm& gemm, cudaStream_t stream) {
  const int64_t item = item_bytes(gemm.dtype), out_item = item_bytes(gemm.out_dtype);
  const Variant& variant = variants_for(gemm.dtype).first[chosen];
  Operand a{gemm.a, gemm.a_strides.row, gemm.a_strides.column, 0};
  Operand b{gemm.b, gemm.b_strides.column, gemm.b_strides.row, 0};
  Operand c{gemm.c, gemm.c_strides.column, gemm.c_strides.row, 0};
  for (int i = 0; i < gemm.batch_ndim; ++i) {
    a.batch_strides |= gemm.batch[i].a_stride;
    b.batch_strides |= gemm.batch[i].b_stride;
    c.batch_strides |= gemm.batch[i].c_stride;
  }
  const bool vectors_a = variant.reads_vectors && has_vectors(a, gemm.k, item);
  const bool vectors_b = variant.reads_vectors && has_vectors(b, gemm.k, item);

  KernelArgs args;
  args.a = operand_args(a, gemm.m, gemm.k, variant, vectors_a, variant.step_vectors_m, gemm.dtype);
  args.b = operand_args(b, gemm.n, gemm.k, variant, vectors_b, variant.step_vectors_n, gemm.b_dtype);
  args.c = output_args(gemm.c, gemm.c_strides, out_item);
  args.finish = finish_args(gemm, has_vectors(c, gemm.m, out_item));
  // If b is lazily conjugated, the epilogue conjugates the result: a @ conj(b) = conj(conj(a) @ b). So only the sign of
  // a's imaginary parts may have to change here.
  args.conjugates_a = gemm.a_conjugated != gemm.b_conjugated ? kSignBit : 0;
  args.m = gemm.m;
  args.n = gemm.n;
  const int64_t k_tiles = ceil_div(gemm.k, variant.k);
  const int64_t row_tiles = ceil_div(gemm.m, variant.m);
  const int64_t column_tiles = ceil_div(gemm.n, variant.n);
  constexpr int64_t kMax = std::numeric_limits<int>::max();
  if (k_tiles > kMax || row_tiles > kMax || row_tiles * column_tiles > kMax) refuse_size(gemm);
  // A bool product counts its true terms in 32 bits.
  if (gemm.out_dtype.code == kDLBool && gemm.k > std::numeric_limits<uint32_t>::max()) refuse_size(gemm);
  args.k_tiles = static_cast<int>(k_tiles);
  args.k_last = static_cast<int>(gemm.k - (k_tiles - 1) * variant.k);
  args.row_tiles = static_cast<unsigned>(row_tiles);
  args.column_tiles = static_cast<unsigned>(column_tiles);

  // Batch dimensions beyond what the kernel takes are walked here, one launch or more for each of their matrices.
  Kernel& kernel = *variant.kernels[vectors_a][vectors_b];
  const int walked = std::max(0, gemm.batch_ndim - kKernelBatchDims);
  const int64_t matrices = set_batch(args, gemm, walked);
  int64_t at[kMaxDims];
  std::fill_n(at, walked, 0);
  for (;;) {
    launch_batch(args, matrices, variant, kernel, stream);
    int dim = walked - 1;
    for (; dim >= 0; --dim) {
      const BatchDim& step = gemm.batch[dim];
      const int64_t steps = ++at[dim] < step.size ? 1 : 1 - step.size;  // forward, or back to the start
      args.a.data += steps * step.a_stride * item;
      args.b.data += steps * step.b_stride * item;
      args.c.data += steps * step.c_stride * out_item;
      if (args.finish.addend.data) args.finish.addend.data += steps * step.addend_stride * out_item;
      if (args.finish.aux.data) args.finish.aux.data += steps * step.aux_stride * out_item;
      if (steps == 1) break;
      at[dim] = 0;
    }
    if (dim < 0) return;
  }
}

}  // namespace interop::cuda::tiled
