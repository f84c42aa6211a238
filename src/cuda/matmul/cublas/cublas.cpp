/// Matrix products by cuBLASLt, as backends.h declares them.
#include <interop/error.h>
#include <interop/profile.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/driver/driver_api.h"
#include "cuda/matmul/backends.h"
#include "cuda/matmul/cublas/choices.h"
#include "cuda/matmul/cublas/plans.h"

namespace interop::cuda::cublas {
namespace {

constexpr const char* kNoDtypes = "it has no product of these dtypes";

/// 0 and 1 in the type of alpha and beta.
struct Factors {
  ScalarValue zero{}, one{};
  explicit Factors(lt::DataType scale) {
    const float one32 = 1;
    const double one64 = 1;
    const int32_t one_integer = 1;
    if (scale == lt::kReal32I) {
      std::memcpy(one.bytes, &one_integer, sizeof one_integer);
    } else if (scale == lt::kReal64F || scale == lt::kComplex64F) {
      std::memcpy(one.bytes, &one64, sizeof one64);
    } else {
      std::memcpy(one.bytes, &one32, sizeof one32);
    }
  }
};

}  // namespace

const char* why_not_compact(const Gemm& gemm, const MatmulOptions& options) {
  return types_of(gemm, options.precision) ? why_not_batch(gemm) : kNoDtypes;
}

bool is_untuned(const Gemm& gemm, const MatmulOptions& options, const Device& device) {
  const std::optional<Types> types = types_of(gemm, options.precision);
  Key key;
  return types && !make_key(gemm, options, *types, device.index(), key) && !has_choice(key);
}

Planned plan(const Gemm& gemm, const MatmulOptions& options, const Device& of) {
  const std::optional<Types> types = types_of(gemm, options.precision);
  if (!types) return {nullptr, 0, kNoDtypes};
  const int device = of.index();
  Key key;
  if (const char* why_not = make_key(gemm, options, *types, device, key)) return {nullptr, 0, why_not};
  std::shared_ptr<const Plan> plan = find_plan(gemm, options, key, *types, device);
  if (!plan) return {nullptr, 0, "it has no algorithm for these dtypes, shapes, strides, alignments and epilogue"};
  Planned planned{nullptr, plan->workspace_bytes, nullptr, plan->tuned, plan->ours_is_quicker, plan->denied_division};
  planned.algorithm = std::move(plan);
  return planned;
}

void launch(const Gemm& gemm, const void* algorithm, void* workspace, cudaStream_t stream) {
  const Plan& plan = *static_cast<const Plan*>(algorithm);
  const Factors known(plan.types.scale);
  const ScalarValue& alpha = gemm.scales ? gemm.alpha : known.one;
  const ScalarValue& beta = !gemm.addend ? known.zero : gemm.scales ? gemm.beta : known.one;
  std::optional<OwnedOperation> own;
  if (!plan.operation) own.emplace(plan, gemm);
  const lt::Operation operation = own ? own->get() : plan.operation;
  const auto run = [&] {
    return library().api.cublasLtMatmul(handle_of(plan.device), operation, alpha.bytes, plan.swapped ? gemm.b : gemm.a,
                                        plan.first, plan.swapped ? gemm.a : gemm.b, plan.second, beta.bytes,
                                        gemm.addend ? gemm.addend : gemm.c, gemm.addend ? plan.addend : plan.result,
                                        gemm.c, plan.result, &plan.algorithm, workspace, plan.workspace_bytes, stream);
  };
  lt::Status status;
  const profile::Stopwatch watch;
  const uint64_t context = current_context_id("launching a product");
  if (plan.loaded_in.load(std::memory_order_relaxed) == context) {
    status = run();
  } else {
    RelaxedCapture relaxed(driver());  // the first launch loads the kernel, perhaps inside a capture
    status = run();
    if (status == lt::kSuccess) plan.loaded_in.store(context, std::memory_order_relaxed);
  }
  if (status == lt::kSuccess) return watch.note(profile::What::launch, "cuBLASLt", 0);
  // cuBLASLt's status does not distinguish this failure from an earlier one; the stream's status does.
  RelaxedCapture relaxed(driver());
  const CUresult earlier = driver().cuStreamQuery(stream);
  if (is_earlier_error(earlier)) throw_status(earlier, "launching a product");
  throw_lt(status, "launching a product");
}

void tune(const Gemm& gemm, const MatmulOptions& options, void* workspace, cudaStream_t stream,
          const std::function<double(const std::function<void()>&)>& time, double our_microseconds) {
  constexpr int kTrials = 16;
  const Types types = *types_of(gemm, options.precision);
  const int device = current_device(kPlanning);
  Key key;
  make_key(gemm, options, types, device, key);
  std::optional<OwnedOperation> operation;
  const std::shared_ptr<Plan> plan = describe_to_cublas(gemm, key, types, device, operation);
  const std::vector<lt::Heuristic> found = algorithms_for(*plan, *operation, kTrials).algorithms;
  Choice choice;
  choice.microseconds = std::numeric_limits<double>::infinity();
  for (const lt::Heuristic& trial : found) {
    plan->algorithm = trial.algorithm;
    plan->workspace_bytes = trial.workspace_bytes;
    const double microseconds = time([&] { launch(gemm, plan.get(), workspace, stream); });
    if (&trial == &found[0]) choice.untuned_microseconds = microseconds;
    if (microseconds < choice.microseconds) {
      choice.algorithm = trial.algorithm;
      choice.microseconds = microseconds;
    }
  }
  if (found.empty()) choice.untuned_microseconds = our_microseconds;  // kept, so that it is not asked again
  choice.tiled = our_microseconds < choice.microseconds;
  choice.microseconds = std::min(choice.microseconds, our_microseconds);
  const auto shape = [](int64_t rows, int64_t columns) { return std::to_string(rows) + "x" + std::to_string(columns); };
  choice.product = (key.flags & kTf32 ? "tf32 " : plan->dtype + " ") +
                   (key.batch > 1 ? std::to_string(key.batch) + " of " : "") + shape(key.m, key.k) + " @ " +
                   shape(key.k, key.n);
  keep(key, std::move(choice));
}

std::string describe(const void* algorithm) {
  const Plan& plan = *static_cast<const Plan*>(algorithm);
  return "cuBLASLt " + library().version + " algorithm " +
         std::to_string(config<int32_t>(plan.algorithm, lt::kAlgorithmId)) + ", tile " +
         std::to_string(config<uint32_t>(plan.algorithm, lt::kTileId)) + ", stages " +
         std::to_string(config<uint32_t>(plan.algorithm, lt::kStagesId)) + ", split-k " +
         std::to_string(parts_of_k(plan.algorithm)) + ", " + plan.dtype + (plan.key.flags & kTf32 ? " by TF32" : "") +
         (plan.tuned ? ", tuned" : "");
}

}  // namespace interop::cuda::cublas
