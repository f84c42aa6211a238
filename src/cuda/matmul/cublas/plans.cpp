/// The cache of plans. A plan's key is all that cuBLASLt's choice depends on (`Key`). The cache holds at most kShards *
/// kPlansPerShard plans. A full shard is emptied; a plan in use lives on through its shared_ptr.
#include "cuda/matmul/cublas/plans.h"

#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "cuda/driver/driver_api.h"
#include "cuda/matmul/cublas/choices.h"

namespace interop::cuda::cublas {
namespace {

/// Plans the product by the choice kept for it, or asks cuBLASLt; null if that knows no algorithm.
std::shared_ptr<const Plan> make_plan(const Gemm& gemm, const Key& key, const Types& types, int device) {
  RelaxedCapture relaxed(driver());
  std::optional<OwnedOperation> operation;
  const std::shared_ptr<Plan> plan = describe_to_cublas(gemm, key, types, device, operation);
  if (!plan_as_chosen(*plan, *operation)) {
    const Candidates found = best_algorithm(*plan, *operation);
    if (found.algorithms.empty()) return nullptr;
    plan->algorithm = found.algorithms[0].algorithm;
    plan->workspace_bytes = found.algorithms[0].workspace_bytes;
    plan->denied_division = found.denied_division;
  }
  if (!names_pointers(key)) plan->operation = operation->release();
  return plan;
}

constexpr std::size_t kShards = 16;
constexpr std::size_t kPlansPerShard = 256;

struct Shard {
  std::mutex mutex;
  std::unordered_map<HashedKey, std::shared_ptr<const Plan>, StoredHash>
      plans;  // null: cuBLASLt has no algorithm for it
};

std::array<Shard, kShards>& shards() {
  static auto* const all = new std::array<Shard, kShards>;
  return *all;
}

std::atomic<unsigned> g_choices{0};  // how many choices were kept; a plan made under an older count is not cached

}  // namespace

void forget_plans() {
  ++g_choices;
  for (Shard& shard : shards()) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    shard.plans.clear();
  }
}

std::shared_ptr<const Plan> find_plan(const Gemm& gemm, const MatmulOptions& options, const Key& key,
                                      const Types& types, int device) {
  const HashedKey hashed{key, hash_of(key)};
  Shard& shard = shards()[hashed.hash >> 60];
  {
    std::lock_guard<std::mutex> lock(shard.mutex);
    const auto found = shard.plans.find(hashed);
    if (found != shard.plans.end()) return found->second;
  }
  const unsigned before = g_choices.load();
  std::shared_ptr<const Plan> plan;
  // Unlocked: two threads may both ask, and get the same answer.
  options.apart([&] { plan = make_plan(gemm, key, types, device); });
  std::lock_guard<std::mutex> lock(shard.mutex);
  if (g_choices.load() != before) return plan;  // perhaps made without a choice kept meanwhile
  if (shard.plans.size() >= kPlansPerShard) shard.plans.clear();
  return shard.plans.emplace(hashed, std::move(plan)).first->second;
}

}  // namespace interop::cuda::cublas
