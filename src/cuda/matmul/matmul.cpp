/// Which backend computes a product: one rule for `automatic`, and the checks for a backend asked for by name.
#include <interop/cuda/matmul.h>
#include <interop/error.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "cuda/matmul/backends.h"
#include "cuda/matmul/finish.h"
#include "cuda/matmul/rates.h"

namespace interop::cuda {
namespace {

bool is_empty(const Gemm& gemm) {
  for (int i = 0; i < gemm.batch_ndim; ++i) {
    if (gemm.batch[i].size == 0) return true;
  }
  return gemm.m == 0 || gemm.n == 0;
}

/// The bytes of all its matrices, as if none were broadcast.
double bytes(const Gemm& gemm) {
  const double count = multiplications(gemm);
  return (count / gemm.n + count / gemm.m + count / gemm.k) * item_bytes(gemm.dtype);
}

/// Is the product so small that our kernel takes the GPU no longer than cuBLASLt takes the host?
bool is_small(const Gemm& gemm, MatmulPrecision precision) {
  const bool is_tf32 = gemm.dtype == kFloat32 && precision == MatmulPrecision::tf32;
  const bool is_float32 = gemm.dtype == kFloat32 && !is_tf32;
  const bool is_half = gemm.dtype.bits == 16 || is_tf32;
  const int64_t most = is_float32 ? rates::kSmallFloat32 : is_half ? rates::kSmallHalf : rates::kSmallOther;
  return gemm.k <= most && multiplications(gemm) <= static_cast<double>(most * most * most) &&
         bytes(gemm) <= rates::kSmallBytes;
}

/// Is the product one for cuBLASLt, if that is installed and can take its layout?
bool suits_cublas(const Gemm& gemm, const MatmulOptions& options) {
  if (options.backend == MatmulBackend::tiled || is_empty(gemm) || gemm.k == 0) return false;
  return options.backend == MatmulBackend::cublas || !is_small(gemm, options.precision);
}

/// A GPU cannot read an element that is not aligned to its size, and a kernel that tries breaks the context.
void check_alignment(const char* name, const void* pointer, int item) {
  if (reinterpret_cast<uintptr_t>(pointer) % item == 0) return;
  throw ValueError(std::string("interop.matmul: ") + name + " starts at an address that is not a multiple of " +
                   std::to_string(item) + " bytes, which the GPU cannot read; copy it first");
}

// ---- where our kernels for tensor cores are the quicker ones ----

/// The largest power of two, up to 16, that divides the address of every row or column of an operand, in bytes.
int alignment_of(const void* data, int64_t rows, int64_t columns, const MatrixStrides& strides, const Gemm& gemm,
                 int64_t BatchDim::* stride) {
  const bool by_columns = rows == 1 ? strides.column != 1 : strides.row == 1;
  int64_t elements = by_columns ? strides.column : strides.row;
  if ((by_columns ? columns : rows) == 1) elements = 0;  // the stride of a dimension of size 1 is not used
  for (int i = 0; i < gemm.batch_ndim; ++i) elements |= gemm.batch[i].*stride;
  const auto bits = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(data)) |
                    static_cast<uint64_t>(elements * item_bytes(gemm.dtype)) | 16u;
  return static_cast<int>(bits & ~(bits - 1));
}

int alignment_of(const Gemm& gemm) {
  return std::min(alignment_of(gemm.a, gemm.m, gemm.k, gemm.a_strides, gemm, &BatchDim::a_stride),
                  alignment_of(gemm.b, gemm.k, gemm.n, gemm.b_strides, gemm, &BatchDim::b_stride));
}

bool runs_along_k(const MatrixStrides& strides, int64_t MatrixStrides::* k) { return strides.*k == 1; }

/// Is our kernel quicker for a product with few rows or columns? Where it is not, cuBLASLt reaches the full memory
/// bandwidth.
///   float64        no
///   16-bit floats  if rows are not 16-byte aligned, or a vector meets a matrix whose unit stride is a long k
///   float32        unless a vector meets a matrix whose unit stride is not k
bool is_quicker_if_skinny(const Gemm& gemm) {
  const bool is_vector = gemm.m == 1 || gemm.n == 1;
  const bool along_k = gemm.m == 1 ? runs_along_k(gemm.b_strides, &MatrixStrides::row)
                                   : runs_along_k(gemm.a_strides, &MatrixStrides::column);
  if (gemm.dtype.bits == 16) return alignment_of(gemm) < 16 || (is_vector && along_k && gemm.k >= rates::kLongVector);
  return gemm.dtype == kFloat32 && (!is_vector || along_k);
}

/// Are the outputs so few, and k so long, that only split-k occupies all SMs?
bool has_few_outputs(const Gemm& gemm) {
  return gemm.k > rates::kLongForFewOutputs && multiplications(gemm) < rates::kFewOutputs * static_cast<double>(gemm.k);
}

/// A kind of product, and the number of multiplications from which our kernel is the quicker one for it.
struct Row {
  const char* what;
  double from;
  bool (*is_it)(const Gemm&, const MatmulOptions&, const Device&);
  bool only_if_denied = false;  // only where cuBLASLt is denied its split-k: its other kernels are slow for these
};

constexpr Row kOurs[] = {
    {"16-bit floats in rows at odd addresses", rates::kOddRows,
     [](const Gemm& g, const MatmulOptions&, const Device&) {
       return g.dtype.bits == 16 && alignment_of(g) == 2 && !has_few_outputs(g);
     }},
    {"16-bit floats in rows at other addresses than multiples of 16 bytes", rates::kUnalignedRows,
     [](const Gemm& g, const MatmulOptions&, const Device&) {
       return g.dtype.bits == 16 && alignment_of(g) < 16 && !has_few_outputs(g);
     }},
    {"16-bit floats", rates::kHalf,
     [](const Gemm& g, const MatmulOptions&, const Device&) { return g.dtype.bits == 16; }},
    {"int8, but where k is the unit stride of both", rates::kInt8,
     [](const Gemm& g, const MatmulOptions&, const Device&) {
       return g.dtype.code == kDLInt &&
              !(runs_along_k(g.a_strides, &MatrixStrides::column) && runs_along_k(g.b_strides, &MatrixStrides::row));
     }},
    {"few outputs", rates::kFewOutputsInParts,
     [](const Gemm& g, const MatmulOptions& options, const Device&) {
       const bool is_slow = g.dtype.code == kDLComplex ? g.dtype.bits == 64
                            : g.dtype.bits == 16       ? alignment_of(g) < 16
                                                       : options.precision == MatmulPrecision::exact;
       return is_slow && has_few_outputs(g);
     },
     true},
    {"few rows or columns", 0,
     [](const Gemm& g, const MatmulOptions&, const Device& device) { return ours::is_skinny(g, device); }, true},
    {"TF32 where k is the unit stride of neither", rates::kTf32AlongNeither,
     [](const Gemm& g, const MatmulOptions& options, const Device&) {
       return options.precision == MatmulPrecision::tf32 && g.dtype == kFloat32 &&
              !runs_along_k(g.a_strides, &MatrixStrides::column) && !runs_along_k(g.b_strides, &MatrixStrides::row);
     }},
};

bool may_be_ours(const Gemm& gemm, const MatmulOptions& options, const Device& device, bool denied_division) {
  const double count = multiplications(gemm);
  return std::any_of(std::begin(kOurs), std::end(kOurs), [&](const Row& row) {
    return count >= row.from && (denied_division || !row.only_if_denied) && row.is_it(gemm, options, device);
  });
}

// ---- products of cuBLASLt that a kernel of ours finishes in place ----

/// The epilogue by a second kernel, after sums of cuBLASLt. That pays where our own product is slow: for gelu, which
/// does not overlap with the sums, and for float8, where only cuBLASLt uses the tensor cores.
MatmulFinish finish_after(const Gemm& gemm) {
  const bool has_gelu = gemm.activation == Activation::gelu || gemm.activation == Activation::gelu_tanh;
  const bool has_any = gemm.activation != Activation::none || gemm.bias || gemm.aux;
  return has_gelu || (has_any && gemm.dtype.bits == 8) ? finish_of(gemm) : MatmulFinish::none;
}

/// The part of such a product that cuBLASLt computes: all but bias, aux and activation.
Gemm product_of(Gemm gemm) {
  gemm.bias = nullptr;
  gemm.aux = nullptr;
  gemm.activation = Activation::none;
  return gemm;
}

/// Does the plan use the tensor cores of sm_90, or occupy all SMs by few outputs?
bool is_tuned_to_its_shape(const MatmulPlan& plan) {
  return plan.family == MatmulFamily::wgmma || plan.family == MatmulFamily::wgmma_integers ||
         plan.family == MatmulFamily::wgmma_clusters || plan.family == MatmulFamily::skinny || plan.parts > 1;
}

[[noreturn]] void refuse(const char* why_not) {
  throw ValueError(std::string("interop.matmul: backend=\"cublas\" cannot take this product: ") + why_not +
                   "; use backend=\"tiled\", or leave the choice to interop");
}

}  // namespace

/// The rule of `automatic`, first match wins:
///   nothing to add up (k == 0), or nothing at all     tiled (finishes zeros, or returns)
///   cuBLASLt not installed                            tiled
///   small                                             tiled
///   few rows or columns, as is_quicker_if_skinny says tiled
///   many small products of 16-bit floats              tiled
///   few rows of 16-bit floats that stream             tiled
///   TF32x3 that our kernel serves                     tiled (cuBLASLt has none)
///   what cuBLASLt cannot take, as make_key says       tiled, but for bias and activation (see finish_after)
///   measured, by `tune_matmul`                        the quicker one
///   a row of kOurs                                    tiled
///   all else                                          cublas
MatmulPlan plan_matmul(const Gemm& gemm, const MatmulOptions& options) {
  check_alignment("a", gemm.a, gemm.dtype.bits / 8);
  check_alignment("b", gemm.b, gemm.b_dtype.bits / 8);
  check_alignment("out", gemm.c, gemm.out_dtype.bits / 8);
  check_alignment("c", gemm.addend, gemm.out_dtype.bits / 8);
  check_alignment("bias", gemm.bias, gemm.out_dtype.bits / 8);
  check_alignment("aux", gemm.aux, gemm.out_dtype.bits / 8);
  const bool by_name = options.backend == MatmulBackend::cublas;
  if (by_name && !cublas::installed()) {
    throw CudaError("interop.matmul: backend=\"cublas\", but cuBLASLt does not load (" + cublas::why_not_installed() +
                    "); install nvidia-cublas (pip) or the CUDA toolkit, or use backend=\"tiled\"");
  }
  const Device device;
  const auto ours = [&] { return ours::choose(gemm, options, device); };
  if (!suits_cublas(gemm, options) || !cublas::installed()) return ours();
  if (!by_name) {
    if (ours::is_skinny(gemm, device) && is_quicker_if_skinny(gemm)) return ours();
    if (ours::is_many(gemm, device) || ours::is_streamed(gemm, device)) return ours();
    if (options.precision == MatmulPrecision::tf32x3) {
      MatmulPlan plan = ours();
      if (plan.precision == MatmulPrecision::tf32x3) return plan;
    }
  }
  // Where it is ours in any case, cuBLASLt is not asked: its plan takes longer than most of our launches.
  const bool has_epilogue = gemm.bias || gemm.aux || gemm.activation != Activation::none;
  if (!by_name && !has_epilogue && may_be_ours(gemm, options, device, false) &&
      cublas::is_untuned(gemm, options, device)) {
    MatmulPlan plan = ours();
    if (is_tuned_to_its_shape(plan) || ours::is_skinny(gemm, device)) {
      plan.tunable = true;
      return plan;
    }
  }
  cublas::Planned planned = cublas::plan(gemm, options, device);
  MatmulFinish finish = MatmulFinish::none;
  if (!planned.algorithm && !by_name) {
    finish = finish_after(gemm);
    if (finish != MatmulFinish::none) planned = cublas::plan(product_of(gemm), options, device);
  }
  if (!planned.algorithm) {
    if (by_name) refuse(planned.why_not);
    return ours();
  }
  // A choice by measuring would be that of the product without its epilogue.
  const bool tunable = !planned.tuned && finish == MatmulFinish::none;
  if (!by_name &&
      (planned.tuned ? planned.ours_is_quicker : may_be_ours(gemm, options, device, planned.denied_division))) {
    MatmulPlan plan = ours();
    if (planned.tuned || is_tuned_to_its_shape(plan) || ours::is_skinny(gemm, device)) {
      plan.tunable = tunable;
      return plan;
    }
  }
  MatmulPlan plan;
  plan.family = MatmulFamily::cublas;
  plan.workspace_bytes = planned.workspace_bytes;
  plan.algorithm = std::move(planned.algorithm);
  plan.finish = finish;
  plan.tunable = tunable;
  return plan;
}

std::size_t largest_workspace(const Gemm& gemm, const MatmulOptions& options) {
  if (options.backend == MatmulBackend::cublas && suits_cublas(gemm, options)) {
    if (const char* why_not = cublas::why_not_compact(gemm, options)) refuse(why_not);
  }
  const std::size_t of_cublas = suits_cublas(gemm, options) ? cublas::kMaxWorkspace : 0;
  // cuBLASLt takes every compact TF32 product whose batch has at most one dimension.
  const bool takes_it =
      of_cublas > 0 && options.precision == MatmulPrecision::tf32 && gemm.batch_ndim <= 1 && cublas::installed();
  if (options.backend == MatmulBackend::cublas || takes_it || is_empty(gemm) || gemm.k == 0) return of_cublas;
  return std::max(of_cublas, ours::largest_workspace(gemm, options));
}

void launch_matmul(const Gemm& gemm, const MatmulPlan& plan, void* workspace, cudaStream_t stream) {
  if (plan.family != MatmulFamily::cublas) return ours::launch(gemm, plan, workspace, stream);
  const void* const algorithm = plan.algorithm.get();
  if (plan.finish == MatmulFinish::none) return cublas::launch(gemm, algorithm, workspace, stream);
  cublas::launch(product_of(gemm), algorithm, workspace, stream);
  launch_finish(gemm, plan.finish, stream);
}

std::string describe(const Gemm& gemm, const MatmulPlan& plan) {
  if (plan.family != MatmulFamily::cublas) return ours::describe(gemm, plan);
  return cublas::describe(plan.algorithm.get()) +
         (plan.finish == MatmulFinish::none ? "" : ", finished by a second kernel");
}

}  // namespace interop::cuda
