/// Which backend computes a product: one rule for `automatic`, and the checks for a backend asked for by name.
#include <interop/cuda/matmul.h>
#include <interop/error.h>

#include "cuda/matmul_backends.h"

namespace interop::cuda {
namespace {

bool served(DLDataType dtype) {
  return dtype.code == kDLFloat && dtype.lanes == 1 && (dtype.bits == 32 || dtype.bits == 64);
}

bool is_empty(const Gemm& gemm) {
  for (int i = 0; i < gemm.batch_ndim; ++i) {
    if (gemm.batch[i].size == 0) return true;
  }
  return gemm.m == 0 || gemm.n == 0;
}

/// A product that takes the GPU less time than cuBLASLt takes the host: ours is launched in half of that.
bool is_small(const Gemm& gemm) {
  double work = static_cast<double>(gemm.m) * gemm.n * gemm.k;
  for (int i = 0; i < gemm.batch_ndim; ++i) work *= gemm.batch[i].size;
  return work <= 64.0 * 64 * 64;
}

}  // namespace

/// The rule of `automatic`, first match wins:
///   nothing to add up (k == 0), or nothing at all     tiled (writes zeros, or returns)
///   cuBLASLt not installed                            tiled
///   small                                             tiled
///   a layout that cuBLASLt cannot take                tiled
///   all else                                          cublas
MatmulPlan plan_matmul(const Gemm& gemm, const MatmulOptions& options) {
  if (!served(gemm.dtype)) throw TypeError("interop.matmul: the GPU kernels serve float32 and float64 only");
  const bool by_name = options.backend == MatmulBackend::cublas;
  if (by_name && !cublas::installed()) {
    throw CudaError("interop.matmul: backend=\"cublas\", but cuBLASLt does not load (" + cublas::why_not_installed() +
                    "); install nvidia-cublas (pip) or the CUDA toolkit, or use backend=\"tiled\"");
  }
  if (options.backend == MatmulBackend::tiled || is_empty(gemm) || gemm.k == 0) return {};
  if (!by_name && (is_small(gemm) || !cublas::installed())) return {};
  cublas::Planned planned = cublas::plan(gemm, options.allow_tf32);
  if (planned.algorithm) return {MatmulBackend::cublas, planned.workspace_bytes, std::move(planned.algorithm)};
  if (!by_name) return {};
  throw ValueError(std::string("interop.matmul: backend=\"cublas\" cannot take this product: ") + planned.why_not +
                   "; use backend=\"tiled\", or leave the choice to interop");
}

void launch_matmul(const Gemm& gemm, const MatmulPlan& plan, void* workspace, cudaStream_t stream) {
  if (plan.backend == MatmulBackend::cublas) {
    cublas::launch(gemm, plan.algorithm.get(), workspace, stream);
  } else {
    tiled::launch(gemm, stream);
  }
}

std::string describe(const Gemm& gemm, const MatmulPlan& plan) {
  return plan.backend == MatmulBackend::cublas ? cublas::describe(plan.algorithm.get()) : tiled::describe(gemm);
}

}  // namespace interop::cuda
