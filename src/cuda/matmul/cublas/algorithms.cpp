/// Asks cuBLASLt for algorithms, and leaves out those that are wrong.
#include "cuda/matmul/cublas/algorithms.h"

#include "cuda/matmul/backends.h"

namespace interop::cuda::cublas {
namespace {

lt::Layout make_layout(lt::DataType type, int64_t rows, int64_t columns, bool row_major, int64_t ld, const Key& key,
                       int64_t batch_stride) {
  const lt::Api& api = library().api;
  lt::Layout layout = nullptr;
  check_lt(api.cublasLtMatrixLayoutCreate(&layout, type, row_major ? columns : rows, row_major ? rows : columns, ld),
           kPlanning);
  if (key.batch > 1) {
    const auto count = static_cast<int32_t>(key.batch);
    api.cublasLtMatrixLayoutSetAttribute(layout, lt::kBatchCount, &count, sizeof count);
    api.cublasLtMatrixLayoutSetAttribute(layout, lt::kBatchStride, &batch_stride, sizeof batch_stride);
  }
  return layout;
}

enum class Division { allowed, forbidden };  // of k into parts

class PlanPreference {
 public:
  PlanPreference(const Plan& plan, Division division) {
    const Key& key = plan.key;
    check_lt(library().api.cublasLtMatmulPreferenceCreate(&preference_), kPlanning);
    set(lt::kMaxWorkspaceBytes, kMaxWorkspace);
    // Partial sums are added in a fixed order, never in that of arrival (INPLACE): every run gives the same bits.
    set(lt::kReductionSchemeMask,
        static_cast<uint32_t>(division == Division::allowed ? lt::kReduceInComputeType : lt::kNoReduction));
    set(lt::kImplementationMask, plan.types.allowed);
    const auto a = static_cast<uint32_t>(key.alignments & 0xFFFF);
    const auto b = static_cast<uint32_t>(key.alignments >> 16 & 0xFFFF);
    const auto c = static_cast<uint32_t>(key.alignments >> 32 & 0xFFFF);
    set(lt::kAlignmentA, plan.swapped ? b : a);
    set(lt::kAlignmentB, plan.swapped ? a : b);
    const auto addend = static_cast<uint32_t>(key.alignments >> 48);
    set(lt::kAlignmentC, key.flags & kHasAddend ? addend : c);
    set(lt::kAlignmentD, c);
  }
  ~PlanPreference() { library().api.cublasLtMatmulPreferenceDestroy(preference_); }
  PlanPreference(const PlanPreference&) = delete;
  PlanPreference& operator=(const PlanPreference&) = delete;
  lt::Preference get() const { return preference_; }

 private:
  template <typename Value>
  void set(lt::PreferenceAttribute attribute, const Value& value) {
    library().api.cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof value);
  }
  lt::Preference preference_ = nullptr;
};

/// Do the parts of an algorithm's split-k cover all of k?
///
/// In cuBLASLt 12.8.5, 13.1.1 and 13.2.2 they may not: a part is k / parts, rounded down and then up to whole tiles,
/// and the rest of k is in no part. Of three million float16 products on an H100, exactly those were wrong for which
/// algorithm 66 falls short in this way and k is not a multiple of the tile (facebookexperimental/triton,
/// cublas_gemm_bug_reproduce.py). We check every algorithm; one that does not say its tile may have any from 8 to 128.
bool covers_k(int64_t k, const lt::Algorithm& algorithm) {
  const int64_t parts = parts_of_k(algorithm), tile = lt::tile_k(config<uint32_t>(algorithm, lt::kStagesId));
  if (parts == 1 || k % (tile ? tile : 128) == 0) return true;
  const int64_t shortest = tile ? tile : 8;
  return parts * ((k / parts + shortest - 1) / shortest * shortest) >= k;
}

/// Is the sum rounded once, after the bias and the activation?
///
/// Some algorithms apply these in a second kernel, and round the sum to the 16 bits of the result before it, too. Where
/// a bias cancels the sum, that error is all that is left. In cuBLASLt 13.1 on an H200 these are all algorithms that
/// split k, except 66, and for gelu also 11, 16 and 56; 21 and 66 compute gelu in the one kernel. Wider results lose
/// nothing.
bool rounds_once(const Key& key, const lt::Algorithm& algorithm) {
  const uint64_t result = key.types >> kResultTypeShift;
  const bool is_narrow = result == lt::kReal16F || result == lt::kReal16BF;
  if (!is_narrow || !(key.flags & (kHasBias | kHasGelu))) return true;
  const auto id = config<int32_t>(algorithm, lt::kAlgorithmId);
  return id == 66 || (parts_of_k(algorithm) == 1 && (id == 21 || !(key.flags & kHasGelu)));
}

/// Algorithm 68 of cuBLASLt 13 is known to fail for operands that span 2^31 elements or more.
bool spans_too_much(const Key& key, const lt::Algorithm& algorithm) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  const bool is_huge = std::max(key.lda * (key.flags & kRowMajorA ? key.m : key.k),
                                key.ldb * (key.flags & kRowMajorB ? key.k : key.n)) >= kLimit;
  return is_huge && config<int32_t>(algorithm, lt::kAlgorithmId) == 68;
}

/// 0 for no epilogue.
uint32_t epilogue_of(const Key& key) {
  uint32_t epilogue = 0;
  if (key.flags & kHasBias) epilogue |= lt::kBias;
  if (key.flags & kHasRelu) epilogue |= lt::kRelu;
  if (key.flags & kHasGelu) epilogue |= key.flags & kHasAux ? lt::kGeluAux : lt::kGelu;
  return epilogue;
}

/// What cuBLASLt says, best first; none where it knows no algorithm.
std::vector<lt::Heuristic> ask(const Plan& plan, const OwnedOperation& operation, int most, Division division) {
  const PlanPreference preference(plan, division);
  std::vector<lt::Heuristic> found(static_cast<size_t>(most));
  int count = 0;
  const lt::Status status = library().api.cublasLtMatmulAlgoGetHeuristic(
      handle_of(plan.device), operation.get(), plan.first, plan.second, addend_of(plan), plan.result, preference.get(),
      most, found.data(), &count);
  // INVALID_VALUE: dtypes, layouts and epilogue do not go together.
  if (status != lt::kSuccess && status != lt::kNotSupported && status != lt::kInvalidValue) throw_lt(status, kPlanning);
  found.resize(status == lt::kSuccess ? static_cast<size_t>(count) : 0);
  return found;
}

bool is_usable(const Key& key, const lt::Heuristic& one) {
  return one.state == lt::kSuccess && one.workspace_bytes <= kMaxWorkspace && is_right(key, one.algorithm);
}

Candidates algorithms_for(const Plan& plan, const OwnedOperation& operation, int most, Division division) {
  std::vector<lt::Heuristic> found = ask(plan, operation, most, division);
  if (found.empty()) return {};
  const bool is_short = parts_of_k(found[0].algorithm) > 1 && !is_right(plan.key, found[0].algorithm);
  const auto is_wrong = [&](const lt::Heuristic& one) { return !is_usable(plan.key, one); };
  found.erase(std::remove_if(found.begin(), found.end(), is_wrong), found.end());
  if (!found.empty()) return {found, is_short && parts_of_k(found[0].algorithm) == 1};
  if (division == Division::forbidden) return {};
  return {algorithms_for(plan, operation, most, Division::forbidden).algorithms, is_short};
}

}  // namespace

Plan::~Plan() {
  const lt::Api& api = library().api;
  if (operation) api.cublasLtMatmulDescDestroy(operation);
  for (const lt::Layout layout : {first, second, addend, result}) {
    if (layout) api.cublasLtMatrixLayoutDestroy(layout);
  }
}

template <typename Value>
void OwnedOperation::set(lt::OperationAttribute attribute, const Value& value) {
  check_lt(library().api.cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof value), kPlanning);
}

OwnedOperation::OwnedOperation(const Plan& plan, const Gemm& gemm) {
  const Key& key = plan.key;
  check_lt(library().api.cublasLtMatmulDescCreate(&operation_, plan.types.compute, plan.types.scale), kPlanning);
  const bool c_row_major = key.flags & kRowMajorC;
  const auto transpose = [&](uint64_t row_major, uint64_t conjugates) {
    if (static_cast<bool>(key.flags & row_major) == c_row_major) return lt::kAsIs;
    return key.flags & conjugates ? lt::kConjugateTransposed : lt::kTransposed;
  };
  lt::Transpose first = transpose(kRowMajorA, kConjugatesA), second = transpose(kRowMajorB, kConjugatesB);
  if (plan.swapped) std::swap(first, second);
  set(lt::kTransposeA, first);
  set(lt::kTransposeB, second);
  if (const uint32_t epilogue = epilogue_of(key)) set(lt::kEpilogue, epilogue);
  if (gemm.bias) set(lt::kBiasPointer, gemm.bias);
  if (gemm.aux) {
    set(lt::kAuxPointer, gemm.aux);
    set(lt::kAuxLd, key.ld_aux);
    if (key.batch > 1) set(lt::kAuxBatchStride, key.aux_stride);
  }
  const float* const factor_first = plan.swapped ? gemm.factor_b : gemm.factor_a;
  const float* const factor_second = plan.swapped ? gemm.factor_a : gemm.factor_b;
  if (factor_first) set(lt::kScaleAPointer, factor_first);
  if (factor_second) set(lt::kScaleBPointer, factor_second);
}

OwnedOperation::~OwnedOperation() {
  if (operation_) library().api.cublasLtMatmulDescDestroy(operation_);
}

bool is_right(const Key& key, const lt::Algorithm& algorithm) {
  return covers_k(key.k, algorithm) && rounds_once(key, algorithm) && !spans_too_much(key, algorithm);
}

std::shared_ptr<Plan> describe_to_cublas(const Gemm& gemm, const Key& key, const Types& types, int device,
                                         std::optional<OwnedOperation>& operation) {
  auto plan = std::make_shared<Plan>();
  plan->key = key;
  plan->types = types;
  plan->device = device;
  plan->dtype = dtype_name(gemm.dtype);
  const bool a_row_major = key.flags & kRowMajorA, b_row_major = key.flags & kRowMajorB,
             c_row_major = key.flags & kRowMajorC;
  plan->swapped = c_row_major;
  operation.emplace(*plan, gemm);

  lt::Layout& a = plan->swapped ? plan->second : plan->first;
  lt::Layout& b = plan->swapped ? plan->first : plan->second;
  a = make_layout(types.a, key.m, key.k, a_row_major, key.lda, key, key.a_stride);
  b = make_layout(types.b, key.k, key.n, b_row_major, key.ldb, key, key.b_stride);
  plan->result = make_layout(types.result, key.m, key.n, c_row_major, key.ldc, key, key.c_stride);
  if (key.flags & kHasAddend) {
    plan->addend = make_layout(types.result, key.m, key.n, c_row_major, key.ld_addend, key, key.addend_stride);
  }
  return plan;
}

Candidates algorithms_for(const Plan& plan, const OwnedOperation& operation, int most) {
  return algorithms_for(plan, operation, most, Division::allowed);
}

Candidates best_algorithm(const Plan& plan, const OwnedOperation& operation) {
  constexpr int kCandidates = 8;  // enough that mostly one of them splits k and covers it
  std::vector<lt::Heuristic> first = ask(plan, operation, 1, Division::allowed);
  if (first.empty() || is_usable(plan.key, first[0])) return {std::move(first), false};
  return algorithms_for(plan, operation, kCandidates);
}

}  // namespace interop::cuda::cublas
