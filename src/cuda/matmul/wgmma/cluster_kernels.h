/// The kernels whose blocks share k in clusters, by tile, and their arguments. Private to src/cuda.
#pragma once

#include <cstddef>

#include "cuda/driver/kernel.h"
#include "cuda/matmul/wgmma/launch.h"

namespace interop::cuda::wgmma {

constexpr int kMostBlocksOfCluster = 8;  // that any device with sm_90 takes
constexpr int kMostStages = 30;
constexpr int kSharedOfSm = 227 * 1024;

struct ClusterArgs {
  CUtensorMap a, b;
  Grid grid;
  OutputArgs c;
  FinishArgs finish;
  int blocks;  // of a cluster: a power of two
  int blocks_log;
  int part_k;      // the stages of k that a block adds up; the last block may have fewer
  int stages;      // in shared memory
  int own_groups;  // of 8 columns, whose sums a block of a cluster stores; 0 unless they are stored unchanged, in pairs
};

/// A shape: a block's rows and columns, k of a stage, bytes in shared memory, and the time that a cluster takes to add
/// up its blocks' sums.
struct ClusterVariant {
  const char* name;
  int m, n, k, threads;
  int stage_bytes, other_bytes, sums_bytes;
  double reduce_us;
  Kernel* kernels[2][2];  // [bfloat16][k fast in b]; null where b's rows would be shorter than TMA's
};

struct ClusterVariants {
  const ClusterVariant* first;
  int count;
};
ClusterVariants cluster_variants();

}  // namespace interop::cuda::wgmma
