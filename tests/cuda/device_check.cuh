/// What the tests and benchmarks of single kernels share: waiting with a limit, filling, a float64 reference and
/// comparing on the device; batches, cuBLAS, and timing by graphs.
#pragma once

#include <interop/gemm.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <dlfcn.h>

#include <chrono>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "check.h"

namespace interop::testing {

inline cudaStream_t g_stream;

inline constexpr DLDataType kHalf{kDLFloat, 16, 1}, kBrain{kDLBfloat, 16, 1}, kSingle{kDLFloat, 32, 1},
    kDouble{kDLFloat, 64, 1};

// ---- waiting ----

inline double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Waits for all that the stream holds; ends the program, naming `what`, where that takes longer than any of it should.
inline void finish(const std::string& what) {
  static const cudaEvent_t event = [] {
    cudaEvent_t made;
    MUST(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
    return made;
  }();
  MUST(cudaEventRecord(event, g_stream));
  const double end = seconds() + 5;
  for (;;) {
    const cudaError_t status = cudaEventQuery(event);
    if (status == cudaSuccess) return;
    if (status != cudaErrorNotReady) std::printf("STOPPED in %s: %s\n", what.c_str(), cudaGetErrorName(status));
    if (status == cudaErrorNotReady && seconds() < end) continue;
    if (status == cudaErrorNotReady) std::printf("HANGS: %s\n", what.c_str());
    std::fflush(stdout);
    std::_Exit(3);  // nothing that waits for the device
  }
}

// ---- device code: filling, the reference, comparing ----

inline __device__ float random_value(uint64_t index, uint32_t seed, int integers) {
  uint64_t x = (index + 1) * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  x ^= x >> 31;
  if (integers) return static_cast<int>(x % 7) - 3;
  return static_cast<int32_t>(x) / 2147483648.f;
}

template <typename T>
__device__ T to(double x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(static_cast<float>(x));
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

template <typename T>
__device__ double wide(T x) {
  if constexpr (std::is_same_v<T, double>) {
    return x;
  } else {
    return static_cast<float>(x);
  }
}

struct Strided {
  int64_t rows, columns, row_stride, column_stride;
  int batch_ndim;
  int64_t sizes[4], strides[4];
};

inline __device__ int64_t batch_offset(const Strided& x, int64_t matrix) {
  int64_t offset = 0;
  for (int i = x.batch_ndim - 1; i >= 0; --i) {
    offset += matrix % x.sizes[i] * x.strides[i];
    matrix /= x.sizes[i];
  }
  return offset;
}

/// What: 0 integers in [-3, 3], 1 uniform in [-1, 1], 2 ones.
template <typename T>
__global__ void fill_kernel(T* data, Strided x, int64_t matrices, uint32_t seed, int what) {
  const int64_t count = matrices * x.rows * x.columns;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t matrix = i / (x.rows * x.columns), at = i % (x.rows * x.columns);
    data[batch_offset(x, matrix) + at / x.columns * x.row_stride + at % x.columns * x.column_stride] =
        to<T>(what == 2 ? 1.f : random_value(i, seed, what == 0));
  }
}

/// What is done to the sums, for the reference; nulls for what there is not.
template <typename C>
struct Finish {
  double factor = 1, beta = 1;
  const C *addend = nullptr, *bias = nullptr;
  C* aux = nullptr;
  Strided addend_x{}, bias_x{}, aux_x{};
  Activation activation = Activation::none;
};

inline __device__ double activated(double x, Activation activation) {
  switch (activation) {
    case Activation::relu:
      return fmax(x, 0.);
    case Activation::gelu:
      return x / 2 * (1 + erf(x / sqrt(2.)));
    case Activation::gelu_tanh:
      return x / 2 * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    default:
      return x;
  }
}

/// One thread an output, in float64.
template <typename T, typename C>
__global__ void reference_kernel(const T* a, const T* b, C* c, Strided xa, Strided xb, Strided xc, int64_t matrices,
                                 int64_t k, Finish<C> how) {
  const int64_t count = matrices * xc.rows * xc.columns;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t matrix = i / (xc.rows * xc.columns), at = i % (xc.rows * xc.columns);
    const int64_t row = at / xc.columns, column = at % xc.columns;
    const T* const pa = a + batch_offset(xa, matrix) + row * xa.row_stride;
    const T* const pb = b + batch_offset(xb, matrix) + column * xb.column_stride;
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) {
      sum += wide(pa[j * xa.column_stride]) * wide(pb[j * xb.row_stride]);
    }
    const auto offset = [&](const Strided& x) {
      return batch_offset(x, matrix) + row * x.row_stride + column * x.column_stride;
    };
    sum *= how.factor;
    if (how.addend) sum += how.beta * wide(how.addend[offset(how.addend_x)]);
    if (how.bias) sum += wide(how.bias[offset(how.bias_x)]);
    if (how.aux) how.aux[offset(how.aux_x)] = to<C>(sum);
    c[offset(xc)] = to<C>(activated(sum, how.activation));
  }
}

struct Differences {
  unsigned long long count, first;
};

/// Bits must agree, or else values to within `relative` of what is wanted and `absolute`.
template <typename C>
__global__ void compare_kernel(const C* got, const C* want, int64_t count, double relative, double absolute,
                               Differences* differences) {
  using Bits = std::conditional_t<sizeof(C) == 8, uint64_t, std::conditional_t<sizeof(C) == 4, uint32_t, uint16_t>>;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    if (reinterpret_cast<const Bits*>(got)[i] == reinterpret_cast<const Bits*>(want)[i]) continue;
    const double g = wide(got[i]), w = wide(want[i]);
    if (fabs(g - w) <= relative * fabs(w) + absolute) continue;  // zeros of either sign, too
    atomicAdd(&differences->count, 1);
    atomicMin(&differences->first, static_cast<unsigned long long>(i));
  }
}

// ---- memory ----

inline constexpr int64_t kGuard = 1024;  // elements on either side of an array

/// NaN in every dtype.
inline void poison(void* memory, std::size_t bytes) { MUST(cudaMemsetAsync(memory, 0xff, bytes, g_stream)); }

/// One piece of device memory, handed out anew for every case.
class Arena {
 public:
  Arena() { MUST(cudaMalloc(&memory_, kBytes)); }
  ~Arena() { cudaFree(memory_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void reset() { used_ = 0; }
  char* take(std::size_t bytes) {
    char* const taken = memory_ + used_;
    used_ += (bytes + 255) / 256 * 256;
    if (used_ > kBytes) std::printf("STOPPED: the arena is too small\n"), std::exit(2);
    return taken;
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{512} << 20;
  char* memory_ = nullptr;
  std::size_t used_ = 0;
};

// ---- cases ----

/// Of a batch, a dimension in which an operand may be the same.
struct Batch {
  int64_t size;
  bool a_varies, b_varies;
};

/// As fill_kernel; a matrix that is the same along a dimension is filled once.
template <typename T>
void fill(T* data, Strided x, uint32_t seed, int what) {
  int64_t own = 1;
  for (int i = 0; i < x.batch_ndim; ++i) {
    if (x.strides[i] == 0) x.sizes[i] = 1;
    own *= x.sizes[i];
  }
  fill_kernel<<<1024, 256, 0, g_stream>>>(data, x, own, seed, what);
}

/// What differs between two arrays of so many elements, in rows `pitch` apart, and their guards, as compare_kernel has
/// it; "" if nothing. Waits, for `name`.
template <typename C>
std::string difference(const std::string& name, const C* got, const C* want, int64_t elements, int64_t pitch,
                       double relative, double absolute, Differences* differences) {
  got -= kGuard, want -= kGuard;
  MUST(cudaMemsetAsync(&differences->count, 0, sizeof differences->count, g_stream));
  MUST(cudaMemsetAsync(&differences->first, 0xff, sizeof differences->first, g_stream));
  compare_kernel<<<1024, 256, 0, g_stream>>>(got, want, elements + 2 * kGuard, relative, absolute, differences);
  MUST(cudaGetLastError());
  finish(name);
  Differences found;
  MUST(cudaMemcpy(&found, differences, sizeof found, cudaMemcpyDeviceToHost));
  if (found.count == 0) return "";
  C got_value, wanted_value;
  MUST(cudaMemcpy(&got_value, got + found.first, sizeof(C), cudaMemcpyDeviceToHost));
  MUST(cudaMemcpy(&wanted_value, want + found.first, sizeof(C), cudaMemcpyDeviceToHost));
  const int64_t at = static_cast<int64_t>(found.first) - kGuard;
  std::ostringstream s;
  s << ": " << found.count << " elements differ, first at " << at << " (" << at / pitch << ", " << at % pitch << ") of "
    << elements << ": " << static_cast<double>(got_value) << ", not " << static_cast<double>(wanted_value);
  return s.str();
}

// ---- timing ----

inline const std::vector<std::string> kCublasPaths{"libcublas.so.13", "libcublas.so.12", "libcublas.so",
                                                   "/usr/local/cuda/lib64/libcublas.so"};

/// cuBLAS, as far as it is needed: row-major c = a b by cublasGemmStridedBatchedEx.
class Cublas {
 public:
  explicit Cublas(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library_) break;
    }
    if (!library_) {
      std::printf("no cuBLAS (%s): timing our own kernels only\n", dlerror());
      return;
    }
    get("cublasCreate_v2", create_);
    get("cublasSetStream_v2", set_stream_);
    get("cublasSetWorkspace_v2", set_workspace_);
    get("cublasGemmStridedBatchedEx", gemm_);
    must_be_0(create_(&handle_));
    must_be_0(set_stream_(handle_, g_stream));
    void* workspace;
    constexpr std::size_t kWorkspace = std::size_t{32} << 20;
    MUST(cudaMalloc(&workspace, kWorkspace));
    must_be_0(set_workspace_(handle_, workspace, kWorkspace));
  }
  explicit operator bool() const { return library_ != nullptr; }

  /// `allow_tf32` for float32, which else is exact.
  void launch(const Gemm& gemm, bool allow_tf32 = false) const {
    const bool a_t = gemm.a_strides.column != 1, b_t = gemm.b_strides.column != 1;
    // CUDA_R_32F, _16F, _16BF, _64F
    const int type = gemm.dtype == kSingle ? 0 : gemm.dtype == kHalf ? 2 : gemm.dtype == kBrain ? 14 : 1;
    // CUBLAS_COMPUTE_64F, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_32F
    const int compute = gemm.dtype == kDouble ? 70 : allow_tf32 ? 77 : 68;
    const float one = 1, zero = 0;
    const double wide_one = 1, wide_zero = 0;
    const bool is_wide = gemm.dtype == kDouble;
    const void* const alpha = is_wide ? static_cast<const void*>(&wide_one) : &one;
    const void* const beta = is_wide ? static_cast<const void*>(&wide_zero) : &zero;
    const BatchDim dim = gemm.batch_ndim ? gemm.batch[0] : BatchDim{1, 0, 0, 0, 0, 0};
    must_be_0(gemm_(handle_, b_t, a_t, gemm.n, gemm.m, gemm.k, alpha, gemm.b, type,
                    b_t ? gemm.b_strides.column : gemm.b_strides.row, dim.b_stride, gemm.a, type,
                    a_t ? gemm.a_strides.column : gemm.a_strides.row, dim.a_stride, beta, gemm.c, type,
                    gemm.c_strides.row, dim.c_stride, dim.size, compute, -1));  // CUBLAS_GEMM_DEFAULT
  }

 private:
  template <typename Function>
  void get(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    if (!function) std::printf("STOPPED: cuBLAS has no %s\n", name), std::exit(2);
  }
  static void must_be_0(int status) {
    if (status != 0) std::printf("STOPPED: cuBLAS status %d\n", status), std::exit(2);
  }

  void* library_ = nullptr;
  void* handle_ = nullptr;
  int (*create_)(void**) = nullptr;
  int (*set_stream_)(void*, cudaStream_t) = nullptr;
  int (*set_workspace_)(void*, void*, std::size_t) = nullptr;
  int (*gemm_)(void*, int, int, int, int, int, const void*, const void*, int, int, long long, const void*, int, int,
               long long, const void*, void*, int, int, long long, int, int, int) = nullptr;
};

/// A graph of launches, each on the next set of buffers.
class Repeats {
 public:
  const std::string name;

  template <typename Launch>
  Repeats(std::string name, int repeats, Launch launch) : name(std::move(name)), repeats_(repeats) {
    launch(0);  // what loads on first use
    finish(name);
    MUST(cudaStreamBeginCapture(g_stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < repeats; ++i) launch(i);
    cudaGraph_t graph;
    MUST(cudaStreamEndCapture(g_stream, &graph));
    MUST(cudaGraphInstantiate(&exec_, graph, 0));
    MUST(cudaGraphDestroy(graph));
    MUST(cudaEventCreate(&start_));
    MUST(cudaEventCreate(&stop_));
  }
  ~Repeats() {
    cudaGraphExecDestroy(exec_);
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }
  Repeats(const Repeats&) = delete;
  Repeats& operator=(const Repeats&) = delete;

  void replay() {
    MUST(cudaEventRecord(start_, g_stream));
    MUST(cudaGraphLaunch(exec_, g_stream));
    MUST(cudaEventRecord(stop_, g_stream));
    finish(name);
    float ms = 0;
    MUST(cudaEventElapsedTime(&ms, start_, stop_));
    times_.push_back(ms / 1e3 / repeats_);
  }
  void forget() { times_.clear(); }
  double median() {
    std::sort(times_.begin(), times_.end());
    return times_[times_.size() / 2];
  }

 private:
  int repeats_;
  cudaGraphExec_t exec_;
  cudaEvent_t start_, stop_;
  std::vector<double> times_;
};

/// Five rounds, and one that is forgotten, each there and back, so that a drift of the clock hits all alike.
inline void replay_in_turn(std::vector<std::unique_ptr<Repeats>>& rows) {
  for (int round = -1; round < 5; ++round) {
    for (auto row = rows.begin(); row != rows.end(); ++row) (*row)->replay();
    for (auto row = rows.rbegin(); row != rows.rend(); ++row) (*row)->replay();
    if (round < 0) {
      for (auto& row : rows) row->forget();
    }
  }
}

}  // namespace interop::testing
