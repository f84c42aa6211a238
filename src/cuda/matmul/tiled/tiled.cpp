/// Our own matrix product: chooses among the kernels, and launches the general ones.
#include <interop/error.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "cuda/driver/driver_api.h"
#include "cuda/matmul/backends.h"
#include "cuda/matmul/mma/mma.h"
#include "cuda/matmul/mma/wide.h"
#include "cuda/matmul/skinny/skinny.h"
#include "cuda/matmul/split.h"
#include "cuda/matmul/tiled/tiled.h"
#include "cuda/matmul/wgmma/integers.h"
#include "cuda/matmul/wgmma/wgmma.h"

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

bool is_empty(const Gemm& gemm) { return gemm.m == 0 || gemm.n == 0 || matrices(gemm) == 0; }

/// Is the product so small that the general kernels, which start sooner, are as quick as the tensor cores?
bool is_small(const Gemm& gemm) {
  constexpr int64_t kSmall = 128;
  return gemm.k <= kSmall && multiplications(gemm) <= kSmall * kSmall * kSmall;
}

/// A variant, and the work of the busiest SM: multiply-adds at the SM's peak, for each k.
struct Choice {
  const Variant* variant;
  double work;
};

/// The variant whose busiest SM should finish first.
Choice choose(const Gemm& gemm) {
  const auto [variants, count] = variants_for(gemm.dtype);
  const auto work = [](const Variant& variant, double blocks) {
    return variant.m * variant.n * (blocks + variant.start) / variant.rate;
  };
  const Variant& last = variants[count - 1];
  Choice best{&last, work(last, 1)};
  if (gemm.m <= last.m && gemm.n <= last.n && gemm.batch_ndim == 0) return best;  // one block: nothing to weigh
  const int64_t batch = matrices(gemm);
  const int sms = multiprocessors(current_device("launching a product"));
  best.work = std::numeric_limits<double>::infinity();
  for (int i = 0; i < count; ++i) {
    const Variant& variant = variants[i];
    const double tiles = static_cast<double>(ceil_div(gemm.m, variant.m)) * ceil_div(gemm.n, variant.n) * batch;
    const double variant_work = work(variant, std::ceil(tiles / sms));
    if (variant_work < best.work) best = {&variant, variant_work};
  }
  return best;
}

/// About how long the general kernels take on an H100, in microseconds.
double general_us(const Gemm& gemm) {
  const double slower = gemm.dtype.code == kDLComplex                      ? 4
                        : is_integral(gemm.dtype) && gemm.dtype.bits == 64 ? 8
                        : is_integral(gemm.dtype)                          ? 2
                                                                           : 1;
  constexpr double kPeak = 128 * 1.7e3;  // an SM's multiply-adds of float32 in a microsecond
  return slower * gemm.k * choose(gemm).work / kPeak;
}

/// How long a plan for the tensor cores of sm_90 takes on an H100, in microseconds, with packing and its launch.
double tensor_core_us(const Gemm& gemm, const MatmulPlan& plan) {
  const bool in_two = plan.precision == MatmulPrecision::tf32x3;
  const double multiplying = is_integral(gemm.dtype) ? wgmma::integer_us(gemm) : wgmma::estimated_us(gemm, plan);
  const double bytes = static_cast<double>(plan.workspace_bytes) * (in_two ? 1.5 : 2);  // read and written
  return multiplying + (bytes == 0 ? 0 : 4 + bytes / 2.5e6);
}

// ---- split-k ----

/// k in equal parts, and a rest. One part means that k is not split.
struct Parts {
  int count = 1;
  int64_t k = 0;
  int64_t rest = 0;
  double us = 0;  // estimated

  int sums() const { return count + (rest > 0); }
};

Parts divided(int64_t k, int count) {
  constexpr int64_t kVector = 8;  // 16-bit elements in 16 bytes, so that each part is as aligned as the whole
  const int64_t part = k / count / kVector * kVector;
  return {count, part, k - part * count};
}

/// The part of the product over k from `first` to `first + k`. Its sums alone go to `sums`: [matrix][row][column].
Gemm sums_of(const Gemm& gemm, int64_t first, int64_t k, void* sums) {
  Gemm part;
  const auto moved = [](const void* data, int64_t bytes) { return static_cast<const char*>(data) + bytes; };
  part.dtype = gemm.dtype;
  part.b_dtype = gemm.b_dtype;
  part.out_dtype = sum_dtype(gemm);
  part.m = gemm.m;
  part.n = gemm.n;
  part.k = k;
  part.a = moved(gemm.a, first * gemm.a_strides.column * item_bytes(gemm.dtype));
  part.b = moved(gemm.b, first * gemm.b_strides.row * item_bytes(gemm.b_dtype));
  part.c = sums;
  part.a_strides = gemm.a_strides;
  part.b_strides = gemm.b_strides;
  part.c_strides = {gemm.n, 1};
  part.a_conjugated = gemm.a_conjugated != gemm.b_conjugated;  // the sum over the parts is conjugated, if needed
  part.batch_ndim = gemm.batch_ndim;
  int64_t matrix = gemm.m * gemm.n;
  for (int i = gemm.batch_ndim - 1; i >= 0; --i) {
    const BatchDim& dim = gemm.batch[i];
    part.batch[i] = {dim.size, dim.a_stride, dim.b_stride, matrix, 0, 0};
    matrix *= dim.size;
  }
  return part;
}

/// The same for all equal parts, which are one more batch dimension.
Gemm sums_of(const Gemm& gemm, const Parts& parts, void* sums) {
  Gemm all = sums_of(gemm, 0, parts.k, sums);
  all.batch[all.batch_ndim++] = {parts.count,
                                 parts.k * gemm.a_strides.column,
                                 parts.k * gemm.b_strides.row,
                                 gemm.m * gemm.n * matrices(gemm),
                                 0,
                                 0};
  return all;
}

/// The parts that k is split into, so that there are tiles for all SMs. One part, unless more of them save more time
/// than the kernel that adds up the partial sums takes.
template <typename Estimate>
Parts choose_parts(const Gemm& gemm, std::size_t most_bytes, Estimate estimated_us) {
  constexpr int kBatchDims = 2;                   // every kernel takes one more
  constexpr int64_t kLeast = 256;                 // of k in a part
  constexpr double kLaunchUs = 3, kRate = 2.8e6;  // of H100's memory, in bytes a microsecond
  constexpr double kEnough = 132 * 128 * 128;     // outputs
  Parts best;
  best.us = estimated_us(gemm);
  if (!may_divide(gemm) || gemm.batch_ndim > kBatchDims) return best;
  if (gemm.k < 2 * kLeast || static_cast<double>(gemm.m) * gemm.n * matrices(gemm) > kEnough) return best;
  double least_us = 0.9 * best.us;
  for (const int count : {2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, kMostParts}) {
    const Parts parts = divided(gemm.k, count);
    const std::size_t bytes = partial_bytes(gemm, parts.sums());
    if (parts.k < kLeast || bytes > most_bytes) break;
    double us = estimated_us(sums_of(gemm, parts, nullptr)) + kLaunchUs + 2 * bytes / kRate;
    if (parts.rest > 0) us += kLaunchUs + estimated_us(sums_of(gemm, 0, parts.rest, nullptr));
    if (us < least_us) {
      least_us = us;
      best = parts;
      best.us = us;
    }
  }
  return best;
}

// ---- which kernels, and how ----

/// Is the plan's workspace, if any, for partial sums? Otherwise it is for packed operands.
bool may_be_divided(const Gemm& gemm, const MatmulPlan& plan) {
  if (!plan.tensor_cores) return true;
  return plan.precision == MatmulPrecision::exact && !plan.packs_a && !plan.packs_b && !is_integral(gemm.dtype);
}

enum class Family { general, mma, mma_wide, wgmma, skinny };

double estimated_us(const Gemm& gemm, Family family) {
  return family == Family::wgmma      ? wgmma::estimated_us(gemm, MatmulPlan())
         : family == Family::mma      ? mma::estimated_us(gemm)
         : family == Family::mma_wide ? mma_wide::estimated_us(gemm)
                                      : general_us(gemm);
}

/// Launches a kernel of a family other than `skinny`, on all of k.
void launch_whole(const Gemm& gemm, Family family, cudaStream_t stream) {
  if (family == Family::wgmma) return wgmma::launch(gemm, MatmulPlan{}, nullptr, stream);
  if (family == Family::mma) return mma::launch(gemm, stream);
  return family == Family::mma_wide ? mma_wide::launch(gemm, stream) : launch_general(gemm, stream);
}

struct Way {
  Family family;
  Parts parts;
  std::size_t workspace_bytes = 0;
};

/// The kernel family of a plan that may split k, if the skinny kernels do not serve the product.
Family family_of(const Gemm& gemm, const MatmulPlan& plan) {
  if (plan.tensor_cores) return Family::wgmma;
  if (is_small(gemm)) return Family::general;
  if (mma::serves(gemm)) return Family::mma;
  return mma_wide::serves(gemm, plan.precision) ? Family::mma_wide : Family::general;
}

/// How a plan that may split k is launched with a workspace of at most `most_bytes`. `gemm` is stored by rows.
Way way_of(const Gemm& gemm, const MatmulPlan& plan, std::size_t most_bytes) {
  if (skinny::serves(gemm)) {
    const int count = skinny::parts(gemm, most_bytes);
    return {Family::skinny, {count}, skinny::workspace_bytes(gemm, count)};
  }
  Way way{family_of(gemm, plan), {}};
  way.parts = choose_parts(gemm, most_bytes, [&](const Gemm& part) { return estimated_us(part, way.family); });
  if (way.parts.count > 1) way.workspace_bytes = partial_bytes(gemm, way.parts.sums());
  return way;
}

/// The same, with the parts and the workspace of the plan.
Way way_of(const Gemm& gemm, const MatmulPlan& plan) {
  if (skinny::serves(gemm)) return {Family::skinny, {plan.parts}, plan.workspace_bytes};
  return {family_of(gemm, plan), plan.parts == 1 ? Parts() : divided(gemm.k, plan.parts), plan.workspace_bytes};
}

/// The kernels store along rows of c, so a column-major c is computed as its transpose. Returns `asked`, or the
/// transposed product in `flipped`.
const Gemm& by_rows(const Gemm& asked, Gemm& flipped) {
  if (asked.c_strides.row != 1 || asked.c_strides.column == 1) return asked;
  flipped = asked;
  transpose(flipped);
  return flipped;
}

/// The plan for the product that by_rows returns for `asked`.
MatmulPlan plan_by_rows(const Gemm& asked, MatmulPlan plan) {
  Gemm flipped;
  if (&by_rows(asked, flipped) == &flipped) std::swap(plan.packs_a, plan.packs_b);
  return plan;
}

/// Is a plan for the tensor cores of sm_90 quicker than that for the other kernels?
bool is_quickest(const Gemm& gemm, const MatmulPlan& plan, const MatmulPlan& others) {
  const bool is_half = gemm.dtype.bits == 16 && is_float(gemm.dtype);
  if (is_half && plan.workspace_bytes == 0) return true;  // small products do not come here
  Gemm flipped;
  return tensor_core_us(gemm, plan) < way_of(by_rows(gemm, flipped), others, kMostPartialBytes).parts.us;
}

/// Plans the kernels for all of k at once, with packing. The product is not small.
MatmulPlan plan_whole(const Gemm& gemm, const MatmulOptions& options) {
  const std::optional<MatmulPlan> plan = is_integral(gemm.dtype)
                                             ? wgmma::plan_integers(gemm, options.most_packed_bytes)
                                             : wgmma::plan(gemm, options.precision, options.most_packed_bytes);
  MatmulPlan others;
  if (mma_wide::serves(gemm, options.precision)) others.precision = options.precision;
  return plan && is_quickest(gemm, *plan, others) ? *plan : others;
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

namespace tiled {

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

void launch_general(const Gemm& gemm, cudaStream_t stream) {
  const int64_t item = item_bytes(gemm.dtype), out_item = item_bytes(gemm.out_dtype);
  const Variant& variant = *choose(gemm).variant;
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

bool is_skinny(const Gemm& gemm) { return skinny::serves(gemm); }

MatmulPlan plan(const Gemm& gemm, const MatmulOptions& options) {
  if (is_empty(gemm)) return {};
  MatmulPlan plan;
  if (!skinny::serves(gemm)) {
    if (is_small(gemm)) return {};  // the general kernels; k is too short to split
    plan = plan_whole(gemm, options);
  }
  if (!may_be_divided(gemm, plan)) return plan;
  Gemm flipped;
  const Way way = way_of(by_rows(gemm, flipped), plan, kMostPartialBytes);
  plan.parts = way.parts.count;
  plan.workspace_bytes = way.workspace_bytes;
  return plan;
}

std::size_t largest_workspace(const Gemm& gemm, const MatmulOptions& options) {
  if (is_empty(gemm) || is_small(gemm)) return 0;
  const std::size_t sums = may_divide(gemm) ? std::min(kMostPartialBytes, partial_bytes(gemm, kMostParts + 1)) : 0;
  const std::size_t packed = is_integral(gemm.dtype)
                                 ? wgmma::largest_integer_packing(gemm, options.most_packed_bytes)
                                 : wgmma::largest_packing(gemm, options.precision, options.most_packed_bytes);
  return std::max(sums, packed);
}

void launch(const Gemm& asked, const MatmulPlan& plan, void* workspace, cudaStream_t stream) {
  if (is_empty(asked)) return;
  Gemm flipped;
  const Gemm& gemm = by_rows(asked, flipped);
  if (!may_be_divided(gemm, plan)) {
    const auto launch_plan = is_integral(gemm.dtype) ? wgmma::launch_integers : wgmma::launch;
    return launch_plan(gemm, plan_by_rows(asked, plan), workspace, stream);
  }
  const bool as_planned = workspace || plan.workspace_bytes == 0;
  const Way way = as_planned ? way_of(gemm, plan) : way_of(gemm, plan, 0);
  if (way.family == Family::skinny) return skinny::launch(gemm, way.parts.count, workspace, stream);
  if (way.parts.count == 1) return launch_whole(gemm, way.family, stream);
  launch_whole(sums_of(gemm, way.parts, workspace), way.family, stream);
  if (way.parts.rest > 0) {
    char* const last = static_cast<char*>(workspace) + partial_bytes(gemm, way.parts.count);
    launch_whole(sums_of(gemm, way.parts.k * way.parts.count, way.parts.rest, last), way.family, stream);
  }
  launch_sum_of_parts(gemm, workspace, way.parts.sums(), stream);
}

std::string describe(const Gemm& asked, const MatmulPlan& plan) {
  if (is_empty(asked)) return "nothing to compute";
  Gemm flipped;
  const Gemm& gemm = by_rows(asked, flipped);
  if (!may_be_divided(gemm, plan)) {
    const char* const packed = plan.packs_a && plan.packs_b ? "; a and b are packed first, in the workspace"
                               : plan.packs_a               ? "; a is packed first, in the workspace"
                               : plan.packs_b               ? "; b is packed first, in the workspace"
                                                            : "";
    return "tiled " +
           (is_integral(gemm.dtype) ? wgmma::describe_integers(gemm)
                                    : wgmma::describe(gemm, plan_by_rows(asked, plan))) +
           packed;
  }
  const Way way = way_of(gemm, plan);
  const std::string split = way.parts.count == 1 ? "" : ", split-k " + std::to_string(way.parts.count);
  if (way.family == Family::skinny) return "tiled " + skinny::describe(gemm) + split;
  const Gemm one = way.parts.count == 1 ? gemm : sums_of(gemm, way.parts, nullptr);
  if (way.family == Family::wgmma) return "tiled " + wgmma::describe(one, MatmulPlan()) + split;
  if (way.family == Family::mma) return "tiled " + mma::describe(one) + split;
  if (way.family == Family::mma_wide) return "tiled " + mma_wide::describe(one) + split;
  return std::string("tiled ") + choose(one).variant->name + ", " + dtype_name(gemm.dtype) + split;
}

}  // namespace tiled
}  // namespace interop::cuda
