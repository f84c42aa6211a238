/// Choices made by measuring: kept by key, and as text for a file.
#include "cuda/matmul/cublas/choices.h"

#include <charconv>
#include <cstdio>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda/matmul/backends.h"
#include "cuda/matmul/cublas/plans.h"

namespace interop::cuda {
namespace cublas {
namespace {

struct Choices {
  std::mutex mutex;
  std::unordered_map<HashedKey, Choice, StoredHash> of;
};
Choices& all_choices() {
  static auto* const choices = new Choices;
  return *choices;
}

}  // namespace

bool plan_as_chosen(Plan& plan, const OwnedOperation& operation) {
  if (plan.key.flags & kIgnoresChoices) return false;
  lt::Algorithm algorithm;
  bool ours_is_quicker;
  {  // not held while cuBLASLt is asked, which other threads may fork meanwhile
    Choices& choices = all_choices();
    std::lock_guard<std::mutex> lock(choices.mutex);
    const auto found = choices.of.find({plan.key, hash_of(plan.key)});
    if (found == choices.of.end()) return false;
    algorithm = found->second.algorithm;
    ours_is_quicker = found->second.tiled;
  }
  lt::Heuristic checked{};
  const lt::Status status =
      library().api.cublasLtMatmulAlgoCheck(handle_of(plan.device), operation.get(), plan.first, plan.second,
                                            addend_of(plan), plan.result, &algorithm, &checked);
  if (status != lt::kSuccess || checked.workspace_bytes > kMaxWorkspace) return false;
  if (!is_right(plan.key, algorithm)) return false;
  plan.algorithm = algorithm;
  plan.workspace_bytes = checked.workspace_bytes;
  plan.tuned = true;
  plan.ours_is_quicker = ours_is_quicker;
  return true;
}

bool has_choice(const Key& key) {
  if (key.flags & kIgnoresChoices) return false;
  Choices& choices = all_choices();
  std::lock_guard<std::mutex> lock(choices.mutex);
  return !choices.of.empty() && choices.of.count({key, hash_of(key)}) > 0;
}

void keep(const Key& key, Choice choice) {
  Choices& choices = all_choices();
  {
    std::lock_guard<std::mutex> lock(choices.mutex);
    choices.of.insert_or_assign({key, hash_of(key)}, std::move(choice));
  }
  forget_plans();
}

}  // namespace cublas

// ---- choices as text ----

namespace {

using namespace cublas;

std::string to_hex(const uint64_t* words, int count) {
  std::string text;
  char word[17];
  for (int i = 0; i < count; ++i) {
    std::snprintf(word, sizeof word, "%016llx", static_cast<unsigned long long>(words[i]));
    text += word;
  }
  return text;
}

bool from_hex(const std::string& text, uint64_t* words, int count) {
  if (text.size() != static_cast<size_t>(count) * 16) return false;
  for (int i = 0; i < count; ++i) {
    const char* const first = text.data() + i * 16;
    const auto [end, error] = std::from_chars(first, first + 16, words[i], 16);
    if (error != std::errc() || end != first + 16) return false;
  }
  return true;
}

}  // namespace

std::vector<MatmulChoice> choices(int device) {
  std::vector<MatmulChoice> listed;
  Choices& choices = all_choices();
  std::lock_guard<std::mutex> lock(choices.mutex);
  for (const auto& [hashed, choice] : choices.of) {
    Key key = hashed.key;
    if (key.flags >> kDeviceShift != static_cast<uint64_t>(device)) continue;
    key.flags &= ~kDeviceMask;
    uint64_t words[kKeyWords];
    std::memcpy(words, &key, sizeof key);
    listed.push_back({choice.product, to_hex(words, kKeyWords), to_hex(choice.algorithm.data, 8), choice.tiled,
                      choice.microseconds, choice.untuned_microseconds});
  }
  return listed;
}

bool keep_choice(int device, const MatmulChoice& given) {
  uint64_t words[kKeyWords];
  Choice choice;
  if (!from_hex(given.key, words, kKeyWords) || !from_hex(given.algorithm, choice.algorithm.data, 8)) return false;
  Key key;
  std::memcpy(&key, words, sizeof key);
  if (key.flags & kDeviceMask) return false;
  key.flags |= static_cast<uint64_t>(device) << kDeviceShift;
  choice.tiled = given.tiled;
  choice.microseconds = given.microseconds;
  choice.untuned_microseconds = given.untuned_microseconds;
  choice.product = given.product;
  keep(key, std::move(choice));
  return true;
}

}  // namespace interop::cuda
