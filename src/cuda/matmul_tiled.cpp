/// Our own matrix product: which of the kernels computes it, and the launch of the general ones.
#include <interop/error.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "cuda/driver_api.h"
#include "cuda/matmul_backends.h"
#include "cuda/matmul_mma.h"
#include "cuda/matmul_tiled.h"
#include "cuda/matmul_wgmma.h"
#include "cuda/matmul_wgmma_integers.h"

namespace interop::cuda {
namespace {

using namespace tiled;

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

/// How memory of that dtype is read and written by them.
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

int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

int64_t batch_size(const Gemm& gemm) {
  int64_t size = 1;
  for (int i = 0; i < gemm.batch_ndim; ++i) size *= gemm.batch[i].size;
  return size;
}

bool is_empty(const Gemm& gemm) { return gemm.m == 0 || gemm.n == 0 || batch_size(gemm) == 0; }

double multiplications(const Gemm& gemm) { return static_cast<double>(gemm.m) * gemm.n * gemm.k * batch_size(gemm); }

/// Is the product so small that the general kernels, which start sooner, are as quick as the tensor cores?
bool is_small(const Gemm& gemm) {
  constexpr int64_t kSmall = 128;
  return gemm.k <= kSmall && multiplications(gemm) <= kSmall * kSmall * kSmall;
}

/// Multiplications in a microsecond by the general kernels, on an H100.
double general_rate(DLDataType dtype) {
  if (is_integral(dtype)) return dtype.bits == 64 ? 3.1e6 : dtype.bits == 32 ? 15e6 : 13e6;
  return dtype.bits == 32 ? 24e6 : 18e6;
}

bool suits_mma(const Gemm& gemm) { return !is_small(gemm) && mma::serves(gemm); }

/// How long a plan for the tensor cores of sm_90 takes an H100: to multiply, to copy what it packs, and to start.
double tensor_core_microseconds(const Gemm& gemm, const MatmulPlan& plan) {
  const bool in_two = plan.precision == MatmulPrecision::tf32x3;
  const double rate = plan.precision == MatmulPrecision::exact ? 300e6 : in_two ? 48e6 : 150e6;
  const double multiplying = is_integral(gemm.dtype) ? wgmma::integer_microseconds(gemm) : multiplications(gemm) / rate;
  const double bytes = static_cast<double>(plan.workspace_bytes) * (in_two ? 1.5 : 2);  // read and written
  return multiplying + (bytes == 0 ? 0 : 4 + bytes / 2.5e6);
}

/// Is it quicker than mma.sync and the general kernels, which need no workspace?
bool is_quickest(const Gemm& gemm, const MatmulPlan& plan) {
  const bool is_half = gemm.dtype.bits == 16 && is_float(gemm.dtype);
  if (is_half && plan.workspace_bytes == 0) return true;  // but for what is small
  constexpr double kMmaRate = 150e6;
  const double rate = is_half && mma::serves(gemm) ? kMmaRate : general_rate(gemm.dtype);
  return tensor_core_microseconds(gemm, plan) < multiplications(gemm) / rate;
}

/// The variant whose busiest SM should finish first.
const Variant& choose(const Gemm& gemm) {
  const auto [variants, count] = variants_for(gemm.dtype);
  const Variant* best = &variants[count - 1];
  if (gemm.m <= best->m && gemm.n <= best->n && gemm.batch_ndim == 0) return *best;  // one block: nothing to weigh
  const int64_t matrices = batch_size(gemm);
  const int sms = multiprocessors(current_device("launching a product"));
  double best_time = std::numeric_limits<double>::infinity();
  for (int i = 0; i < count; ++i) {
    const Variant& variant = variants[i];
    const double tiles = static_cast<double>(ceil_div(gemm.m, variant.m)) * ceil_div(gemm.n, variant.n) * matrices;
    const double time = variant.m * variant.n * (std::ceil(tiles / sms) + variant.start) / variant.rate;
    if (time < best_time) {
      best_time = time;
      best = &variant;
    }
  }
  return *best;
}

// ---- the launcher ----

/// c^T = b^T a^T.
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

/// The kernels store along rows of c, so a column-major c is computed as its transpose: in `flipped`, for the caller.
const Gemm& by_rows(const Gemm& asked, Gemm& flipped) {
  if (asked.c_strides.row != 1 || asked.c_strides.column == 1) return asked;
  flipped = asked;
  transpose(flipped);
  return flipped;
}

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
  OperandArgs args{};
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

/// Puts batch dimensions [first, last) of `gemm` into `args`; returns the number of matrices.
int64_t set_batch(KernelArgs& args, const Gemm& gemm, int first, int last) {
  const int64_t item = item_bytes(gemm.dtype), out_item = item_bytes(gemm.out_dtype);
  int64_t matrices = 1;
  args.batch_ndim = last - first;
  for (int i = first; i < last; ++i) {
    const BatchDim& dim = gemm.batch[i];
    args.batch_size[i - first] = dim.size;
    args.a.batch_stride[i - first] = dim.a_stride * item;
    args.b.batch_stride[i - first] = dim.b_stride * item;
    args.c.batch_stride[i - first] = dim.c_stride * out_item;
    args.finish.addend.batch_stride[i - first] = dim.addend_stride * out_item;
    args.finish.aux.batch_stride[i - first] = dim.aux_stride * out_item;
    matrices *= dim.size;
  }
  return matrices;
}

[[noreturn]] void refuse_size(const Gemm& gemm) {
  throw ValueError("interop.matmul: m = " + std::to_string(gemm.m) + ", n = " + std::to_string(gemm.n) +
                   ", k = " + std::to_string(gemm.k) + " is more than the tiled kernel can count");
}

/// The bit that holds the sign of a part of a complex number, as the kernel sees its upper word.
constexpr unsigned kSignBit = 0x80000000u;

}  // namespace

namespace tiled {

OutputArgs output_args(const void* data, const MatrixStrides& strides, int64_t item) {
  return {static_cast<char*>(const_cast<void*>(data)), strides.row * item, strides.column * item, {}};
}

FinishArgs finish_args(const Gemm& gemm, bool vectors) {
  FinishArgs args{};
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

void launch_general(const Gemm& gemm, cudaStream_t stream) {
  const int64_t item = item_bytes(gemm.dtype), out_item = item_bytes(gemm.out_dtype);
  const Variant& variant = choose(gemm);
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

  KernelArgs args{};
  args.a = operand_args(a, gemm.m, gemm.k, variant, vectors_a, variant.step_vectors_m, gemm.dtype);
  args.b = operand_args(b, gemm.n, gemm.k, variant, vectors_b, variant.step_vectors_n, gemm.b_dtype);
  args.c = output_args(gemm.c, gemm.c_strides, out_item);
  args.finish = finish_args(gemm, has_vectors(c, gemm.m, out_item));
  // Of both conjugates the product is the conjugate of the product: what is left is at most a's sign.
  args.conjugates_a = gemm.a_conjugated != gemm.b_conjugated ? kSignBit : 0;
  args.m = gemm.m;
  args.n = gemm.n;
  const int64_t k_tiles = ceil_div(gemm.k, variant.k);
  const int64_t row_tiles = ceil_div(gemm.m, variant.m);
  const int64_t column_tiles = ceil_div(gemm.n, variant.n);
  constexpr int64_t kMax = std::numeric_limits<int>::max();
  if (k_tiles > kMax || row_tiles > kMax || row_tiles * column_tiles > kMax) refuse_size(gemm);
  // What is true of bool is counted, in 32 bits.
  if (gemm.out_dtype.code == kDLBool && gemm.k > std::numeric_limits<uint32_t>::max()) refuse_size(gemm);
  args.k_tiles = static_cast<int>(k_tiles);
  args.k_last = static_cast<int>(gemm.k - (k_tiles - 1) * variant.k);
  args.row_tiles = static_cast<unsigned>(row_tiles);
  args.column_tiles = static_cast<unsigned>(column_tiles);

  // Batch dimensions beyond what the kernel takes are walked here, one launch or more for each of their matrices.
  Kernel& kernel = *variant.kernels[vectors_a][vectors_b];
  const int walked = std::max(0, gemm.batch_ndim - kKernelBatchDims);
  const int64_t matrices = set_batch(args, gemm, walked, gemm.batch_ndim);
  int64_t at[kMaxDims] = {};
  for (;;) {
    launch_batch(args, matrices, variant, kernel, stream);
    int dim = walked - 1;
    for (; dim >= 0; --dim) {
      const BatchDim& step = gemm.batch[dim];
      const int64_t steps = ++at[dim] < step.size ? 1 : 1 - step.size;  // on, or back to the start
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

MatmulPlan plan(const Gemm& gemm, const MatmulOptions& options) {
  if (is_empty(gemm) || is_small(gemm)) return {};
  const std::optional<MatmulPlan> plan = is_integral(gemm.dtype)
                                             ? wgmma::plan_integers(gemm, options.most_packed_bytes)
                                             : wgmma::plan(gemm, options.precision, options.most_packed_bytes);
  return plan && is_quickest(gemm, *plan) ? *plan : MatmulPlan();
}

std::size_t largest_workspace(const Gemm& gemm, const MatmulOptions& options) {
  if (is_empty(gemm) || is_small(gemm)) return 0;
  return is_integral(gemm.dtype) ? wgmma::largest_integer_packing(gemm, options.most_packed_bytes)
                                 : wgmma::largest_packing(gemm, options.precision, options.most_packed_bytes);
}

void launch(const Gemm& asked, const MatmulPlan& plan, void* workspace, cudaStream_t stream) {
  if (is_empty(asked)) return;
  Gemm flipped;
  const Gemm& gemm = by_rows(asked, flipped);
  if (!plan.tensor_cores) return suits_mma(gemm) ? mma::launch(gemm, stream) : launch_general(gemm, stream);
  MatmulPlan own = plan;
  if (&gemm == &flipped) std::swap(own.packs_a, own.packs_b);
  (is_integral(gemm.dtype) ? wgmma::launch_integers : wgmma::launch)(gemm, own, workspace, stream);
}

std::string describe(const Gemm& asked, const MatmulPlan& plan) {
  if (is_empty(asked)) return "nothing to compute";
  Gemm flipped;
  const Gemm& gemm = by_rows(asked, flipped);
  if (!plan.tensor_cores) {
    if (suits_mma(gemm)) return "tiled " + mma::describe(gemm);
    return std::string("tiled ") + choose(gemm).name + ", " + dtype_name(gemm.dtype);
  }
  const char* const packed = plan.packs_a && plan.packs_b ? "; a and b are packed first, in the workspace"
                             : plan.packs_a               ? "; a is packed first, in the workspace"
                             : plan.packs_b               ? "; b is packed first, in the workspace"
                                                          : "";
  return "tiled " + (is_integral(gemm.dtype) ? wgmma::describe_integers(gemm) : wgmma::describe(gemm, plan.precision)) +
         packed;
}

}  // namespace tiled
}  // namespace interop::cuda
