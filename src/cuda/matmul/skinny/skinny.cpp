/// Products of few rows: what is served, the choice of the kernel and its grid, and the launch.
#include "cuda/matmul/skinny/skinny.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

#include "cuda/driver/driver_api.h"
#include "cuda/matmul/rates.h"
#include "cuda/matmul/skinny/kernels.h"
#include "cuda/matmul/split.h"

namespace interop::cuda::skinny {
namespace {

using tiled::matrices;

// ---- the kernels ----

constexpr double kMostGrid = std::numeric_limits<int>::max();  // blocks

/// The three kernels. A variant of the plan is one of them, doubled, plus 1 where the larger operand is read along k.
enum class Kind { registers, dots, streamed };

int variant_number(Kind kind, bool k_fast) { return 2 * static_cast<int>(kind) + k_fast; }
Kind kind_of(int number) { return static_cast<Kind>(number / 2); }
bool is_k_fast(int number) { return number % 2 == 1; }

/// The shape of a kernel for this product. `gemm` is oriented.
Variant variant_at(const Gemm& gemm, int number) {
  const bool k_fast = is_k_fast(number);
  switch (kind_of(number)) {
    case Kind::streamed:
      return streamed_variant(gemm.m, k_fast);
    case Kind::dots:
      return dots_variant(gemm.dtype, gemm.m, gemm.k);
    default:
      return registers_variant(gemm.dtype, gemm.m, k_fast);
  }
}

CUlaunchAttribute cluster_of(int blocks) {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  return attribute;
}

/// The launch of `blocks` blocks. Only the streamed kernel, which has dynamic shared memory, has clusters.
CUlaunchConfig launch_config(const Variant& variant, int64_t blocks, CUlaunchAttribute& cluster, cudaStream_t stream) {
  return {static_cast<unsigned>(blocks),
          1,
          1,
          32u << variant.warps_log,
          1,
          1,
          static_cast<unsigned>(variant.shared_bytes),
          stream,
          &cluster,
          variant.shared_bytes > 0 ? 1u : 0u};
}

// ---- which products ----

bool is_aligned(const void* data, int64_t strides, int64_t item) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && strides * item % 16 == 0;
}

/// May b be read in vectors, along k (then `k_fast` is set) or along n?
bool reads_b(const Gemm& gemm, bool& k_fast) {
  const int64_t item = item_bytes(gemm.dtype);
  int64_t strides = 0;
  for (int i = 0; i < gemm.batch_ndim; ++i) strides |= gemm.batch[i].b_stride;
  k_fast = gemm.b_strides.row == 1 || gemm.k == 1;
  if (k_fast && is_aligned(gemm.b, strides | (gemm.n > 1 ? gemm.b_strides.column : 0), item)) return true;
  k_fast = false;
  return gemm.b_strides.column == 1 && gemm.n * item % 16 == 0 &&
         is_aligned(gemm.b, strides | gemm.b_strides.row, item);
}

/// Is k a's unit stride, and are its vectors aligned?
bool reads_a_in_vectors(const Gemm& gemm) {
  int64_t strides = gemm.m > 1 ? gemm.a_strides.row : 0;
  for (int i = 0; i < gemm.batch_ndim; ++i) strides |= gemm.batch[i].a_stride;
  return gemm.a_strides.column == 1 && is_aligned(gemm.a, strides, item_bytes(gemm.dtype));
}

/// The product with its few rows in a: `gemm`, or its transpose in `flipped`; null if it is not served.
const Gemm* oriented(const Gemm& gemm, Gemm& flipped, bool& k_fast) {
  const bool few_columns = gemm.n <= kMostRows && gemm.n < gemm.m;
  if (!few_columns) return gemm.m <= kMostRows && reads_b(gemm, k_fast) ? &gemm : nullptr;
  flipped = gemm;
  tiled::transpose(flipped);
  return reads_b(flipped, k_fast) ? &flipped : nullptr;
}

double bytes_of_b(const Gemm& gemm) {
  return static_cast<double>(gemm.n) * gemm.k * matrices(gemm) * item_bytes(gemm.dtype);
}

// ---- the grids ----

/// Is the product computed as dot products? With more rows, or where k does not fill a warp's stage, the other kernels
/// are as quick. `gemm` is oriented.
bool are_dots(const Gemm& gemm, bool k_fast) {
  const int bits = gemm.dtype.bits;
  if (!k_fast || bits == 64 || gemm.m > (bits == 16 ? rates::kMostDotRowsOfHalf : rates::kMostDotRowsOfFloat32))
    return false;
  const Variant variant = dots_variant(gemm.dtype, gemm.m, gemm.k);
  if (gemm.k < variant.stage_k) return false;
  return static_cast<double>(ceil_div(gemm.n, variant.columns)) * matrices(gemm) <= kMostGrid;
}

bool streams(const Gemm& gemm, bool k_fast, const Device& device, Way way) {
  if (way != Way::chosen) return way == Way::shared_memory && may_stream(gemm, device);
  const int fewest_rows = k_fast                                    ? rates::kLeastStreamedAlongK
                          : bytes_of_b(gemm) < rates::kMuchStreamed ? rates::kLeastStreamedOfFew
                                                                    : 1;
  if (gemm.m < fewest_rows || !may_stream(gemm, device)) return false;
  const int columns = streamed_variant(gemm.m, k_fast).columns;
  return 4 * gemm.n >= 3 * ceil_div(gemm.n, int64_t{columns}) * columns;
}

/// How a product is divided into blocks, and about how long its kernel takes.
struct Grid {
  MatmulKernel kernel;
  int parts = 0;
  int64_t blocks = 0;
  double us = 0;
};

/// The blocks that share the columns of a matrix, or of a part of it.
int64_t column_blocks(const Gemm& gemm, const Variant& variant, const MatmulKernel& kernel) {
  return ceil_div(gemm.n, int64_t{variant.columns} << (variant.warps_log - kernel.k_warps_log));
}

Grid divided(const Gemm& gemm, const Variant& variant, int number, int parts, int cluster) {
  Grid grid;
  grid.kernel.variant = number;
  grid.kernel.cluster = cluster;
  grid.kernel.part_k =
      static_cast<int>(ceil_div(ceil_div(gemm.k, int64_t{parts} * cluster), variant.stage_k) * variant.stage_k);
  grid.parts = static_cast<int>(ceil_div(gemm.k, int64_t{grid.kernel.part_k} * cluster));
  return grid;
}

void set_k_warps(Grid& grid, const Gemm& gemm, const Variant& variant, int log) {
  grid.kernel.k_warps_log = log;
  grid.blocks = column_blocks(gemm, variant, grid.kernel) * grid.parts * matrices(gemm) * grid.kernel.cluster;
}

Grid grid_of_registers(const Gemm& gemm, bool k_fast, int parts, const Device& device) {
  const int number = variant_number(are_dots(gemm, k_fast) ? Kind::dots : Kind::registers, k_fast);
  const Variant variant = variant_at(gemm, number);
  Grid grid = divided(gemm, variant, number, parts, 1);
  const int sms = device.multiprocessors();
  // Warps take columns instead of k where half of them would have no k. They also do where each would have less than
  // two stages, as long as there are blocks for all SMs.
  for (int log = variant.warps_log;; --log) {
    set_k_warps(grid, gemm, variant, log);
    const int part_k = grid.kernel.part_k;
    if (log == 0 || part_k >= 2 * variant.stage_k << log) break;
    if (2 * part_k > variant.stage_k << log && grid.blocks < rates::kEnoughBlocksOfSm * sms) break;
  }
  const double bytes = bytes_of_b(gemm), of_block = bytes / grid.blocks;
  const double busiest = std::ceil(static_cast<double>(grid.blocks) / sms) * of_block;
  grid.us = std::max(
      {of_block / (rates::kWarpRate * (1 << variant.warps_log)), busiest / rates::kSmRate, bytes / rates::kMemoryRate});
  return grid;
}

/// How many blocks of the streamed kernel the device holds at once, in clusters of `cluster`; negative if it takes no
/// clusters of that size. A cluster lies in one GPC, and some GPCs have fewer SMs.
int resident_blocks(const Variant& variant, int cluster, int device) {
  static std::atomic<int> kept[kMaxDevices][kMostBlocks];  // the same for all variants
  std::atomic<int>& blocks = kept[device][cluster - 1];
  if (const int known = blocks.load(std::memory_order_relaxed)) return known;
  const CUfunction function = ready(*variant.kernel, "launching a product", "loading the matmul kernel");
  CUlaunchAttribute attribute = cluster_of(cluster);
  const CUlaunchConfig config = launch_config(variant, cluster, attribute, nullptr);
  int clusters = 0;
  const CUresult status = driver().cuOccupancyMaxActiveClusters(&clusters, function, &config);
  if (status != CUDA_ERROR_INVALID_CLUSTER_SIZE) check(status, "launching a product");
  blocks.store(clusters > 0 ? clusters * cluster : -1, std::memory_order_relaxed);
  return blocks;
}

Grid grid_of_streamed(const Gemm& gemm, bool k_fast, int parts, const Device& device) {
  const int number = variant_number(Kind::streamed, k_fast);
  const Variant variant = variant_at(gemm, number);
  const int sms = device.multiprocessors();
  const double stage_us = rates::kStageUs + rates::kStageUsOfRow * variant.rows;
  const double memory_us = bytes_of_b(gemm) / rates::kFastestMemory;
  Grid best;
  for (int cluster = 1; cluster <= kMostBlocks; ++cluster) {
    const int held = resident_blocks(variant, cluster, device.index());
    if (held < 0 && cluster > 1) continue;
    const int64_t resident = std::max(held, 1);
    Grid grid = divided(gemm, variant, number, parts, cluster);
    set_k_warps(grid, gemm, variant, variant.warps_log);
    const auto time_of = [&](int64_t blocks) {  // for so many resident blocks
      const double of_an_sm = static_cast<double>(blocks) / sms * (cluster > 1 ? rates::kUnevenClusters : 1);
      const double busiest = std::min(std::ceil(of_an_sm), double{kStreamedBlocks});
      return grid.kernel.part_k / variant.stage_k * std::max(busiest * stage_us, rates::kAloneUs) + rates::kBlockUs;
    };
    const int64_t rounds = grid.blocks / resident, left = grid.blocks % resident;
    const double busy = rounds * time_of(resident) + (left > 0 ? time_of(left) : 0);
    grid.us = std::max(busy, memory_us) + rates::kNotOverlapped * busy;
    if (best.blocks == 0 || grid.us < best.us) best = grid;
  }
  return best;
}

/// Chooses the grids of one product. `asked` is served.
class Grids {
 public:
  Grids(const Gemm& asked, const Device& device, Way way)
      : gemm_(*oriented(asked, flipped_, k_fast_)),
        device_(device),
        is_transposed_(&gemm_ == &flipped_),
        streams_(streams(gemm_, k_fast_, device, way)) {}
  Grids(const Grids&) = delete;
  Grids& operator=(const Grids&) = delete;

  const Gemm& gemm() const { return gemm_; }
  Grid in_parts(int count) const {
    return streams_ ? grid_of_streamed(gemm_, k_fast_, count, device_)
                    : grid_of_registers(gemm_, k_fast_, count, device_);
  }
  MatmulPlan plan(const Grid& undivided, const Grid& chosen) const {
    MatmulPlan plan;
    plan.family = MatmulFamily::skinny;
    plan.transposed = is_transposed_;
    plan.parts = chosen.parts;
    plan.kernel = chosen.kernel;
    plan.undivided = undivided.kernel;
    if (plan.parts > 1) plan.workspace_bytes = tiled::partial_bytes(gemm_, plan.parts);
    return plan;
  }

 private:
  Gemm flipped_;
  bool k_fast_;
  const Gemm& gemm_;
  const Device& device_;
  const bool is_transposed_, streams_;
};

}  // namespace

bool serves(const Gemm& gemm, const Device& device) {
  if (std::min(gemm.m, gemm.n) > kMostRows) return false;
  const bool is_float = gemm.dtype.code == kDLFloat || gemm.dtype.code == kDLBfloat;
  if (!is_float || gemm.dtype.bits < 16 || gemm.b_dtype != gemm.dtype) return false;
  if (gemm.m < 1 || gemm.n < 1 || gemm.k < 1 || gemm.batch_ndim > kKernelBatchDims) return false;
  const double of_matrix = static_cast<double>(std::max(gemm.m, gemm.n)) * gemm.k;
  if (of_matrix * matrices(gemm) < rates::kSkinnyElements || gemm.k > std::numeric_limits<int>::max() / 2) return false;
  if (static_cast<double>(ceil_div(std::max(gemm.m, gemm.n), 16)) * matrices(gemm) > kMostGrid) return false;
  Gemm flipped;
  bool k_fast;
  const Gemm* const found = oriented(gemm, flipped, k_fast);
  if (!found) return false;
  // Many small matrices go to the tiled kernels: a block here has at most one.
  const bool is_cheap = found->m <= rates::kSkinnyCheapRows && (k_fast || gemm.dtype.bits != 16);
  if (of_matrix < rates::kSkinnyElements / (is_cheap ? rates::kSkinnyCheaper : 1)) return false;
  return device.has_sm80_code();
}

bool may_stream(const Gemm& gemm, const Device& device) { return gemm.dtype == kFloat32 && device.has_sm90a_code(); }

MatmulPlan choose(const Gemm& asked, std::size_t most_bytes, const Device& device, Way way) {
  const Grids grids(asked, device, way);
  const Grid undivided = grids.in_parts(1);
  if (!tiled::may_divide(asked)) return grids.plan(undivided, undivided);
  const auto time = [&](const Grid& grid) {
    if (grid.parts == 1) return grid.us;
    return grid.us + (rates::kSumUs + 2 * tiled::partial_bytes(grids.gemm(), grid.parts) / rates::kMemoryRate);
  };
  const int64_t enough_blocks = rates::kEnoughBlocksOfSm * device.multiprocessors();
  Grid grid = undivided, best = undivided;
  double best_us = time(grid);
  for (int count = 2; count <= rates::kMostParts && grid.blocks < enough_blocks; count += std::max(1, count / 2)) {
    grid = grids.in_parts(count);
    if (tiled::partial_bytes(grids.gemm(), grid.parts) > most_bytes) break;
    const double us = time(grid);
    if (us < best_us) {
      best_us = us;
      best = grid;
    }
  }
  return grids.plan(undivided, best);
}

MatmulPlan choose_in_parts(const Gemm& gemm, int parts, const Device& device, Way way) {
  const Grids grids(gemm, device, way);
  return grids.plan(grids.in_parts(1), grids.in_parts(parts));
}

void launch(const Gemm& gemm, const MatmulPlan& plan, void* workspace, cudaStream_t stream) {
  const bool is_divided = plan.parts > 1 && workspace;
  const MatmulKernel& kernel = is_divided ? plan.kernel : plan.undivided;
  const Variant variant = variant_at(gemm, kernel.variant);
  const int parts = is_divided ? plan.parts : 1;
  const int64_t item = item_bytes(gemm.dtype);

  KernelArgs args{};
  args.a = {static_cast<const char*>(gemm.a), gemm.a_strides.row * item, gemm.a_strides.column * item, {}};
  args.b = {static_cast<const char*>(gemm.b), gemm.b_strides.column * item, gemm.b_strides.row * item, {}};
  args.c = tiled::output_args(gemm.c, gemm.c_strides, item_bytes(gemm.out_dtype));
  args.finish = tiled::finish_args(gemm, false);
  args.m = static_cast<int>(gemm.m);
  args.n = gemm.n;
  args.k = static_cast<int>(gemm.k);
  args.whole_k = static_cast<int>(gemm.k / (16 / item) * (16 / item));
  args.parts = parts;
  args.part_k = kernel.part_k;
  args.cluster = kernel.cluster;
  const int64_t columns = column_blocks(gemm, variant, kernel);
  args.column_blocks = divisor_of(columns);
  args.k_warps_log = kernel.k_warps_log;
  args.a_vectors = reads_a_in_vectors(gemm);
  args.is_plain = gemm.is_plain();
  args.down_rows = std::abs(gemm.c_strides.row) < std::abs(gemm.c_strides.column);
  args.batch_ndim = gemm.batch_ndim;
  for (int i = 0; i < gemm.batch_ndim; ++i) {
    args.a.batch_stride[i] = gemm.batch[i].a_stride * item;
    args.b.batch_stride[i] = gemm.batch[i].b_stride * item;
  }
  tiled::set_output_batch(gemm, 0, args.batch_size, args.c, args.finish);
  args.matrices = matrices(gemm);
  args.partials = is_divided ? static_cast<char*>(workspace) : nullptr;

  const CUfunction function = ready(*variant.kernel, "launching a product", "loading the matmul kernel");
  void* parameters[] = {&args};
  CUlaunchAttribute attribute = cluster_of(kernel.cluster);
  const CUlaunchConfig config =
      launch_config(variant, columns * parts * args.matrices * kernel.cluster, attribute, stream);
  check(driver().cuLaunchKernelEx(&config, function, parameters, nullptr), "launching a product");
  if (is_divided) tiled::launch_sum_of_parts(gemm, workspace, parts, stream);
}

std::string describe(const Gemm& gemm, const MatmulPlan& plan) {
  const int number = plan.kernel.variant, rows = variant_at(gemm, number).rows;
  const Kind kind = kind_of(number);
  return std::string("skinny ") +
         (kind == Kind::streamed ? "streamed "
          : kind == Kind::dots   ? "dots "
                                 : "") +
         std::to_string(rows) + (rows == 1 ? " row, " : " rows, ") + dtype_name(gemm.dtype);
}

}  // namespace interop::cuda::skinny
