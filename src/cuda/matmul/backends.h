/// The two ways of computing a `Gemm`, as the dispatcher in matmul.cpp sees them. Private to src/cuda.
#pragma once

#include <interop/cuda/matmul.h>

#include <functional>
#include <memory>
#include <string>

namespace interop::cuda {

inline double multiplications(const Gemm& gemm) {
  double count = static_cast<double>(gemm.m) * gemm.n * gemm.k;
  for (int i = 0; i < gemm.batch_ndim; ++i) count *= gemm.batch[i].size;
  return count;
}

}  // namespace interop::cuda

namespace interop::cuda::tiled {

/// Is it a product of few rows or columns that takes as long as reading the larger operand?
bool is_skinny(const Gemm& gemm);
/// How a product is computed here: as TF32, where that is asked for, the device has it and it is the quicker way; and
/// with which workspace, for operands that are packed or the sums of parts of k.
MatmulPlan plan(const Gemm& gemm, const MatmulOptions& options);
/// The most workspace that such a plan can have, wherever the matrices lie.
std::size_t largest_workspace(const Gemm& gemm, const MatmulOptions& options);
/// Any dtypes that `Gemm` allows, strides and batch; nothing to do: no launch. With less workspace in `plan`, or a null
/// one, k is divided less.
void launch(const Gemm& gemm, const MatmulPlan& plan, void* workspace, cudaStream_t stream);
/// "tiled 128x128x8, float32, split-k 4".
std::string describe(const Gemm& gemm, const MatmulPlan& plan);

}  // namespace interop::cuda::tiled

namespace interop::cuda::cublas {

/// A planned product, or the reason why there is none.
struct Planned {
  std::shared_ptr<const void> algorithm;
  std::size_t workspace_bytes = 0;
  const char* why_not = nullptr;  // set if and only if `algorithm` is null
  bool tuned = false;             // by measuring
  bool tiled_is_quicker = false;  // as was measured
  bool denied_division = false;   // cuBLASLt would divide k, but wrongly, so that it does not
};

/// Is the library there? Opens it on the first call. Never throws.
bool installed();
/// Why `installed()` is false; "" if it is true. Never throws.
std::string why_not_installed();

inline constexpr std::size_t kMaxWorkspace = std::size_t{32} << 20;  // cuBLAS's own documentation advises it for Hopper

/// Why it has no product of these dtypes, whatever the shapes; null if it has.
const char* why_not_dtypes(const Gemm& gemm, const MatmulOptions& options);
/// Looks the product up in the plan cache, or asks cuBLASLt. The library is installed; m, n, k and the batch are not 0.
Planned plan(const Gemm& gemm, const MatmulOptions& options);
void launch(const Gemm& gemm, const void* algorithm, void* workspace, cudaStream_t stream);
/// Times its algorithms for a product that it can plan, and keeps the quickest. `time` returns the microseconds of what
/// it is given to launch; ours take `tiled_microseconds`. The workspace holds kMaxWorkspace.
void tune(const Gemm& gemm, const MatmulOptions& options, void* workspace, cudaStream_t stream,
          const std::function<double(const std::function<void()>&)>& time, double tiled_microseconds);
/// "cuBLASLt 13.1.0 algorithm 21, tile 20, stages 8, split-k 1, float32".
std::string describe(const void* algorithm);

}  // namespace interop::cuda::cublas
