/// Matrix products by cuBLASLt, opened at run time: the layouts that it takes, their translation, and the plans.
///
/// Three things are cached: the library and one handle per device, for good, and the plans. A plan's key is all that
/// cuBLASLt's choice depends on (`Key`). The cache holds at most kShards * kPlansPerShard plans. A full shard is
/// emptied; a plan in use lives on through its shared_ptr.
#include <interop/error.h>

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda/driver/driver_api.h"
#include "cuda/matmul/backends.h"
#include "cuda/matmul/cublas/cublaslt_api.h"

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
         RESOLVE(cublasLtMatmulAlgoCheck) && RESOLVE(cublasLtMatmulAlgoConfigGetAttribute) && RESOLVE(cublasLtMatmul);
#undef RESOLVE
}

/// Tries to open the library by one name; if that fails, `library.why_not` says why.
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

/// The handle of a device. It holds neither stream nor workspace, so one handle serves every thread.
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

/// A matrix in BLAS's terms: one unit stride, and a leading dimension that is at least the length of a row (or column).
struct BlasLayout {
  bool possible = false;
  bool row_major = true;
  int64_t ld = 0;
};

/// The stride of a dimension of size 1 does not matter, so the leading dimension is then ours to choose.
BlasLayout row_major_layout(int64_t rows, int64_t columns, const MatrixStrides& strides) {
  const int64_t ld = rows == 1 ? columns : strides.row;
  return {(strides.column == 1 || columns == 1) && ld >= columns, true, ld};
}
BlasLayout column_major_layout(int64_t rows, int64_t columns, const MatrixStrides& strides) {
  const int64_t ld = columns == 1 ? rows : strides.column;
  return {(strides.row == 1 || rows == 1) && ld >= rows, false, ld};
}

BlasLayout blas_layout(int64_t rows, int64_t columns, const MatrixStrides& strides) {
  const BlasLayout layout = row_major_layout(rows, columns, strides);
  return layout.possible ? layout : column_major_layout(rows, columns, strides);
}
BlasLayout blas_layout(int64_t rows, int64_t columns, const MatrixStrides& strides, bool row_major) {
  return row_major ? row_major_layout(rows, columns, strides) : column_major_layout(rows, columns, strides);
}

/// The largest power of two, up to `most`, that divides the address of every matrix of a batch.
uint64_t alignment_of(const void* pointer, int64_t batch_stride, std::size_t item, uint64_t most) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(pointer) | (static_cast<uint64_t>(batch_stride) * item) | most;
  return bits & ~(bits - 1);
}

// ---- dtypes ----

/// cuBLASLt's types for a product of some dtypes.
struct Types {
  lt::DataType a, b, result;
  lt::ComputeType compute;
  lt::DataType scale;  // of alpha and beta
  uint64_t allowed;    // a mask of implementations
};

std::optional<lt::DataType> lt_type(DLDataType dtype) {
  switch (dtype.code) {
    case kDLFloat:
      return dtype.bits == 16 ? lt::kReal16F : dtype.bits == 32 ? lt::kReal32F : lt::kReal64F;
    case kDLBfloat:
      return lt::kReal16BF;
    case kDLComplex:
      return dtype.bits == 64 ? lt::kComplex32F : lt::kComplex64F;
    case kDLFloat8_e4m3fn:
      return lt::kReal8FE4M3;
    case kDLFloat8_e5m2:
      return lt::kReal8FE5M2;
    case kDLInt:
      if (dtype.bits == 8) return lt::kReal8I;
      if (dtype.bits == 32) return lt::kReal32I;
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

/// How products of these dtypes are computed; none where cuBLASLt has no product that is as exact as ours.
///
/// The mask overrides the environment. A float32 product is exact unless the caller allows TF32: the compute type asks
/// for that, and the mask enforces it even where NVIDIA_TF32_OVERRIDE=1 is set. No float64 product is emulated on
/// integer units, no 16-bit float is added up in 16 bits, and no complex product takes three real ones (Gauss).
std::optional<Types> types_of(const Gemm& gemm, MatmulPrecision precision) {
  const bool allow_tf32 = precision == MatmulPrecision::tf32;  // cuBLASLt has no tf32x3: such products are exact
  const auto a = lt_type(gemm.dtype), b = lt_type(gemm.b_dtype), result = lt_type(gemm.out_dtype);
  if (!a || !b || !result) return std::nullopt;
  const auto types = [&](lt::ComputeType compute, lt::DataType scale, uint64_t allowed) {
    return Types{*a, *b, *result, compute, scale, allowed};
  };
  switch (*a) {
    case lt::kReal32F:
      if (!allow_tf32) return types(lt::kCompute32F, lt::kReal32F, lt::kFma | lt::kAccumulate32F | lt::kInput32F);
      return types(lt::kCompute32FFastTf32, lt::kReal32F,
                   lt::kFma | lt::kTensorHalf | lt::kAccumulate32F | lt::kInput32F | lt::kInputTf32);
    case lt::kReal64F:
      return types(lt::kCompute64F, lt::kReal64F, lt::kFma | lt::kTensorDouble | lt::kAccumulate64F | lt::kInput64F);
    case lt::kComplex32F:
      return types(lt::kCompute32F, lt::kComplex32F, lt::kFma | lt::kAccumulate32F | lt::kInput32F);
    case lt::kComplex64F:
      return types(lt::kCompute64F, lt::kComplex64F, lt::kFma | lt::kTensorDouble | lt::kAccumulate64F | lt::kInput64F);
    case lt::kReal16F:
    case lt::kReal16BF:
      if (*a != *b) return std::nullopt;
      [[fallthrough]];
    case lt::kReal8FE4M3:
    case lt::kReal8FE5M2:
      return types(lt::kCompute32F, lt::kReal32F, lt::kAnyInstruction | lt::kAccumulate32F | lt::kAnyInput);
    case lt::kReal8I:
      if (*b != lt::kReal8I || *result != lt::kReal32I) return std::nullopt;
      return types(lt::kCompute32I, lt::kReal32I, lt::kAnyInstruction | lt::kAccumulate32I | lt::kAnyInput);
    default:
      return std::nullopt;
  }
}

// ---- keys ----

/// All that cuBLASLt's choice depends on.
struct Key {
  int64_t m, n, k;
  int64_t lda, ldb, ldc;
  int64_t batch, a_stride, b_stride, c_stride;
  int64_t ld_addend, addend_stride, ld_aux, aux_stride;
  uint64_t flags;         // the device, and the bits below
  uint64_t types;         // of a, b, the result
  uint64_t alignments;    // of a, b, c, the addend
  uint64_t alignments_2;  // of the bias, aux
};
constexpr int kKeyWords = 18;
static_assert(sizeof(Key) == kKeyWords * 8, "compared and hashed as bytes: no padding");

constexpr uint64_t kTf32 = 1, kRowMajorA = 2, kRowMajorB = 4, kRowMajorC = 8, kConjugatesA = 16, kConjugatesB = 32,
                   kHasAddend = 64, kHasBias = 128, kHasAux = 256, kHasRelu = 512, kHasGelu = 1024, kHasFactorA = 2048,
                   kHasFactorB = 4096, kIgnoresChoices = 8192;
constexpr int kDeviceShift = 16;
constexpr int kResultTypeShift = 16;
constexpr uint64_t kDeviceMask = ~uint64_t{0} << kDeviceShift;

uint64_t hash_of(const Key& key) {
  uint64_t words[kKeyWords];
  std::memcpy(words, &key, sizeof key);
  uint64_t even = 0, odd = 0;  // two chains, which the processor runs side by side
  for (int i = 0; i < kKeyWords; i += 2) {
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

/// Can cuBLASLt conjugate this operand? It conjugates only operands that it transposes, and it computes c^T where c is
/// row-major.
bool can_conjugate(bool conjugated, bool row_major, const BlasLayout& c) {
  return !conjugated || row_major != c.row_major;
}

/// Adds the epilogue to the key; returns why cuBLASLt cannot compute it, or null.
const char* add_finish(const Gemm& gemm, const MatmulOptions& options, const BlasLayout& c, Key& key) {
  const std::size_t item = item_bytes(gemm.out_dtype);
  const BatchDim batch = gemm.batch_ndim == 1 ? gemm.batch[0] : BatchDim{};
  if (gemm.scales && gemm.out_dtype.code == kDLInt) return "its integer products have no factors but 0 and 1";
  if (gemm.addend && gemm.bias && item == 2) return "it may round to 16 bits between c and bias";
  if (gemm.addend) {
    const BlasLayout addend = blas_layout(gemm.m, gemm.n, gemm.addend_strides, c.row_major);
    if (!addend.possible) return "c has no unit stride where the result has it, or is broadcast";
    if (batch.addend_stride < 0) return "its batch has a negative stride";
    key.flags |= kHasAddend;
    key.ld_addend = addend.ld;
    key.addend_stride = batch.addend_stride;
    key.alignments |= alignment_of(gemm.addend, batch.addend_stride, item, options.alignment) << 48;
  }
  if (gemm.bias) {
    const int64_t along = c.row_major ? gemm.bias_strides.column : gemm.bias_strides.row;
    const int64_t across = c.row_major ? gemm.bias_strides.row : gemm.bias_strides.column;
    const int64_t length = c.row_major ? gemm.n : gemm.m;
    if (across != 0 || (along != 1 && length > 1)) return "bias does not run along the result's unit stride";
    // cuBLASLt would read it as bfloat16.
    if (gemm.dtype.bits == 8 && gemm.out_dtype.code == kDLFloat && item == 4) {
      return "it takes no float32 bias beside float8 operands";
    }
    key.flags |= kHasBias;
    key.alignments_2 |= alignment_of(gemm.bias, 0, item, options.alignment);
  }
  if (gemm.activation == Activation::gelu) return "it has no exact gelu (but 'gelu_tanh')";
  if (gemm.activation == Activation::relu) key.flags |= kHasRelu;
  if (gemm.activation == Activation::gelu_tanh) {
    // It uses the hardware's tanh, of 11 bits, and 1 + tanh has fewer: enough for float8 operands only.
    if (gemm.dtype.bits != 8) return "its gelu is not as exact as the result's dtype";
    key.flags |= kHasGelu;
  }
  if (gemm.aux) {
    if (gemm.activation != Activation::gelu_tanh) return "it writes aux for 'gelu_tanh' only";
    const BlasLayout aux = blas_layout(gemm.m, gemm.n, gemm.aux_strides, c.row_major);
    if (!aux.possible) return "aux has no unit stride where the result has it";
    if (batch.aux_stride < 0) return "its batch has a negative stride";
    if (aux.ld % 8 != 0 || batch.aux_stride % 8 != 0) return "the rows of aux are not a multiple of 8 elements apart";
    key.flags |= kHasAux;
    key.ld_aux = aux.ld;
    key.aux_stride = batch.aux_stride;
    key.alignments_2 |= alignment_of(gemm.aux, batch.aux_stride, item, options.alignment) << 16;
  }
  return nullptr;
}

/// Translates the product to BLAS's terms; returns why that is impossible, or null.
const char* make_key(const Gemm& gemm, const MatmulOptions& options, const Types& types, int device, Key& key) {
  const BlasLayout c = blas_layout(gemm.m, gemm.n, gemm.c_strides);
  const BlasLayout a = blas_layout(gemm.m, gemm.k, gemm.a_strides);
  const BlasLayout b = blas_layout(gemm.k, gemm.n, gemm.b_strides);
  if (!a.possible) return "a has no unit stride, or its rows overlap";
  if (!b.possible) return "b has no unit stride, or its rows overlap";
  if (!c.possible) return "out has no unit stride, or its rows overlap";
  if (gemm.batch_ndim > 1) return "its batch does not collapse to one dimension";
  const BatchDim batch = gemm.batch_ndim == 1 ? gemm.batch[0] : BatchDim{};
  if (batch.a_stride < 0 || batch.b_stride < 0 || batch.c_stride < 0) return "its batch has a negative stride";
  if (batch.size > std::numeric_limits<int32_t>::max()) return "its batch is longer than 2147483647";
  if (!can_conjugate(gemm.a_conjugated, a.row_major, c)) return "it conjugates only what it transposes, and not a";
  if (!can_conjugate(gemm.b_conjugated, b.row_major, c)) return "it conjugates only what it transposes, and not b";

  key = {gemm.m, gemm.n, gemm.k, a.ld, b.ld, c.ld, batch.size, batch.a_stride, batch.b_stride, batch.c_stride, 0,
         0,      0,      0,      0,    0,    0,    0};
  key.flags = (types.compute == lt::kCompute32FFastTf32 ? kTf32 : 0) | (a.row_major ? kRowMajorA : 0) |
              (b.row_major ? kRowMajorB : 0) | (c.row_major ? kRowMajorC : 0) | (gemm.a_conjugated ? kConjugatesA : 0) |
              (gemm.b_conjugated ? kConjugatesB : 0) | (gemm.factor_a ? kHasFactorA : 0) |
              (gemm.factor_b ? kHasFactorB : 0) | (options.uses_choices ? 0 : kIgnoresChoices) |
              static_cast<uint64_t>(device) << kDeviceShift;
  key.types = static_cast<uint64_t>(types.a) | static_cast<uint64_t>(types.b) << 8 |
              static_cast<uint64_t>(types.result) << kResultTypeShift;
  const std::size_t item = item_bytes(gemm.dtype), out_item = item_bytes(gemm.out_dtype);
  key.alignments = alignment_of(gemm.a, batch.a_stride, item, options.alignment) |
                   alignment_of(gemm.b, batch.b_stride, item, options.alignment) << 16 |
                   alignment_of(gemm.c, batch.c_stride, out_item, options.alignment) << 32;
  return add_finish(gemm, options, c, key);
}

// ---- plans ----

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
  ~Plan() {
    const lt::Api& api = library().api;
    if (operation) api.cublasLtMatmulDescDestroy(operation);
    for (const lt::Layout layout : {first, second, addend, result}) {
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

/// cuBLASLt's descriptor of the operation, with those pointers of `gemm` that it takes.
class OwnedOperation {
 public:
  OwnedOperation(const Plan& plan, const Gemm& gemm) {
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
  ~OwnedOperation() {
    if (operation_) library().api.cublasLtMatmulDescDestroy(operation_);
  }
  OwnedOperation(const OwnedOperation&) = delete;
  OwnedOperation& operator=(const OwnedOperation&) = delete;
  lt::Operation get() const { return operation_; }
  lt::Operation release() { return std::exchange(operation_, nullptr); }

 private:
  template <typename Value>
  void set(lt::OperationAttribute attribute, const Value& value) {
    check_lt(library().api.cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof value), kPlanning);
  }
  /// 0 for no epilogue.
  static uint32_t epilogue_of(const Key& key) {
    uint32_t epilogue = 0;
    if (key.flags & kHasBias) epilogue |= lt::kBias;
    if (key.flags & kHasRelu) epilogue |= lt::kRelu;
    if (key.flags & kHasGelu) epilogue |= key.flags & kHasAux ? lt::kGeluAux : lt::kGelu;
    return epilogue;
  }
  lt::Operation operation_ = nullptr;
};

/// Does the operation hold pointers of the call?
bool names_pointers(const Key& key) { return key.flags & (kHasBias | kHasAux | kHasFactorA | kHasFactorB); }

enum class Division { allowed, forbidden };  // of k into parts

class PlanPreference {
 public:
  PlanPreference(const Plan& plan, Division division) {
    const Key& key = plan.key;
    check_lt(library().api.cublasLtMatmulPreferenceCreate(&preference_), kPlanning);
    set(lt::kMaxWorkspaceBytes, cublas::kMaxWorkspace);
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

template <typename Value>
Value config(const lt::Algorithm& algorithm, lt::AlgorithmAttribute attribute) {
  Value value{};
  std::size_t written = 0;
  library().api.cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof value, &written);
  return value;
}

int32_t parts_of_k(const lt::Algorithm& algorithm) { return std::max(1, config<int32_t>(algorithm, lt::kSplitK)); }

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

bool is_right(const Key& key, const lt::Algorithm& algorithm) {
  return covers_k(key.k, algorithm) && rounds_once(key, algorithm) && !spans_too_much(key, algorithm);
}

/// Makes a plan without its algorithm, and `operation`, cuBLASLt's descriptor of the operation.
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

lt::Layout addend_of(const Plan& plan) { return plan.addend ? plan.addend : plan.result; }

struct Candidates {
  std::vector<lt::Heuristic> algorithms;  // right for the product; the quickest by cuBLASLt's estimate first
  bool denied_division = false;           // cuBLASLt's quickest splits k, wrongly; the first of these does not
};

/// The candidates among the first `most` algorithms that cuBLASLt proposes.
Candidates algorithms_for(const Plan& plan, const OwnedOperation& operation, int most,
                          Division division = Division::allowed) {
  const PlanPreference preference(plan, division);
  std::vector<lt::Heuristic> found(static_cast<size_t>(most));
  int count = 0;
  const lt::Status status = library().api.cublasLtMatmulAlgoGetHeuristic(
      handle_of(plan.device), operation.get(), plan.first, plan.second, addend_of(plan), plan.result, preference.get(),
      most, found.data(), &count);
  // INVALID_VALUE: dtypes, layouts and epilogue do not go together.
  if (status != lt::kSuccess && status != lt::kNotSupported && status != lt::kInvalidValue) throw_lt(status, kPlanning);
  if (status != lt::kSuccess || count == 0) return {};
  found.resize(static_cast<size_t>(count));
  const bool is_short = parts_of_k(found[0].algorithm) > 1 && !is_right(plan.key, found[0].algorithm);
  const auto is_wrong = [&](const lt::Heuristic& one) {
    return one.state != lt::kSuccess || one.workspace_bytes > cublas::kMaxWorkspace ||
           !is_right(plan.key, one.algorithm);
  };
  found.erase(std::remove_if(found.begin(), found.end(), is_wrong), found.end());
  if (!found.empty()) return {found, is_short && parts_of_k(found[0].algorithm) == 1};
  if (division == Division::forbidden) return {};
  return {algorithms_for(plan, operation, most, Division::forbidden).algorithms, is_short};
}

// ---- choices made by measuring ----

struct Choice {
  lt::Algorithm algorithm{};
  bool tiled = false;
  double microseconds = 0, untuned_microseconds = 0;
  std::string product;
};

struct Choices {
  std::mutex mutex;
  std::unordered_map<HashedKey, Choice, StoredHash> of;
};
Choices& all_choices() {
  static auto* const choices = new Choices;
  return *choices;
}

/// Plans the product by the choice kept for it; false if there is none, or this cuBLASLt does not take it.
bool plan_as_chosen(Plan& plan, const OwnedOperation& operation) {
  if (plan.key.flags & kIgnoresChoices) return false;
  Choices& choices = all_choices();
  std::lock_guard<std::mutex> lock(choices.mutex);
  const auto found = choices.of.find({plan.key, hash_of(plan.key)});
  if (found == choices.of.end()) return false;
  const Choice& choice = found->second;
  lt::Heuristic checked{};
  const lt::Status status =
      library().api.cublasLtMatmulAlgoCheck(handle_of(plan.device), operation.get(), plan.first, plan.second,
                                            addend_of(plan), plan.result, &choice.algorithm, &checked);
  if (status != lt::kSuccess || checked.workspace_bytes > cublas::kMaxWorkspace) return false;
  if (!is_right(plan.key, choice.algorithm)) return false;
  plan.algorithm = choice.algorithm;
  plan.workspace_bytes = checked.workspace_bytes;
  plan.tuned = true;
  plan.ours_is_quicker = choice.tiled;
  return true;
}

constexpr int kCandidates = 8;  // enough that mostly one of them splits k and covers it

/// Plans the product by the choice kept for it, or asks cuBLASLt; null if that knows no algorithm.
std::shared_ptr<const Plan> make_plan(const Gemm& gemm, const Key& key, const Types& types, int device) {
  RelaxedCapture relaxed(driver());
  std::optional<OwnedOperation> operation;
  const std::shared_ptr<Plan> plan = describe_to_cublas(gemm, key, types, device, operation);
  if (!plan_as_chosen(*plan, *operation)) {
    const Candidates found = algorithms_for(*plan, *operation, kCandidates);
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

void forget_plans() {
  ++g_choices;
  for (Shard& shard : shards()) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    shard.plans.clear();
  }
}

/// Keeps a choice, and forgets the plans made without it.
void keep(const Key& key, Choice choice) {
  Choices& choices = all_choices();
  {
    std::lock_guard<std::mutex> lock(choices.mutex);
    choices.of.insert_or_assign({key, hash_of(key)}, std::move(choice));
  }
  forget_plans();
}

std::shared_ptr<const Plan> find_plan(const Gemm& gemm, const Key& key, const Types& types, int device) {
  const HashedKey hashed{key, hash_of(key)};
  Shard& shard = shards()[hashed.hash >> 60];
  {
    std::lock_guard<std::mutex> lock(shard.mutex);
    const auto found = shard.plans.find(hashed);
    if (found != shard.plans.end()) return found->second;
  }
  const unsigned before = g_choices.load();
  std::shared_ptr<const Plan> plan =
      make_plan(gemm, key, types, device);  // unlocked: two threads may both ask, and get the same answer
  std::lock_guard<std::mutex> lock(shard.mutex);
  if (g_choices.load() != before) return plan;  // perhaps made without a choice kept meanwhile
  if (shard.plans.size() >= kPlansPerShard) shard.plans.clear();
  return shard.plans.emplace(hashed, std::move(plan)).first->second;
}

}  // namespace

// ---- what the dispatcher calls ----

namespace cublas {

bool installed() { return library().installed; }

std::string why_not_installed() { return library().why_not; }

const char* const kNoDtypes = "it has no product of these dtypes";

const char* why_not_dtypes(const Gemm& gemm, const MatmulOptions& options) {
  return types_of(gemm, options.precision) ? nullptr : kNoDtypes;
}

Planned plan(const Gemm& gemm, const MatmulOptions& options, const Device& of) {
  const std::optional<Types> types = types_of(gemm, options.precision);
  if (!types) return {nullptr, 0, kNoDtypes};
  const int device = of.index();
  Key key;
  if (const char* why_not = make_key(gemm, options, *types, device, key)) return {nullptr, 0, why_not};
  std::shared_ptr<const Plan> plan = find_plan(gemm, key, *types, device);
  if (!plan) return {nullptr, 0, "it has no algorithm for these dtypes, shapes, strides, alignments and epilogue"};
  Planned planned{nullptr, plan->workspace_bytes, nullptr, plan->tuned, plan->ours_is_quicker, plan->denied_division};
  planned.algorithm = std::move(plan);
  return planned;
}

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
  const uint64_t context = current_context_id("launching a product");
  if (plan.loaded_in.load(std::memory_order_relaxed) == context) {
    status = run();
  } else {
    RelaxedCapture relaxed(driver());  // the first launch loads the kernel, perhaps inside a capture
    status = run();
    if (status == lt::kSuccess) plan.loaded_in.store(context, std::memory_order_relaxed);
  }
  if (status == lt::kSuccess) return;
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
  if (found.empty()) return;
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

}  // namespace cublas

// ---- choices as text ----

namespace {

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

std::string cublas_version() {
  try {
    return library().version;
  } catch (...) {
    return "";
  }
}

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
