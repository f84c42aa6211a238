/// The two ways of computing a `Gemm`, as matmul.cpp sees them: our kernels, and cuBLASLt. Private to src/cuda.
#pragma once

#include <interop/cuda/matmul.h>

#include <functional>
#include <memory>
#include <string>

#include "cuda/matmul/choosing.h"

namespace interop::cuda::ours {

/// Has the product so few rows or columns that it takes as long as reading the larger operand?
bool is_skinny(const Gemm& gemm, const Device& device);
/// Is it a batch of small products of 16-bit floats, which one warp each computes?
bool is_many(const Gemm& gemm, const Device& device);
/// Are there few rows or columns of 16-bit floats, and does the larger operand stream through the memory of clusters
/// quicker than cuBLASLt reads it?
bool is_streamed(const Gemm& gemm, const Device& device);
/// Chooses among our kernels: the family, the variant, and the parts of k. It uses TF32 where that is asked for, the
/// device has it and it is quicker. The workspace is for packed operands, or for the partial sums of split-k.
MatmulPlan choose(const Gemm& gemm, const MatmulOptions& options, const Device& device);
/// The most workspace that such a plan can have, wherever the matrices lie.
std::size_t largest_workspace(const Gemm& gemm, const MatmulOptions& options);
/// Takes any dtypes that `Gemm` allows, any strides and any batch; an empty product launches nothing. Where `workspace`
/// is null, k is not split.
void launch(const Gemm& gemm, const MatmulPlan& plan, void* workspace, cudaStream_t stream);
/// "tiled 128x128x8, float32, split-k 4".
std::string describe(const Gemm& gemm, const MatmulPlan& plan);

}  // namespace interop::cuda::ours

namespace interop::cuda::cublas {

/// A planned product, or the reason why there is none.
struct Planned {
  std::shared_ptr<const void> algorithm;
  std::size_t workspace_bytes = 0;
  const char* why_not = nullptr;  // set if and only if `algorithm` is null
  bool tuned = false;             // chosen by measuring
  bool ours_is_quicker = false;   // according to that measurement
  bool denied_division = false;   // cuBLASLt's first choice splits k wrongly, so the plan does not split k
};

/// Is cuBLASLt installed? Opens it on the first call. Never throws.
bool installed();
/// Why `installed()` is false; "" if it is true. Never throws.
std::string why_not_installed();

inline constexpr std::size_t kMaxWorkspace = std::size_t{32} << 20;  // cuBLAS's documentation advises it for Hopper

/// Why cuBLASLt cannot take a product of compact matrices, wherever they are; null if it can.
const char* why_not_compact(const Gemm& gemm, const MatmulOptions& options);
/// Can cuBLASLt take the product, as far as is known without asking it, and was no choice made for it by measuring?
bool is_untuned(const Gemm& gemm, const MatmulOptions& options, const Device& device);
/// Looks the product up in the plan cache, or asks cuBLASLt. The library is installed; m, n, k and the batch are not 0.
Planned plan(const Gemm& gemm, const MatmulOptions& options, const Device& device);
void launch(const Gemm& gemm, const void* algorithm, void* workspace, cudaStream_t stream);
/// Times cuBLASLt's algorithms for a product that it can plan, and keeps the quickest. `time` runs a launch and returns
/// its microseconds; our kernels take `our_microseconds`. `workspace` has kMaxWorkspace bytes.
void tune(const Gemm& gemm, const MatmulOptions& options, void* workspace, cudaStream_t stream,
          const std::function<double(const std::function<void()>&)>& time, double our_microseconds);
/// "cuBLASLt 13.1.0 algorithm 21, tile 20, stages 8, split-k 1, float32".
std::string describe(const void* algorithm);

}  // namespace interop::cuda::cublas
