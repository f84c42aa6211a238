/// The kernels of the tensor cores, whose tiles tests and benchmarks choose themselves.
#pragma once

#include <interop/cuda/matmul.h>

#include <string>
#include <vector>

#include "cuda/matmul/mma/mma.h"
#include "cuda/matmul/mma/wide.h"
#include "cuda/matmul/wgmma/wgmma.h"

namespace interop::tests {

namespace mma = cuda::mma;
namespace mma_wide = cuda::mma_wide;
namespace wgmma = cuda::wgmma;
using cuda::Device;
using cuda::MatmulPlan;
using cuda::MatmulPrecision;

/// The kernels of wgmma.h; `by_mma`: those of mma.h, or, of TF32, those of wide.h.
struct Kernels {
  MatmulPrecision precision = MatmulPrecision::exact;
  bool by_mma = false;

  bool is_wide() const { return by_mma && precision == MatmulPrecision::tf32; }
  int variant_count() const {
    return is_wide() ? mma_wide::variant_count(kFloat32)
           : by_mma  ? mma::variant_count()
                     : wgmma::variant_count(precision);
  }
  const char* variant_name(int variant) const {
    return is_wide() ? mma_wide::variant_name(kFloat32, variant)
           : by_mma  ? mma::variant_name(variant)
                     : wgmma::variant_name(precision, variant);
  }
  /// Of those by mma.sync.
  bool serves(const Gemm& gemm) const {
    return is_wide() ? mma_wide::serves(gemm, precision, Device()) : mma::serves(gemm, Device());
  }
  /// The quickest, by its estimate.
  std::string describe_chosen(const Gemm& gemm) const {
    return is_wide() ? mma_wide::describe(gemm, mma_wide::choose(gemm, Device()).variant)
                     : mma::describe(gemm, mma::choose(gemm, Device()).variant);
  }
  void launch(int variant, const Gemm& gemm, const MatmulPlan& plan, void* workspace, cudaStream_t stream) const {
    is_wide() ? mma_wide::launch_variant(variant, gemm, stream)
    : by_mma  ? mma::launch_variant(variant, gemm, stream)
              : wgmma::launch_variant(variant, gemm, plan, workspace, stream);
  }
  std::vector<int> all_variants() const {
    std::vector<int> all;
    for (int i = 0; i < variant_count(); ++i) all.push_back(i);
    return all;
  }
};

}  // namespace interop::tests
