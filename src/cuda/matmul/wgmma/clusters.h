/// 16-bit floats on the tensor cores of sm_90, for products of few rows or few tiles: the blocks of a cluster share k.
/// Private to src/cuda.
#pragma once

#include <interop/cuda/matmul.h>

#include <cuda_runtime.h>

#include <string>

#include "cuda/matmul/choosing.h"

namespace interop::cuda::wgmma {

/// Do these kernels serve the product? Both operands are float16 or both bfloat16, and the result has their dtype or is
/// float32. Both have addresses, strides and a unit stride as TMA needs them; a's unit stride is k. The device has
/// sm_90, and there is something to compute. Arrays of the result's shape may have any strides; rows are quickest.
bool serves_clusters(const Gemm& gemm, const Device& device);

/// The kernel of a product, how many blocks share its k, and about how long it takes, in microseconds.
struct ClusterChoice {
  MatmulKernel kernel;
  double us;
};
ClusterChoice choose_clusters(const Gemm& gemm, const Device& device);

/// Accumulates in float32, in one fixed order for each number of blocks. Needs no workspace.
void launch_clusters(const Gemm& gemm, const MatmulPlan& plan, cudaStream_t stream);
/// "wgmma clusters 16x64x128, bfloat16, 2 blocks".
std::string describe_clusters(const Gemm& gemm, const MatmulPlan& plan);

int cluster_variant_count();
const char* cluster_variant_name(int variant);

}  // namespace interop::cuda::wgmma
