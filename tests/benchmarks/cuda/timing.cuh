/// What the benchmarks of single kernels share: cuBLAS, opened at run time, and timing by graphs.
#pragma once

#include <interop/gemm.h>

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device_memory.h"
#include "cuda/stream.cuh"

namespace interop::tests {

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
    must_be_0(set_stream_(handle_, stream()));
    void* workspace;
    constexpr std::size_t kWorkspace = std::size_t{32} << 20;
    check_cuda(cudaMalloc(&workspace, kWorkspace), "cudaMalloc");
    must_be_0(set_workspace_(handle_, workspace, kWorkspace));
  }
  explicit operator bool() const { return library_ != nullptr; }

  /// `allow_tf32` for float32, which else is exact.
  void launch(const Gemm& gemm, bool allow_tf32 = false) const {
    const bool a_t = gemm.a_strides.column != 1, b_t = gemm.b_strides.column != 1;
    // CUDA_R_32F, _16F, _16BF, _64F
    const int type = gemm.dtype == kFloat32 ? 0 : gemm.dtype == kFloat16 ? 2 : gemm.dtype == kBfloat16 ? 14 : 1;
    // CUBLAS_COMPUTE_64F, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_32F
    const int compute = gemm.dtype == kFloat64 ? 70 : allow_tf32 ? 77 : 68;
    const float one = 1, zero = 0;
    const double wide_one = 1, wide_zero = 0;
    const bool is_wide = gemm.dtype == kFloat64;
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
    check_cuda(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    for (int i = 0; i < repeats; ++i) launch(i);
    cudaGraph_t graph;
    check_cuda(cudaStreamEndCapture(stream(), &graph), "cudaStreamEndCapture");
    check_cuda(cudaGraphInstantiate(&exec_, graph, 0), "cudaGraphInstantiate");
    check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    check_cuda(cudaEventCreate(&start_), "cudaEventCreate");
    check_cuda(cudaEventCreate(&stop_), "cudaEventCreate");
  }
  ~Repeats() {
    cudaGraphExecDestroy(exec_);
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }
  Repeats(const Repeats&) = delete;
  Repeats& operator=(const Repeats&) = delete;

  void replay() {
    check_cuda(cudaEventRecord(start_, stream()), "cudaEventRecord");
    check_cuda(cudaGraphLaunch(exec_, stream()), "cudaGraphLaunch");
    check_cuda(cudaEventRecord(stop_, stream()), "cudaEventRecord");
    finish(name);
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, start_, stop_), "cudaEventElapsedTime");
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

/// Bytes that a copy of one half of the memory to the other reads and writes, in a second.
inline double copy_rate(char* memory, std::size_t bytes) {
  const std::size_t half = bytes / 2;
  check_cuda(cudaMemsetAsync(memory, 1, bytes, stream()), "cudaMemsetAsync");
  Repeats copy("copy", 4, [&](int) {
    check_cuda(cudaMemcpyAsync(memory + half, memory, half, cudaMemcpyDeviceToDevice, stream()), "cudaMemcpyAsync");
  });
  for (int i = 0; i < 10; ++i) copy.replay();
  return 2. * half / copy.median();
}

/// Fills so many bytes with uniform values of a dtype, and waits.
inline void fill_uniform(DLDataType dtype, char* memory, std::size_t bytes) {
  const Strided all{1, static_cast<int64_t>(bytes) / item_bytes(dtype), 0, 1, 0, {}, {}};
  if (dtype == kFloat16) {
    fill(reinterpret_cast<__half*>(memory), all, 3, Values::uniform);
  } else if (dtype == kBfloat16) {
    fill(reinterpret_cast<__nv_bfloat16*>(memory), all, 3, Values::uniform);
  } else if (dtype == kFloat32) {
    fill(reinterpret_cast<float*>(memory), all, 3, Values::uniform);
  } else {
    fill(reinterpret_cast<double*>(memory), all, 3, Values::uniform);
  }
  finish("filling the buffers");
}

/// Bytes of an array, up to a whole multiple of 256.
inline std::size_t aligned_bytes(int64_t elements, DLDataType dtype) {
  return static_cast<std::size_t>((elements * item_bytes(dtype) + 255) / 256 * 256);
}

/// Says which device this is. Lines show as they come, in a file too.
inline void start_output() {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  std::printf("%s, %d SMs\n", properties.name, properties.multiProcessorCount);
}

/// Takes up new shapes until so many seconds have passed, and counts those that it leaves out.
class Limit {
 public:
  explicit Limit(double limit) : limit_(limit) {}
  bool is_over() {
    const bool over = seconds() - start_ > limit_;
    left_out_ += over;
    return over;
  }
  void report() const { std::printf("%.0f s, %d shapes left out for want of time\n", seconds() - start_, left_out_); }

 private:
  const double limit_, start_ = seconds();
  int left_out_ = 0;
};

}  // namespace interop::tests
