/// Products of few rows or few tiles, whose k clusters of blocks share: what is served, the choice of the tile and of
/// the cluster, and the launch.
#include "cuda/matmul/wgmma/clusters.h"

#include <algorithm>
#include <limits>
#include <string>

#include "cuda/driver/driver_api.h"
#include "cuda/matmul/rates.h"
#include "cuda/matmul/wgmma/cluster_kernels.h"
#include "cuda/matmul/wgmma/layouts.h"

namespace interop::cuda::wgmma {
namespace {

/// The blocks of one product.
struct Division {
  int64_t blocks;  // of all clusters
  int part_k;      // stages of k that a block adds up
};

Division divided(const Gemm& gemm, const ClusterVariant& variant, int cluster) {
  const int64_t tiles = ceil_div(gemm.m, variant.m) * ceil_div(gemm.n, variant.n) * matrices(gemm);
  return {tiles * cluster, static_cast<int>(ceil_div(ceil_div(gemm.k, variant.k), cluster))};
}

/// How many stages a block has in shared memory, where `blocks` share `sms` SMs.
int stages_of(const ClusterVariant& variant, const Division& division, int cluster, int sms) {
  constexpr int kReserved = 1024;  // of every block, by CUDA
  // With few rows, more than half of an SM's memory in flight is slower: too many rows of DRAM are open at once.
  const int64_t least = variant.m < 64 ? 2 : 1;
  const int64_t on_sm = std::min<int64_t>(std::max(ceil_div(division.blocks, sms), least), 4);
  const int received = variant.m * variant.n * 4 / cluster * (cluster - 1);
  const int bytes = kSharedOfSm / static_cast<int>(on_sm) - kReserved - variant.other_bytes - received;
  // A stage is free once the next one is multiplied: one alone would wait for itself.
  return std::min({std::max(bytes / variant.stage_bytes, 2), division.part_k, kMostStages});
}

double microseconds(const Gemm& gemm, const ClusterVariant& variant, int cluster, int sms) {
  const Division division = divided(gemm, variant, cluster);
  const double bytes = 2.0 * (gemm.m + gemm.n) * gemm.k * matrices(gemm);  // of a and b
  // Too few SMs do not saturate the memory.
  const double busy = std::min(1.0, division.blocks / (rates::kEnoughSms * sms));
  const double memory_us = bytes / (rates::kClusterMemory * busy);
  const auto of_an_sm = static_cast<double>(ceil_div(division.blocks, sms));
  const double ingest_us = of_an_sm * division.part_k * variant.stage_bytes / rates::kSmIngest;
  return std::max(memory_us, ingest_us) + (of_an_sm - 1) * rates::kNextBlockUs + (cluster > 1 ? variant.reduce_us : 0);
}

/// May pairs of the sums be stored unchanged?
bool stores_pairs(const Gemm& gemm) {
  int64_t strides = gemm.n | (gemm.m > 1 ? gemm.c_strides.row : 0);
  for (int i = 0; i < gemm.batch_ndim; ++i) strides |= gemm.batch[i].c_stride;
  return gemm.is_plain() && !gemm.b_conjugated && gemm.out_dtype == gemm.dtype && gemm.c_strides.column == 1 &&
         strides % 2 == 0 && reinterpret_cast<uintptr_t>(gemm.c) % 4 == 0;
}

/// Launches the matrices of batch dimensions [first, batch_ndim), at most kBatchDims of them.
void launch_batch(const Gemm& gemm, int first, const ClusterVariant& variant, const MatmulPlan& plan,
                  cudaStream_t stream) {
  const int cluster = plan.kernel.cluster;
  ClusterArgs args{};
  args.c = tiled::output_args(gemm.c, gemm.c_strides, item_bytes(gemm.out_dtype));
  args.finish = tiled::finish_args(gemm, false);
  MapSpec specs[3];
  MapSpec &a = specs[0], &b = specs[1];
  set_grid(args.grid, specs, args.c, args.finish, gemm, first, variant.m, variant.n, 1);
  args.grid.k_tiles = static_cast<int>(ceil_div(gemm.k, kRowBytes / 2));
  const Layout of_a = layout_a(gemm), of_b = layout_b(gemm);
  a.data = gemm.a;
  a.inner = gemm.k;
  a.outer = gemm.m;
  a.outer_stride = of_a.outer_stride;
  a.box_outer = variant.m;
  b.data = gemm.b;
  b.inner = of_b.k_fast ? gemm.k : gemm.n;
  b.outer = of_b.k_fast ? gemm.n : gemm.k;
  b.outer_stride = of_b.outer_stride;
  b.box_outer = of_b.k_fast ? variant.n : kRowBytes / 2;
  const CUtensorMapDataType type =
      is_bfloat16(gemm) ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  encode(args.a, a, type, args.grid.flat);
  encode(args.b, b, type, args.grid.flat);

  const Division division = divided(gemm, variant, cluster);
  args.blocks = cluster;
  while (1 << args.blocks_log < cluster) ++args.blocks_log;
  args.part_k = division.part_k;
  args.stages = stages_of(variant, division, cluster, plan.multiprocessors);
  const int groups = variant.n / 8;
  args.own_groups = groups % cluster == 0 && stores_pairs(gemm) ? groups / cluster : 0;
  const int received = args.own_groups > 0 ? (cluster - 1) * args.own_groups * variant.m * 32 : 0;
  const int shared = variant.other_bytes + std::max(args.stages * variant.stage_bytes + received, variant.sums_bytes);
  const CUfunction function =
      ready(*variant.kernels[is_bfloat16(gemm)][of_b.k_fast], "launching a product", "loading the matmul kernel");
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  const CUlaunchConfig config{static_cast<unsigned>(args.grid.units * cluster),
                              1,
                              1,
                              static_cast<unsigned>(variant.threads),
                              1,
                              1,
                              static_cast<unsigned>(shared),
                              stream,
                              &attribute,
                              cluster > 1 ? 1u : 0u};
  void* parameters[] = {&args};
  check(driver().cuLaunchKernelEx(&config, function, parameters, nullptr), "launching a product");
}

}  // namespace

bool serves_clusters(const Gemm& gemm, const Device& device) {
  if (!has_16_bits(gemm) || !is_countable(gemm, kMostBlocksOfCluster)) return false;
  const Layout a = layout_a(gemm), b = layout_b(gemm);
  // The smallest tiles have 16 rows.
  const double tiles = static_cast<double>(ceil_div(gemm.m, 16)) * ceil_div(gemm.n, 32) * matrices(gemm);
  return a.k_fast && is_read(gemm, gemm.a, a, &BatchDim::a_stride) && is_read(gemm, gemm.b, b, &BatchDim::b_stride) &&
         tiles * kMostBlocksOfCluster <= std::numeric_limits<int>::max() && device.has_sm90a_code();
}

ClusterChoice choose_clusters(const Gemm& gemm, const Device& device) {
  const int sms = device.multiprocessors();
  const bool k_fast = layout_b(gemm).k_fast;
  const int rows = gemm.m <= 16 ? 16 : gemm.m <= 32 ? 32 : 64;  // those of a tile, or more if there are 64
  const auto [list, count] = cluster_variants();
  ClusterChoice best{{}, std::numeric_limits<double>::infinity()};
  for (int i = 0; i < count; ++i) {
    const ClusterVariant& variant = list[i];
    if (!variant.kernels[0][k_fast] || variant.m < rows || (rows < 64 && variant.m > rows)) continue;
    for (int cluster = 1; cluster <= kMostBlocksOfCluster; cluster *= 2) {
      if (cluster > ceil_div(gemm.k, variant.k)) break;
      const double us = microseconds(gemm, variant, cluster, sms);
      if (us >= best.us) continue;
      best.us = us;
      best.kernel.variant = i;
      best.kernel.cluster = cluster;
    }
  }
  return best;
}

void launch_clusters(const Gemm& gemm, const MatmulPlan& plan, cudaStream_t stream) {
  const ClusterVariant& variant = cluster_variants().first[plan.kernel.variant];
  // Batch dimensions beyond what a tensor map takes are walked here, one launch for each of their matrices.
  const int walked = std::max(0, gemm.batch_ndim - kBatchDims);
  tiled::walk_batch(gemm, walked, [&](const Gemm& part) { launch_batch(part, walked, variant, plan, stream); });
}

std::string describe_clusters(const Gemm& gemm, const MatmulPlan& plan) {
  const int blocks = plan.kernel.cluster;
  return std::string("wgmma clusters ") + cluster_variant_name(plan.kernel.variant) + ", " + dtype_name(gemm.dtype) +
         ", " + std::to_string(blocks) + (blocks == 1 ? " block" : " blocks");
}

int cluster_variant_count() { return cluster_variants().count; }

const char* cluster_variant_name(int variant) { return cluster_variants().first[variant].name; }

}  // namespace interop::cuda::wgmma
