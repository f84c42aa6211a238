/// Matrix products by cuBLASLt, opened at run time: which layouts it can take, how they are put to it, and the plans.
///
/// Caches: the library, opened once and kept; one handle per device, kept; and the plans. A plan is found by all that
/// cuBLASLt's choice depends on (`Key`), and the cache holds at most kShards * kPlansPerShard of them. A full shard is
/// emptied; a plan in use lives on through its shared_ptr.
#include <interop/error.h>

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "cuda/cublaslt_api.h"
#include "cuda/driver_api.h"
#include "cuda/matmul_backends.h"

namespace interop::cuda {
namespace {

// ---- the library ----

constexpr const char* kSonames[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
constexpr int kMaxDevices = 256;

struct Library {
  lt::Api api{};
  bool installed = false;
  std::string version;  // "13.1.0"
  std::string path;
  std::string why_not;
};

std::vector<std::string>& search_paths() {
  static auto* const paths = new std::vector<std::string>;
  return *paths;
}

template <typename Function>
bool resolve(void* handle, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, symbol));
  return function != nullptr;
}

bool resolve_all(void* handle, lt::Api& api) {
#define RESOLVE(name) resolve(handle, #name, api.name)
  return RESOLVE(cublasLtGetVersion) && RESOLVE(cublasLtGetStatusName) && RESOLVE(cublasLtCreate) &&
         RESOLVE(cublasLtMatmulDescCreate) && RESOLVE(cublasLtMatmulDescDestroy) &&
         RESOLVE(cublasLtMatmulDescSetAttribute) && RESOLVE(cublasLtMatrixLayoutCreate) &&
         RESOLVE(cublasLtMatrixLayoutDestroy) && RESOLVE(cublasLtMatrixLayoutSetAttribute) &&
         RESOLVE(cublasLtMatmulPreferenceCreate) && RESOLVE(cublasLtMatmulPreferenceDestroy) &&
         RESOLVE(cublasLtMatmulPreferenceSetAttribute) && RESOLVE(cublasLtMatmulAlgoGetHeuristic) &&
         RESOLVE(cublasLtMatmulAlgoConfigGetAttribute) && RESOLVE(cublasLtMatmul);
#undef RESOLVE
}

/// Tries one name; notes in library.why_not what stood in the way.
bool try_open(const std::string& name, Library& library) {
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* why = dlerror();
    library.why_not += std::string(library.why_not.empty() ? "" : "; ") + (why ? why : name.c_str());
    return false;
  }
  if (!resolve_all(handle, library.api)) {
    library.why_not += (library.why_not.empty() ? "" : "; ") + name + " lacks functions that interop needs (too old)";
    dlclose(handle);
    return false;
  }
  const std::size_t version = library.api.cublasLtGetVersion();
  library.version = std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "." +
                    std::to_string(version % 100);
  link_map* map = nullptr;
  library.path = dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name[0] ? map->l_name : name;
  library.installed = true;
  library.why_not.clear();
  return true;
}

const Library& library() {
  static const Library* const opened = [] {
    auto* fresh = new Library;
    for (const std::string& path : search_paths()) {
      if (try_open(path, *fresh)) return fresh;
    }
    for (const char* soname : kSonames) {
      if (try_open(soname, *fresh)) return fresh;
    }
    return fresh;
  }();
  return *opened;
}

[[noreturn]] void throw_lt(lt::Status status, const char* doing) {
  throw CudaError(std::string("interop: ") + doing + ": " + library().api.cublasLtGetStatusName(status) +
                  " (cuBLASLt " + library().version + ")");
}

void check_lt(lt::Status status, const char* doing) {
  if (status != lt::kSuccess) throw_lt(status, doing);
}

/// The handle of a device: it holds neither stream nor workspace, so one serves every thread.
lt::Handle handle_of(int device) {
  static std::atomic<lt::Handle> handles[kMaxDevices];
  if (device < 0 || device >= kMaxDevices) check(CUDA_ERROR_INVALID_DEVICE, "selecting a device");
  lt::Handle handle = handles[device].load(std::memory_order_acquire);
  if (handle) return handle;
  static auto* const mutex = new std::mutex;
  std::lock_guard<std::mutex> lock(*mutex);
  handle = handles[device].load(std::memory_order_acquire);
  if (!handle) {
    RelaxedCapture relaxed(driver());
    check_lt(library().api.cublasLtCreate(&handle), "creating a cuBLASLt handle");
    handles[device].store(handle, std::memory_order_release);
  }
  return handle;
}

// ---- layouts ----

/// A matrix as BLAS can take it: one unit stride, and a leading dimension that no row or column outgrows.
struct BlasLayout {
  bool possible = false;
  bool row_major = true;
  int64_t ld = 0;
};

/// A dimension of size 1 has no stride to respect, so that its leading dimension is ours to choose.
BlasLayout blas_layout(int64_t rows, int64_t columns, const MatrixStrides& strides) {
  const int64_t row_ld = rows == 1 ? columns : strides.row;
  if ((strides.column == 1 || columns == 1) && row_ld >= columns) return {true, true, row_ld};
  const int64_t column_ld = columns == 1 ? rows : strides.column;
  if ((strides.row == 1 || rows == 1) && column_ld >= rows) return {true, false, column_ld};
  return {};
}

/// The largest power of two, up to `most`, that divides the address of every matrix of a batch.
uint64_t alignment_of(const void* pointer, int64_t batch_stride, std::size_t item, uint64_t most) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(pointer) | (static_cast<uint64_t>(batch_stride) * item) | most;
  return bits & ~(bits - 1);
}

/// All that cuBLASLt's choice depends on.
struct Key {
  int64_t m, n, k;
  int64_t lda, ldb, ldc;
  int64_t batch, a_stride, b_stride, c_stride;
  uint64_t flags;       // device, dtype, TF32, the orders of a, b, c
  uint64_t alignments;  // of a, b, c
};
static_assert(sizeof(Key) == 12 * 8, "compared and hashed as bytes: no padding");

uint64_t hash_of(const Key& key) {
  uint64_t words[12];
  std::memcpy(words, &key, sizeof key);
  uint64_t even = 0, odd = 0;  // two chains, which the processor runs side by side
  for (int i = 0; i < 12; i += 2) {
    even = (even ^ words[i]) * 0x9E3779B97F4A7C15u;
    odd = (odd ^ words[i + 1]) * 0xC2B2AE3D27D4EB4Fu;
    even ^= even >> 29;
    odd ^= odd >> 31;
  }
  const uint64_t hash = (even ^ odd * 0x9E3779B97F4A7C15u) * 0xC2B2AE3D27D4EB4Fu;
  return hash ^ hash >> 32;
}

/// A key with its hash, so that a lookup computes it once.
struct HashedKey {
  Key key;
  uint64_t hash;
};
bool operator==(const HashedKey& x, const HashedKey& y) { return std::memcmp(&x.key, &y.key, sizeof x.key) == 0; }
struct StoredHash {
  std::size_t operator()(const HashedKey& key) const { return key.hash; }
};

constexpr uint64_t kDouble = 1, kTf32 = 2, kRowMajorA = 4, kRowMajorB = 8, kRowMajorC = 16;

/// Puts the product in BLAS's terms; returns why that cannot be, or null.
const char* make_key(const Gemm& gemm, const MatmulOptions& options, int device, Key& key) {
  const BlasLayout a = blas_layout(gemm.m, gemm.k, gemm.a_strides);
  const BlasLayout b = blas_layout(gemm.k, gemm.n, gemm.b_strides);
  const BlasLayout c = blas_layout(gemm.m, gemm.n, gemm.c_strides);
  if (!a.possible) return "a has no unit stride, or its rows overlap";
  if (!b.possible) return "b has no unit stride, or its rows overlap";
  if (!c.possible) return "out has no unit stride, or its rows overlap";
  if (gemm.batch_ndim > 1) return "its batch does not collapse to one dimension";
  const BatchDim batch = gemm.batch_ndim == 1 ? gemm.batch[0] : BatchDim{};
  if (batch.a_stride < 0 || batch.b_stride < 0 || batch.c_stride < 0) return "its batch has a negative stride";
  if (batch.size > std::numeric_limits<int32_t>::max()) return "its batch is longer than 2147483647";

  const bool is_double = gemm.dtype.bits == 64;
  const std::size_t item = is_double ? 8 : 4;
  key = {gemm.m, gemm.n, gemm.k, a.ld, b.ld, c.ld, batch.size, batch.a_stride, batch.b_stride, batch.c_stride, 0, 0};
  key.flags = (is_double ? kDouble : 0) | (options.allow_tf32 && !is_double ? kTf32 : 0) |
              (a.row_major ? kRowMajorA : 0) | (b.row_major ? kRowMajorB : 0) | (c.row_major ? kRowMajorC : 0) |
              static_cast<uint64_t>(device) << 8;
  const auto alignment = [&](const void* pointer, int64_t batch_stride) {
    return alignment_of(pointer, batch_stride, item, options.alignment);
  };
  key.alignments = alignment(gemm.a, batch.a_stride) | alignment(gemm.b, batch.b_stride) << 16 |
                   alignment(gemm.c, batch.c_stride) << 32;
  return nullptr;
}

// ---- plans ----

/// One product in cuBLASLt's terms, and the algorithm for it. Immutable, so that any thread may launch it.
///
/// cuBLASLt is column-major: a row-major matrix is to it the transposed one. Where c is row-major we therefore ask for
/// c^T = b^T a^T: `first` is b and `second` is a; where c is column-major, `first` is a.
struct Plan {
  lt::Operation operation = nullptr;
  lt::Layout first = nullptr, second = nullptr, result = nullptr;
  lt::Algorithm algorithm{};
  std::size_t workspace_bytes = 0;
  int device = 0;
  bool is_double = false, is_tf32 = false, swapped = false;
  mutable std::atomic<uint64_t> loaded_in{0};  // the context that has run it

  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    const lt::Api& api = library().api;
    if (operation) api.cublasLtMatmulDescDestroy(operation);
    for (const lt::Layout layout : {first, second, result}) {
      if (layout) api.cublasLtMatrixLayoutDestroy(layout);
    }
  }
};

constexpr const char* kPlanning = "planning a product with cuBLASLt";

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

/// The instructions that a plan may use. A float32 product is exact unless the caller allows TF32: the compute type
/// asks for that, and this mask holds where NVIDIA_TF32_OVERRIDE=1 is set. float64 is never emulated on integer units.
uint64_t allowed_implementations(const Plan& plan) {
  if (plan.is_double) return lt::kFma | lt::kTensorDouble | lt::kAccumulate64F | lt::kInput64F;
  if (plan.is_tf32) return lt::kFma | lt::kTensorHalf | lt::kAccumulate32F | lt::kInput32F | lt::kInputTf32;
  return lt::kFma | lt::kAccumulate32F | lt::kInput32F;
}

/// Split-K algorithms of cuBLASLt 12.8 and 13.1 are known to drop the last k % (their k tile) products. No k tile is
/// longer than 128, so they are allowed only where 128 divides k. Partial sums are added in a fixed order
/// (COMPUTE_TYPE), never in the order of arrival (INPLACE): the same bits every run.
bool split_k_is_safe(const Key& key) { return key.k % 128 == 0; }

class PlanPreference {
 public:
  PlanPreference(const Key& key, const Plan& plan) {
    check_lt(library().api.cublasLtMatmulPreferenceCreate(&preference_), kPlanning);
    set(lt::kMaxWorkspaceBytes, cublas::kMaxWorkspace);
    set(lt::kReductionSchemeMask,
        static_cast<uint32_t>(split_k_is_safe(key) ? lt::kReduceInComputeType : lt::kNoReduction));
    set(lt::kImplementationMask, allowed_implementations(plan));
    const auto a = static_cast<uint32_t>(key.alignments & 0xFFFF);
    const auto b = static_cast<uint32_t>(key.alignments >> 16 & 0xFFFF);
    const auto c = static_cast<uint32_t>(key.alignments >> 32 & 0xFFFF);
    set(lt::kAlignmentA, plan.swapped ? b : a);
    set(lt::kAlignmentB, plan.swapped ? a : b);
    set(lt::kAlignmentC, c);
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

template <typename Value>
Value config(const lt::Algorithm& algorithm, lt::AlgorithmAttribute attribute) {
  Value value{};
  std::size_t written = 0;
  library().api.cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof value, &written);
  return value;
}

/// Asks cuBLASLt; null where it knows no algorithm.
std::shared_ptr<const Plan> make_plan(const Key& key, int device) {
  const lt::Api& api = library().api;
  const lt::Handle handle = handle_of(device);
  RelaxedCapture relaxed(driver());
  auto plan = std::make_shared<Plan>();
  plan->device = device;
  plan->is_double = key.flags & kDouble;
  plan->is_tf32 = key.flags & kTf32;
  const bool a_row_major = key.flags & kRowMajorA, b_row_major = key.flags & kRowMajorB,
             c_row_major = key.flags & kRowMajorC;
  plan->swapped = c_row_major;

  const lt::DataType type = plan->is_double ? lt::kReal64F : lt::kReal32F;
  const lt::ComputeType compute = plan->is_double ? lt::kCompute64F
                                  : plan->is_tf32 ? lt::kCompute32FFastTf32
                                                  : lt::kCompute32F;
  check_lt(api.cublasLtMatmulDescCreate(&plan->operation, compute, type), kPlanning);
  lt::Transpose first = a_row_major == c_row_major ? lt::kAsIs : lt::kTransposed;
  lt::Transpose second = b_row_major == c_row_major ? lt::kAsIs : lt::kTransposed;
  if (plan->swapped) std::swap(first, second);
  api.cublasLtMatmulDescSetAttribute(plan->operation, lt::kTransposeA, &first, sizeof first);
  api.cublasLtMatmulDescSetAttribute(plan->operation, lt::kTransposeB, &second, sizeof second);

  lt::Layout& a = plan->swapped ? plan->second : plan->first;
  lt::Layout& b = plan->swapped ? plan->first : plan->second;
  a = make_layout(type, key.m, key.k, a_row_major, key.lda, key, key.a_stride);
  b = make_layout(type, key.k, key.n, b_row_major, key.ldb, key, key.b_stride);
  plan->result = make_layout(type, key.m, key.n, c_row_major, key.ldc, key, key.c_stride);

  const PlanPreference preference(key, *plan);
  std::array<lt::Heuristic, 4> found{};
  int count = 0;
  const lt::Status status =
      api.cublasLtMatmulAlgoGetHeuristic(handle, plan->operation, plan->first, plan->second, plan->result, plan->result,
                                         preference.get(), static_cast<int>(found.size()), found.data(), &count);
  if (status != lt::kSuccess && status != lt::kNotSupported) throw_lt(status, kPlanning);
  for (int i = 0; i < count; ++i) {
    if (found[i].state != lt::kSuccess || found[i].workspace_bytes > cublas::kMaxWorkspace) continue;
    if (!split_k_is_safe(key) && config<int32_t>(found[i].algorithm, lt::kSplitK) > 1) continue;
    plan->algorithm = found[i].algorithm;
    plan->workspace_bytes = found[i].workspace_bytes;
    return plan;
  }
  return nullptr;
}

constexpr std::size_t kShards = 16;
constexpr std::size_t kPlansPerShard = 256;

struct Shard {
  std::mutex mutex;
  std::unordered_map<HashedKey, std::shared_ptr<const Plan>, StoredHash>
      plans;  // null: cuBLASLt has no algorithm for it
};

std::shared_ptr<const Plan> find_plan(const Key& key, int device) {
  static auto* const shards = new std::array<Shard, kShards>;
  const HashedKey hashed{key, hash_of(key)};
  Shard& shard = (*shards)[hashed.hash >> 60];
  {
    std::lock_guard<std::mutex> lock(shard.mutex);
    const auto found = shard.plans.find(hashed);
    if (found != shard.plans.end()) return found->second;
  }
  std::shared_ptr<const Plan> plan = make_plan(key, device);  // unlocked: two threads may both ask, and agree
  std::lock_guard<std::mutex> lock(shard.mutex);
  if (shard.plans.size() >= kPlansPerShard) shard.plans.clear();
  return shard.plans.emplace(hashed, std::move(plan)).first->second;
}

}  // namespace

// ---- what the dispatcher calls ----

namespace cublas {

bool installed() { return library().installed; }

std::string why_not_installed() { return library().why_not; }

Planned plan(const Gemm& gemm, const MatmulOptions& options) {
  const int device = current_device(kPlanning);
  Key key;
  if (const char* why_not = make_key(gemm, options, device, key)) return {nullptr, 0, why_not};
  std::shared_ptr<const Plan> plan = find_plan(key, device);
  if (!plan) return {nullptr, 0, "it has no algorithm for these shapes, strides and alignments"};
  const std::size_t workspace_bytes = plan->workspace_bytes;
  return {std::move(plan), workspace_bytes, nullptr};
}

void launch(const Gemm& gemm, const void* algorithm, void* workspace, cudaStream_t stream) {
  const Plan& plan = *static_cast<const Plan*>(algorithm);
  const double one64 = 1, zero64 = 0;
  const float one32 = 1, zero32 = 0;
  const void* const alpha = plan.is_double ? static_cast<const void*>(&one64) : &one32;
  const void* const beta = plan.is_double ? static_cast<const void*>(&zero64) : &zero32;
  const auto run = [&] {
    return library().api.cublasLtMatmul(handle_of(plan.device), plan.operation, alpha, plan.swapped ? gemm.b : gemm.a,
                                        plan.first, plan.swapped ? gemm.a : gemm.b, plan.second, beta, gemm.c,
                                        plan.result, gemm.c, plan.result, &plan.algorithm, workspace,
                                        plan.workspace_bytes, stream);
  };
  lt::Status status;
  const uint64_t context = current_context_id("launching a product");
  if (plan.loaded_in.load(std::memory_order_relaxed) == context) {
    status = run();
  } else {
    RelaxedCapture relaxed(driver());  // the first launch loads the kernel, perhaps inside a capture
    status = run();
    if (status == lt::kSuccess) plan.loaded_in.store(context, std::memory_order_relaxed);
  }
  if (status == lt::kSuccess) return;
  // cuBLASLt's status does not tell our failure from an earlier one; the stream does.
  RelaxedCapture relaxed(driver());
  const CUresult earlier = driver().cuStreamQuery(stream);
  if (is_earlier_error(earlier)) throw_status(earlier, "launching a product");
  throw_lt(status, "launching a product");
}

std::string describe(const void* algorithm) {
  const Plan& plan = *static_cast<const Plan*>(algorithm);
  return "cuBLASLt " + library().version + " algorithm " +
         std::to_string(config<int32_t>(plan.algorithm, lt::kAlgorithmId)) + ", tile " +
         std::to_string(config<uint32_t>(plan.algorithm, lt::kTileId)) + ", stages " +
         std::to_string(config<uint32_t>(plan.algorithm, lt::kStagesId)) + ", split-k " +
         std::to_string(std::max(1, config<int32_t>(plan.algorithm, lt::kSplitK))) + ", " +
         (plan.is_double ? "float64"
          : plan.is_tf32 ? "float32 by TF32"
                         : "float32");
}

}  // namespace cublas

std::string cublas_status() {
  try {
    const Library& opened = library();
    if (!opened.installed) return "not found: " + opened.why_not;
    const std::size_t slash = opened.path.rfind('/');
    return opened.path.substr(slash == std::string::npos ? 0 : slash + 1) + ", version " + opened.version + ", " +
           opened.path;
  } catch (...) {
    return "not found: out of memory";
  }
}

void set_cublas_paths(const char* const* paths, int count) {
  if (count > 0) search_paths().assign(paths, paths + count);
}

}  // namespace interop::cuda
