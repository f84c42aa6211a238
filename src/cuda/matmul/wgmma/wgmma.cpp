/// float16, bfloat16 and TF32 products on the tensor cores of sm_90: what is served and packed, the choice of the tile,
/// and the launch.
#include "cuda/matmul/wgmma/wgmma.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "cuda/matmul/pack.h"
#include "cuda/matmul/rates.h"
#include "cuda/matmul/wgmma/kernels.h"
#include "cuda/matmul/wgmma/launch.h"
#include "cuda/matmul/wgmma/layouts.h"

namespace interop::cuda::wgmma {
namespace {

// ---- layouts ----

/// Is c^T = b^T a^T computed, because b has to go through registers? A packed b does not: its unit stride is k.
bool is_transposed(const Gemm& gemm, bool packs_b) {
  return gemm.dtype == kFloat32 && !packs_b && !layout_b(gemm).k_fast;
}

/// Is the bias, if there is one, contiguous along the rows of the result, and 4-byte aligned?
bool has_plain_bias(const Gemm& gemm) {
  return !gemm.bias || (gemm.bias_strides.row == 0 && gemm.bias_strides.column == 1 &&
                        reinterpret_cast<uintptr_t>(gemm.bias) % 4 == 0);
}

/// Can the kernel apply all of the epilogue to the sums in registers?
bool finishes_in_registers(Gemm gemm) {
  if (!has_plain_bias(gemm)) return false;
  gemm.bias = nullptr;
  gemm.activation = Activation::none;
  return gemm.is_plain();
}

/// May TMA store the result? It stores whole 16 bytes, even beyond the last column, so rows must be whole vectors.
bool stores_by_tma(const Gemm& gemm) {
  if (!finishes_in_registers(gemm) || gemm.out_dtype != gemm.dtype) return false;
  if (gemm.dtype == kFloat32) return false;  // rows of its boxes are shorter
  const int64_t vector = vector_of(gemm);
  if (!is_tma_address(gemm.c) || gemm.c_strides.column != 1 || gemm.n % vector != 0) return false;
  if (gemm.m > 1 && !is_tma_stride(gemm.c_strides.row, vector)) return false;
  for (int i = 0; i < gemm.batch_ndim; ++i) {
    if (!is_tma_stride(gemm.batch[i].c_stride, vector)) return false;
  }
  return true;
}

// ---- the launcher ----

/// How TMA reads the operands. It rounds float32 to TF32; operands packed in two parts are rounded already.
CUtensorMapDataType map_type(const Gemm& gemm, MatmulPrecision precision) {
  if (precision == MatmulPrecision::tf32x3) return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  if (precision == MatmulPrecision::tf32) return CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
  return is_bfloat16(gemm) ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

int64_t tile_k(const Gemm& gemm) { return kRowBytes / item_bytes(gemm.dtype); }
int64_t k_tiles_of(const Gemm& gemm) { return ceil_div(gemm.k, tile_k(gemm)); }

Packed packed_as(MatmulPrecision precision) {
  return precision == MatmulPrecision::tf32     ? Packed::tf32
         : precision == MatmulPrecision::tf32x3 ? Packed::tf32_in_two
                                                : Packed::bits_16;
}

/// Launches the matrices of batch dimensions [first, batch_ndim), at most kBatchDims of them.
void launch_batch(Gemm gemm, int first, const MatmulPlan& plan, const Variant& variant, cudaStream_t stream) {
  const MatmulPrecision precision = plan.precision;
  KernelArgs args{};
  args.c = tiled::output_args(gemm.c, gemm.c_strides, item_bytes(gemm.out_dtype));
  args.finish = tiled::finish_args(gemm, false);
  args.transposed = is_transposed(gemm, false);
  if (args.transposed) tiled::transpose(gemm);
  MapSpec specs[3];
  auto& [a, b, c] = specs;
  set_grid(args.grid, specs, args.c, args.finish, gemm, first, variant.m, variant.n, variant.cluster);
  args.grid.k_tiles = static_cast<int>(k_tiles_of(gemm));
  a.data = gemm.a;
  b.data = gemm.b;
  c.data = gemm.c;

  const Layout of_a = layout_a(gemm), of_b = layout_b(gemm);
  int64_t k = gemm.k;  // the length of a row that TMA reads
  if (precision == MatmulPrecision::tf32x3) {
    const Packing packed = packing_of_a(gemm, packed_as(precision));
    args.plane = static_cast<int>(packed.plane());
    k = packed.row();
  }
  a.inner = of_a.k_fast ? k : gemm.m;
  a.outer = of_a.k_fast ? gemm.m : gemm.k;
  a.outer_stride = of_a.outer_stride;
  a.box_outer = of_a.k_fast ? variant.m : static_cast<int>(tile_k(gemm));
  b.inner = of_b.k_fast ? k : gemm.n;
  b.outer = of_b.k_fast ? gemm.n : gemm.k;
  b.outer_stride = of_b.outer_stride;
  b.box_outer = of_b.k_fast ? variant.b_share : 64;
  const CUtensorMapDataType type = map_type(gemm, precision);
  const bool rounds_in_registers = gemm.dtype == kFloat32 && !of_a.k_fast;
  encode(args.a, a, rounds_in_registers ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : type, args.grid.flat);
  encode(args.b, b, type, args.grid.flat);
  args.c_by_tma = stores_by_tma(gemm);
  if (args.c_by_tma) {
    c.inner = gemm.n;
    c.outer = gemm.m;
    c.outer_stride = gemm.m > 1 ? gemm.c_strides.row : vector_of(gemm);
    c.box_outer = 64;
    encode(args.c_map, c, type);
  }
  launch_tiles(*variant.kernels[is_bfloat16(gemm)][of_a.k_fast][of_b.k_fast], &args, args.grid, variant.cluster,
               variant.shared_bytes, plan.multiprocessors, stream);
}

// ---- what is served ----

bool has_precision(const Gemm& gemm, MatmulPrecision precision) {
  if (precision == MatmulPrecision::exact) return has_16_bits(gemm);
  return gemm.dtype == kFloat32 && gemm.b_dtype == kFloat32;
}

/// Which of a and b are packed. For TF32, one operand whose unit stride is not k may go through registers: the larger
/// one, if there are two.
std::pair<bool, bool> packs(const Gemm& gemm, MatmulPrecision precision) {
  if (precision == MatmulPrecision::tf32x3) return {true, true};
  const Layout a = layout_a(gemm), b = layout_b(gemm);
  const bool packs_a = !is_read(gemm, gemm.a, a, &BatchDim::a_stride);
  const bool packs_b = !is_read(gemm, gemm.b, b, &BatchDim::b_stride);
  if (precision == MatmulPrecision::exact || packs_a || packs_b || a.k_fast || b.k_fast) return {packs_a, packs_b};
  const Packed as = packed_as(precision);
  const bool a_is_smaller = packed_bytes(gemm, true, false, as) < packed_bytes(gemm, false, true, as);
  return {a_is_smaller, !a_is_smaller};
}

}  // namespace

std::size_t largest_packing(const Gemm& gemm, MatmulPrecision precision, std::size_t most_packed_bytes) {
  if (!has_precision(gemm, precision) || !is_countable(gemm, 2) || !is_built_for_sm90a()) return 0;
  const auto [packs_a, packs_b] = packs(gemm, precision);
  const std::size_t bytes = packed_bytes(gemm, packs_a, packs_b, packed_as(precision));
  return bytes <= most_packed_bytes ? bytes : 0;
}

std::optional<MatmulPlan> plan(const Gemm& gemm, MatmulPrecision precision, std::size_t most_packed_bytes,
                               const Device& device) {
  if (!has_precision(gemm, precision) || !is_countable(gemm, 2) || !device.has_sm90a_code()) return std::nullopt;
  MatmulPlan made;
  made.family = MatmulFamily::wgmma;
  made.precision = precision;
  std::tie(made.packs_a, made.packs_b) = packs(gemm, precision);
  if (!can_pack(gemm, made.packs_a, made.packs_b)) return std::nullopt;
  made.workspace_bytes = packed_bytes(gemm, made.packs_a, made.packs_b, packed_as(precision));
  if (made.workspace_bytes > most_packed_bytes) return std::nullopt;
  made.multiprocessors = device.multiprocessors();
  return made;
}

Estimate choose(const Gemm& gemm, MatmulPrecision precision, bool packs_b, const Device& device) {
  const int sms = device.multiprocessors();
  const int64_t count = matrices(gemm);
  const auto k_tiles = static_cast<double>(k_tiles_of(gemm) * (precision == MatmulPrecision::tf32x3 ? 3 : 1));
  int64_t m = gemm.m, n = gemm.n;
  if (is_transposed(gemm, packs_b)) std::swap(m, n);
  const Variants all = variants(precision);
  Estimate best{all.count - 1, std::numeric_limits<double>::infinity()};
  for (int i = 0; i < all.count; ++i) {
    const Variant& variant = all.first[i];
    const int64_t tiles = ceil_div(m, variant.m * variant.cluster) * variant.cluster * ceil_div(n, variant.n) * count;
    if (variant.ping_pong && tiles <= sms) continue;  // half of the warpgroups would have no tile
    const double us =
        static_cast<double>(ceil_div(tiles, sms)) * (k_tiles * variant.time.k_tile_us + variant.time.store_us);
    if (us < best.us) best = {i, us};
  }
  return best;
}

void launch_variant(int variant, const Gemm& asked, const MatmulPlan& plan, void* workspace, cudaStream_t stream) {
  Gemm gemm = asked;
  pack(gemm, plan.packs_a, plan.packs_b, packed_as(plan.precision), workspace, stream);
  // Batch dimensions beyond what a tensor map takes are walked here, one launch for each of their matrices.
  const int walked = std::max(0, gemm.batch_ndim - kBatchDims);
  tiled::walk_batch(gemm, walked, [&](const Gemm& part) {
    launch_batch(part, walked, plan, variants(plan.precision).first[variant], stream);
  });
}

std::string describe(const Gemm& gemm, const MatmulPlan& plan) {
  return std::string("wgmma ") + variant_name(plan.precision, plan.kernel.variant) + ", " +
         (plan.precision == MatmulPrecision::tf32     ? "tf32"
          : plan.precision == MatmulPrecision::tf32x3 ? "tf32x3"
                                                      : dtype_name(gemm.dtype));
}

int variant_count(MatmulPrecision precision) { return variants(precision).count; }

const char* variant_name(MatmulPrecision precision, int variant) { return variants(precision).first[variant].name; }

}  // namespace interop::cuda::wgmma
