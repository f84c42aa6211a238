/// Our own kernels: chooses the family, the variant and the parts of k of a product, and launches what was chosen.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "cuda/matmul/backends.h"
#include "cuda/matmul/mma/many.h"
#include "cuda/matmul/mma/mma.h"
#include "cuda/matmul/mma/wide.h"
#include "cuda/matmul/rates.h"
#include "cuda/matmul/skinny/skinny.h"
#include "cuda/matmul/split.h"
#include "cuda/matmul/tiled/tiled.h"
#include "cuda/matmul/wgmma/clusters.h"
#include "cuda/matmul/wgmma/integers.h"
#include "cuda/matmul/wgmma/wgmma.h"

namespace interop::cuda::ours {
namespace {

using tiled::matrices;
using tiled::may_divide;
using tiled::partial_bytes;
using tiled::sum_dtype;

bool is_empty(const Gemm& gemm) { return gemm.m == 0 || gemm.n == 0 || matrices(gemm) == 0; }

/// Is the product so small that the general kernels, which start sooner, are as quick as the tensor cores?
bool is_small(const Gemm& gemm) {
  constexpr int64_t kSmall = rates::kSmallGeneral;
  return gemm.k <= kSmall && multiplications(gemm) <= kSmall * kSmall * kSmall;
}

// ---- split-k ----

/// k in equal parts, and a rest.
struct Parts {
  int count;
  int64_t k, rest;

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

// ---- choosing ----

/// The quickest variant of a family that may split k.
Estimate quickest_variant(const Gemm& gemm, MatmulFamily family, const Device& device) {
  switch (family) {
    case MatmulFamily::wgmma:
      return wgmma::choose(gemm, MatmulPrecision::exact, false, device);
    case MatmulFamily::mma:
      return mma::choose(gemm, device);
    case MatmulFamily::mma_wide:
      return mma_wide::choose(gemm, device);
    default:
      return tiled::choose(gemm, device);
  }
}

/// Plans a family that may split k, so that there are tiles for all SMs. k is not split, unless that saves more time
/// than the kernel that adds up the partial sums takes. `gemm` is stored by rows. Returns about how long it takes.
double plan_in_parts(const Gemm& gemm, MatmulFamily family, const Device& device, MatmulPlan& plan) {
  constexpr int kBatchDims = 2;  // every kernel takes one more
  const Estimate whole = quickest_variant(gemm, family, device);
  plan.family = family;
  plan.kernel.variant = plan.undivided.variant = whole.variant;
  if (family == MatmulFamily::wgmma) plan.multiprocessors = device.multiprocessors();
  if (!may_divide(gemm) || gemm.batch_ndim > kBatchDims) return whole.us;
  const std::size_t most_bytes = std::min(rates::kMostPartialBytes, device.l2_bytes());
  double best_us = whole.us, least_us = rates::kWorthSplitting * whole.us;
  for (const int count : {2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, rates::kMostParts}) {
    const Parts parts = divided(gemm.k, count);
    const std::size_t bytes = partial_bytes(gemm, parts.sums());
    if (parts.k < rates::kLeastPartK || bytes > most_bytes) break;
    const Estimate part = quickest_variant(sums_of(gemm, parts, nullptr), family, device);
    Estimate rest{0, 0};
    double us = part.us + rates::kLaunchUs + 2 * bytes / rates::kMemoryRate;
    if (parts.rest > 0) {
      rest = quickest_variant(sums_of(gemm, 0, parts.rest, nullptr), family, device);
      us += rates::kLaunchUs + rest.us;
    }
    if (us >= least_us) continue;
    least_us = best_us = us;
    plan.parts = count;
    plan.kernel.variant = part.variant;
    plan.rest.variant = rest.variant;
    plan.workspace_bytes = bytes;
  }
  return best_us;
}

/// The family of a product that neither the skinny kernels nor the tensor cores of sm_90 compute.
MatmulFamily other_family(const Gemm& gemm, MatmulPrecision precision, const Device& device) {
  if (mma::serves(gemm, device)) return MatmulFamily::mma;
  const bool is_wide =
      mma_wide::serves(gemm, precision, device) || mma_wide::serves(gemm, MatmulPrecision::exact, device);
  return is_wide ? MatmulFamily::mma_wide : MatmulFamily::tiled;
}

Gemm transposed(const Gemm& gemm) {
  Gemm flipped = gemm;
  tiled::transpose(flipped);
  return flipped;
}

/// Plans the kernel whose blocks share k in clusters, with few columns as the rows of a, if it takes them so. Returns
/// about how long it takes; infinite if it does not serve the product.
double plan_clusters(const Gemm& gemm, const Device& device, MatmulPlan& plan) {
  const bool has_few_columns = gemm.n < gemm.m && gemm.n <= rates::kMostFlippedRows;
  const bool flips = has_few_columns && wgmma::serves_clusters(transposed(gemm), device);
  if (!flips && !wgmma::serves_clusters(gemm, device)) return std::numeric_limits<double>::infinity();
  const wgmma::ClusterChoice choice = wgmma::choose_clusters(flips ? transposed(gemm) : gemm, device);
  plan = {};
  plan.family = MatmulFamily::wgmma_clusters;
  plan.transposed = flips;
  plan.kernel = plan.undivided = choice.kernel;
  plan.multiprocessors = device.multiprocessors();
  return choice.us;
}

double bytes_of_larger(const Gemm& gemm) {
  return static_cast<double>(std::max(gemm.m, gemm.n)) * gemm.k * item_bytes(gemm.dtype);
}

/// Are the larger matrices so large that the clusters' loads reach memory's rate? One row by a matrix whose unit stride
/// is k is for the kernel of dot products.
bool streams_much(const Gemm& gemm) {
  const bool along_k = gemm.m == 1 ? gemm.b_strides.row == 1 : gemm.n == 1 && gemm.a_strides.column == 1;
  return !along_k && bytes_of_larger(gemm) >= rates::kLeastClusterBytes;
}

/// The quickest variant for a plan of the tensor cores of sm_90.
Estimate quickest_variant(const Gemm& gemm, const MatmulPlan& plan, const Device& device) {
  return plan.family == MatmulFamily::wgmma_integers ? wgmma::choose_integers(gemm, device)
                                                     : wgmma::choose(gemm, plan.precision, plan.packs_b, device);
}

/// How long packing takes for such a plan, with its launch.
double packing_us(const MatmulPlan& plan) {
  const bool in_two = plan.precision == MatmulPrecision::tf32x3;
  const double bytes = static_cast<double>(plan.workspace_bytes) * (in_two ? 1.5 : 2);  // read and written
  return bytes == 0 ? 0 : rates::kPackingUs + bytes / rates::kPackingRate;
}

/// Plans a product that is not small: by the tensor cores of sm_90, if they are the quickest with what they pack first.
/// `gemm` is `asked`, or its transpose, stored by rows.
void plan_large(const Gemm& asked, const Gemm& gemm, const MatmulOptions& options, const Device& device,
                MatmulPlan& plan) {
  std::optional<MatmulPlan> whole = is_integral(asked.dtype)
                                        ? wgmma::plan_integers(asked, options.most_packed_bytes, device)
                                        : wgmma::plan(asked, options.precision, options.most_packed_bytes, device);
  const bool is_half = asked.dtype.bits == 16 && is_float(asked.dtype);
  if (whole && is_half && whole->workspace_bytes == 0) {
    const double us = plan_in_parts(gemm, MatmulFamily::wgmma, device, plan);
    const double memory_us = static_cast<double>(gemm.m + gemm.n) * gemm.k * matrices(gemm) * 2 / rates::kMemoryRate;
    MatmulPlan clusters;
    if (plan_clusters(gemm, device, clusters) < rates::kWorthSplitting * std::max(us, memory_us)) plan = clusters;
    return;
  }
  const double others_us = plan_in_parts(gemm, other_family(gemm, options.precision, device), device, plan);
  if (!whole) return;
  Estimate estimate = quickest_variant(asked, *whole, device);
  if (estimate.us + packing_us(*whole) >= others_us) return;
  if (&gemm != &asked) {
    std::swap(whole->packs_a, whole->packs_b);
    estimate = quickest_variant(gemm, *whole, device);
  }
  whole->kernel.variant = whole->undivided.variant = estimate.variant;
  plan = *whole;
}

/// The kernels store along rows of c, so a column-major c is computed as its transpose.
bool is_column_major(const Gemm& gemm) { return gemm.c_strides.row == 1 && gemm.c_strides.column != 1; }

/// Plans `gemm`, which is `asked`, or its transpose, stored by rows.
MatmulPlan choose_by_rows(const Gemm& asked, const Gemm& gemm, const MatmulOptions& options, const Device& device) {
  const bool flips = &gemm != &asked, is_few = skinny::serves(asked, device);
  MatmulPlan plan;
  if (mma_many::serves(gemm, device)) {
    plan.family = MatmulFamily::mma_many;
  } else if (flips ? skinny::serves(gemm, device) : is_few) {
    const bool is_streamed = streams_much(gemm) && std::isfinite(plan_clusters(gemm, device, plan));
    if (!is_streamed) plan = skinny::choose(gemm, std::min(rates::kMostPartialBytes, device.l2_bytes()), device);
  } else if (is_small(gemm)) {  // k is too short to split
    plan.family = MatmulFamily::tiled;
    plan.kernel.variant = plan.undivided.variant = tiled::choose(gemm, device).variant;
  } else if (is_few) {  // a square, of which only the transpose is not served
    plan_in_parts(gemm, other_family(gemm, MatmulPrecision::exact, device), device, plan);
  } else {
    plan_large(asked, gemm, options, device, plan);
  }
  plan.transposed = plan.transposed != flips;
  return plan;
}

// ---- launching ----

/// Launches one variant on all of k, or on a part of it.
void launch_variant(const Gemm& gemm, const MatmulPlan& plan, int variant, void* workspace, cudaStream_t stream) {
  switch (plan.family) {
    case MatmulFamily::wgmma:
      return wgmma::launch_variant(variant, gemm, plan, workspace, stream);
    case MatmulFamily::wgmma_integers:
      return wgmma::launch_integer_variant(variant, gemm, plan, workspace, stream);
    case MatmulFamily::mma:
      return mma::launch_variant(variant, gemm, stream);
    case MatmulFamily::mma_wide:
      return mma_wide::launch_variant(variant, gemm, stream);
    default:
      return tiled::launch_variant(variant, gemm, stream);
  }
}

std::string describe_variant(const Gemm& gemm, const MatmulPlan& plan) {
  const int variant = plan.kernel.variant;
  switch (plan.family) {
    case MatmulFamily::skinny:
      return skinny::describe(gemm, plan);
    case MatmulFamily::wgmma:
      return wgmma::describe(gemm, plan);
    case MatmulFamily::wgmma_clusters:
      return wgmma::describe_clusters(gemm, plan);
    case MatmulFamily::wgmma_integers:
      return wgmma::describe_integers(gemm, variant);
    case MatmulFamily::mma_many:
      return mma_many::describe(gemm);
    case MatmulFamily::mma:
      return mma::describe(gemm, variant);
    case MatmulFamily::mma_wide:
      return mma_wide::describe(gemm, variant);
    default:
      return tiled::describe(gemm, variant);
  }
}

/// Launches the product that `plan` computes.
void launch_computed(const Gemm& gemm, const MatmulPlan& plan, void* workspace, cudaStream_t stream) {
  if (plan.family == MatmulFamily::skinny) return skinny::launch(gemm, plan, workspace, stream);
  if (plan.family == MatmulFamily::wgmma_clusters) return wgmma::launch_clusters(gemm, plan, stream);
  if (plan.family == MatmulFamily::mma_many) return mma_many::launch(gemm, stream);
  if (plan.parts == 1 || !workspace) return launch_variant(gemm, plan, plan.undivided.variant, workspace, stream);
  const Parts parts = divided(gemm.k, plan.parts);
  launch_variant(sums_of(gemm, parts, workspace), plan, plan.kernel.variant, nullptr, stream);
  if (parts.rest > 0) {
    char* const last = static_cast<char*>(workspace) + partial_bytes(gemm, parts.count);
    launch_variant(sums_of(gemm, parts.k * parts.count, parts.rest, last), plan, plan.rest.variant, nullptr, stream);
  }
  tiled::launch_sum_of_parts(gemm, workspace, parts.sums(), stream);
}

}  // namespace

bool is_skinny(const Gemm& gemm, const Device& device) { return skinny::serves(gemm, device); }

bool is_many(const Gemm& gemm, const Device& device) {
  return mma_many::serves(is_column_major(gemm) ? transposed(gemm) : gemm, device);
}

bool is_streamed(const Gemm& gemm, const Device& device) {
  if (std::min(gemm.m, gemm.n) > rates::kMostClusterRows || !streams_much(gemm)) return false;
  MatmulPlan plan;
  return bytes_of_larger(gemm) * matrices(gemm) <= rates::kMostClusterBytes &&
         std::isfinite(plan_clusters(gemm, device, plan));
}

MatmulPlan choose(const Gemm& gemm, const MatmulOptions& options, const Device& device) {
  if (is_empty(gemm)) return {};
  if (!is_column_major(gemm)) return choose_by_rows(gemm, gemm, options, device);
  return choose_by_rows(gemm, transposed(gemm), options, device);
}

std::size_t largest_workspace(const Gemm& gemm, const MatmulOptions& options) {
  if (is_empty(gemm) || is_small(gemm)) return 0;
  const std::size_t sums =
      may_divide(gemm) ? std::min(rates::kMostPartialBytes, partial_bytes(gemm, rates::kMostParts + 1)) : 0;
  const std::size_t packed = is_integral(gemm.dtype)
                                 ? wgmma::largest_integer_packing(gemm, options.most_packed_bytes)
                                 : wgmma::largest_packing(gemm, options.precision, options.most_packed_bytes);
  return std::max(sums, packed);
}

void launch(const Gemm& gemm, const MatmulPlan& plan, void* workspace, cudaStream_t stream) {
  if (plan.family == MatmulFamily::none) return;
  if (!plan.transposed) return launch_computed(gemm, plan, workspace, stream);
  launch_computed(transposed(gemm), plan, workspace, stream);
}

std::string describe(const Gemm& gemm, const MatmulPlan& plan) {
  if (plan.family == MatmulFamily::none) return "nothing to compute";
  const bool packs_a = plan.transposed ? plan.packs_b : plan.packs_a;
  const bool packs_b = plan.transposed ? plan.packs_a : plan.packs_b;
  const char* const packed = packs_a && packs_b ? "; a and b are packed first, in the workspace"
                             : packs_a          ? "; a is packed first, in the workspace"
                             : packs_b          ? "; b is packed first, in the workspace"
                                                : "";
  const std::string split = plan.parts == 1 ? "" : ", split-k " + std::to_string(plan.parts);
  return "tiled " + describe_variant(plan.transposed ? transposed(gemm) : gemm, plan) + split + packed;
}

}  // namespace interop::cuda::ours
