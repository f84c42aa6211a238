/// Matrix products on the GPU: our tiled kernel, and cuBLASLt opened at run time. Knows no Python.
#pragma once

#include <interop/gemm.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

typedef struct CUstream_st* cudaStream_t;  // as cuda_runtime.h declares it; naming it needs no CUDA header

namespace interop::cuda {

enum class MatmulBackend { automatic, tiled, cublas };

/// How far float32 products may round their operands. A product that no kernel computes so is computed more exactly.
enum class MatmulPrecision {
  exact,
  tf32,   ///< to TF32: 11 significant bits
  tf32x3  ///< each to the sum of two TF32 numbers; three of their products are added up: about as exact as float32
};

/// What the caller asks for.
struct MatmulOptions {
  MatmulBackend backend = MatmulBackend::automatic;
  MatmulPrecision precision = MatmulPrecision::exact;
  unsigned int alignment = 256;  ///< plan for pointers that are aligned to this only; a power of two, at most 256
  bool uses_choices = true;      ///< the choices of `tune_matmul` and `keep_choice` come before all rules
  /// The most device memory that operands are packed into. Beyond it a product is computed exactly.
  std::size_t most_packed_bytes = std::size_t{4} << 30;
  /// Runs `ask`, which asks cuBLASLt about a product for the first time: that takes long, and may wait for the GPU.
  void (*apart)(const std::function<void()>& ask) = [](const std::function<void()>& ask) { ask(); };
};

/// Whose kernels compute a product: cuBLASLt's, or ours, which are in a folder of src/cuda/matmul for each family.
enum class MatmulFamily : unsigned char {
  none,  ///< there is nothing to compute
  cublas,
  tiled,           ///< any product
  mma,             ///< 16-bit floats, on the tensor cores of sm_80
  mma_many,        ///< many small products of 16-bit floats, on those
  mma_wide,        ///< float64, complex128 and TF32, on those
  wgmma,           ///< 16-bit floats and TF32, on the tensor cores of sm_90
  wgmma_clusters,  ///< 16-bit floats, on those, with k shared by the blocks of a cluster
  wgmma_integers,  ///< integers and bool, on those
  skinny           ///< few rows or columns
};

/// How one kernel of a family of ours computes all of k, or each of its equal parts.
struct MatmulKernel {
  int variant = 0;  ///< which of its family's kernels
  int cluster = 1;  ///< how many blocks share k, or a part of it
  // Of `skinny` alone: a block's share of k; the logarithm of how many warps of a block share its k.
  int part_k = 0, k_warps_log = 0;
};

/// Bias and activation, where a second kernel of ours applies them to cuBLASLt's sums: it walks c as it lies.
enum class MatmulFinish : unsigned char { none, by_rows, by_columns };

/// What will run for one `Gemm` on the current device: all that is chosen. Made by `plan_matmul`, valid as long as the
/// process lives.
struct MatmulPlan {
  MatmulFamily family = MatmulFamily::none;
  MatmulPrecision precision = MatmulPrecision::exact;  ///< of our kernels
  MatmulFinish finish = MatmulFinish::none;            ///< of `cublas`
  bool transposed = false;                             ///< by our kernels: c^T = b^T a^T is computed
  bool packs_a = false, packs_b = false;               ///< into the workspace first, for the tensor cores
  bool tunable = false;                                ///< could `tune_matmul` choose, and has it not yet?
  int parts = 1;                                       ///< by our kernels: into how many equal parts k is split
  MatmulKernel kernel;                                 ///< of all of k, or of the equal parts
  MatmulKernel rest;                                   ///< of what the equal parts leave of k
  MatmulKernel undivided;                 ///< of all of k, if the launch gets no workspace for the sums of parts
  int multiprocessors = 0;                ///< that the kernels of sm_90's tensor cores fill with a block each
  std::size_t workspace_bytes = 0;        ///< device memory, 256-byte aligned, that the launch needs
  std::shared_ptr<const void> algorithm;  ///< of `cublas`: its plan, shared with its cache

  MatmulBackend backend() const {
    return family == MatmulFamily::cublas ? MatmulBackend::cublas : MatmulBackend::tiled;
  }
};

/// Chooses what runs for `gemm` on the current device. Touches no device memory and queues nothing.
/// Throws ValueError if `options.backend` is `cublas` and cuBLASLt cannot take the layout, and
/// CudaError if cuBLASLt was asked for by name and is not installed.
MatmulPlan plan_matmul(const Gemm& gemm, const MatmulOptions& options);

/// The most `workspace_bytes` that a plan for `gemm` needs, at whatever addresses its matrices are; these are compact.
/// This is for a caller that allocates before it knows the addresses. It later plans with no larger
/// `most_packed_bytes`. Needs no GPU; reads no pointer.
/// Throws ValueError if `options.backend` is `cublas` and cuBLASLt can take it at no address.
std::size_t largest_workspace(const Gemm& gemm, const MatmulOptions& options);

/// Queue `gemm`, of which `plan` was made, on `stream` and return at once. `workspace` holds `plan.workspace_bytes`
/// (null if that is 0). It may be null, too, where it is for the sums of parts alone: then k is not split. The context
/// of the operands' device is current. Throws CudaError if the launch fails.
void launch_matmul(const Gemm& gemm, const MatmulPlan& plan, void* workspace, cudaStream_t stream);

/// One line for a person: the kernel or the algorithm that `plan` runs, such as "tiled 128x128x16, float32".
std::string describe(const Gemm& gemm, const MatmulPlan& plan);

// ---- choices made by measuring ----

/// How much memory `tune_matmul` needs for `gemm` on the current device; the plan that it chooses needs no more.
std::size_t tuning_bytes(const Gemm& gemm, const MatmulOptions& options);

/// Times cuBLASLt's algorithms for `gemm`, and our own kernel, on `stream`, with a cold L2 cache, and keeps the
/// quickest for every later plan of such a product. `memory` has `tuning_bytes`; c and aux are written. The plan of
/// `gemm` is tunable, and `stream` is not being captured. The host waits. Throws CudaError.
void tune_matmul(const Gemm& gemm, const MatmulOptions& options, void* memory, cudaStream_t stream);

/// The choice for one product; as text where only cuBLASLt understands it.
struct MatmulChoice {
  std::string product;    // "float32 4096x4096 @ 4096x4096", for a person
  std::string key;        // all that the choice depends on, except the device
  std::string algorithm;  // cuBLASLt's quickest
  bool tiled = false;     // is our own kernel quicker than that?
  double microseconds = 0, untuned_microseconds = 0;
};
/// All choices for a device.
std::vector<MatmulChoice> choices(int device);
/// Takes a choice for a device from elsewhere; false if it is malformed.
bool keep_choice(int device, const MatmulChoice& choice);
/// The version of cuBLASLt, such as "13.1.0"; "" if there is none. A choice holds for one version only. Never throws.
std::string cublas_version();

/// Where cuBLASLt was found ("libcublasLt.so.13, version 13.1.0, /path"), or why not. Never throws.
std::string cublas_status();

/// The paths to try for libcublasLt, in order, before the loader's own search; call before the first `plan_matmul`.
/// Python finds them with cuda-pathfinder, so that this layer needs none.
void set_cublas_paths(const char* const* paths, int count);

}  // namespace interop::cuda
