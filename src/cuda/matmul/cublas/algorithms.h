/// What cuBLASLt is asked for a product, and which of its algorithms are right. Private to src/cuda.
#pragma once

#include <interop/cuda/matmul.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/matmul/cublas/key.h"
#include "cuda/matmul/cublas/library.h"

namespace interop::cuda::cublas {

/// One product in cuBLASLt's terms, and the algorithm for it. Immutable, so that any thread may launch it.
///
/// cuBLASLt is column-major and takes a row-major matrix for its transpose. So where c is row-major, we ask for
/// c^T = b^T a^T: `first` is b and `second` is a. Where c is column-major, `first` is a.
struct Plan {
  Key key{};
  Types types{};
  lt::Operation operation = nullptr;  // null where it holds pointers of the call: each launch makes its own
  lt::Layout first = nullptr, second = nullptr, addend = nullptr, result = nullptr;
  lt::Algorithm algorithm{};
  std::size_t workspace_bytes = 0;
  int device = 0;
  bool swapped = false;
  std::string dtype;  // of a, for `describe`
  bool tuned = false, ours_is_quicker = false, denied_division = false;
  mutable std::atomic<uint64_t> loaded_in{0};  // the last context that ran it

  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan();
};

/// cuBLASLt's descriptor of the operation, with those pointers of `gemm` that it takes.
class OwnedOperation {
 public:
  OwnedOperation(const Plan& plan, const Gemm& gemm);
  ~OwnedOperation();
  OwnedOperation(const OwnedOperation&) = delete;
  OwnedOperation& operator=(const OwnedOperation&) = delete;
  lt::Operation get() const { return operation_; }
  lt::Operation release() { return std::exchange(operation_, nullptr); }

 private:
  template <typename Value>
  void set(lt::OperationAttribute attribute, const Value& value);
  lt::Operation operation_ = nullptr;
};

/// Does the operation hold pointers of the call?
inline bool names_pointers(const Key& key) { return key.flags & (kHasBias | kHasAux | kHasFactorA | kHasFactorB); }

/// What an algorithm is configured with.
template <typename Value>
Value config(const lt::Algorithm& algorithm, lt::AlgorithmAttribute attribute) {
  Value value{};
  std::size_t written = 0;
  library().api.cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof value, &written);
  return value;
}

inline int32_t parts_of_k(const lt::Algorithm& algorithm) {
  return std::max(1, config<int32_t>(algorithm, lt::kSplitK));
}

/// Does the algorithm compute the product, rounded once?
bool is_right(const Key& key, const lt::Algorithm& algorithm);

inline lt::Layout addend_of(const Plan& plan) { return plan.addend ? plan.addend : plan.result; }

/// Makes a plan without its algorithm, and `operation`, cuBLASLt's descriptor of the operation.
std::shared_ptr<Plan> describe_to_cublas(const Gemm& gemm, const Key& key, const Types& types, int device,
                                         std::optional<OwnedOperation>& operation);

struct Candidates {
  std::vector<lt::Heuristic> algorithms;  // right for the product; the quickest by cuBLASLt's estimate first
  bool denied_division = false;           // cuBLASLt's quickest splits k, wrongly; the first of these does not
};

/// The candidates among the first `most` algorithms that cuBLASLt proposes.
Candidates algorithms_for(const Plan& plan, const OwnedOperation& operation, int most);
/// The first one alone where it is right, as it mostly is: cuBLASLt takes time for each, and may load its kernel. Else
/// those among several.
Candidates best_algorithm(const Plan& plan, const OwnedOperation& operation);

}  // namespace interop::cuda::cublas
