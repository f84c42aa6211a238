/// Tests and times src/cuda/matmul_wgmma.cu without Python.
///
///   wgmma_test [--variant N]
///   wgmma_test --bench [--cublas PATH] [--sizes 1024,...] [--no-shapes] [--dtype f16] [--variants 0,1,...]
///              [--super-rows 1024,2048] [--direct-too]
///
/// Tests: small integers, whose products are exact in float32, so that c must equal a naive kernel's bit for bit; all
/// that surrounds a, b and the elements of c is poison, and must not reach c or change. Prints "N passed, N failed".
/// --bench: a CUDA graph of many launches over buffers that exceed L2, random data, variants and cuBLAS interleaved,
/// medians. cuBLAS is opened at run time.
#include <interop/error.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <dlfcn.h>

#include <map>
#include <memory>
#include <sstream>

#include "check.h"
#include "cuda/matmul_wgmma.h"

using namespace interop;
using namespace interop::cuda;
using namespace interop::testing;

namespace {

cudaStream_t g_stream;

constexpr DLDataType kHalf{kDLFloat, 16, 1}, kBrain{kDLBfloat, 16, 1};

// ---- device code: filling, and the reference ----

__device__ float random_value(uint64_t index, uint32_t seed, int integers) {
  uint64_t x = (index + 1) * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  x ^= x >> 31;
  if (integers) return static_cast<int>(x % 7) - 3;
  return static_cast<int32_t>(x) / 2147483648.f;
}

template <typename T>
__device__ T to(float x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else {
    return x;
  }
}

struct Strided {
  int64_t rows, columns, row_stride, column_stride;
  int batch_ndim;
  int64_t sizes[4], strides[4];
};

__device__ int64_t batch_offset(const Strided& x, int64_t matrix) {
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

/// One thread an output, sums in float64.
template <typename T, typename C>
__global__ void reference_kernel(const T* a, const T* b, C* c, Strided xa, Strided xb, Strided xc, int64_t matrices,
                                 int64_t k) {
  const int64_t count = matrices * xc.rows * xc.columns;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t matrix = i / (xc.rows * xc.columns), at = i % (xc.rows * xc.columns);
    const int64_t row = at / xc.columns, column = at % xc.columns;
    const T* const pa = a + batch_offset(xa, matrix) + row * xa.row_stride;
    const T* const pb = b + batch_offset(xb, matrix) + column * xb.column_stride;
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) {
      sum += static_cast<double>(float(pa[j * xa.column_stride])) * float(pb[j * xb.row_stride]);
    }
    c[batch_offset(xc, matrix) + row * xc.row_stride + column * xc.column_stride] = to<C>(static_cast<float>(sum));
  }
}

// ---- cases ----

struct Batch {
  int64_t size;
  bool a_varies, b_varies;
};

struct Case {
  int64_t m, n, k;
  bool a_transposed = false, b_transposed = false;
  int64_t a_pad = 0, b_pad = 0, c_pad = 0;  // elements between rows
  bool c_transposed = false;
  int64_t c_column_step = 1;
  int64_t c_offset = 0;
  bool float32_c = false;
  bool direct = false;
  int what = 0;
  std::vector<Batch> batch = {};
  DLDataType dtype = kBrain;
};

std::string text(const Case& x, int variant) {
  std::ostringstream s;
  s << "variant " << variant << " (" << wgmma::variant_name(variant) << ") "
    << (x.dtype == kHalf ? "float16 " : "bfloat16 ") << x.m << "x" << x.n << "x" << x.k << " "
    << (x.a_transposed ? 'T' : 'N') << (x.b_transposed ? 'T' : 'N') << " pads " << x.a_pad << "," << x.b_pad << ","
    << x.c_pad << (x.c_transposed ? " c^T" : "") << " c step " << x.c_column_step << " c offset " << x.c_offset
    << (x.float32_c ? " float32 c" : "") << (x.direct ? " direct" : "") << " data " << x.what;
  for (const Batch& dim : x.batch) s << " batch " << dim.size << (dim.a_varies ? "a" : "") << (dim.b_varies ? "b" : "");
  return s.str();
}

int64_t round_up(int64_t x) { return (x + 7) / 8 * 8; }

/// Rows (or columns) of an array that starts `guard` elements into its memory, with its batch outside.
struct Placed {
  Strided x{};
  int64_t elements = 0;
};

Placed place(int64_t rows, int64_t columns, bool transposed, int64_t pad, bool aligned, int64_t step,
             const std::vector<Batch>& batch, int which) {
  Placed p;
  const int64_t inner = transposed ? rows : columns, outer = transposed ? columns : rows;
  const int64_t ld = aligned ? round_up(inner + pad) : inner * step + pad;
  p.x = {rows, columns, transposed ? step : ld, transposed ? ld : step, static_cast<int>(batch.size()), {}, {}};
  int64_t matrix = ld * outer;
  if (aligned) matrix = round_up(matrix);
  int64_t stride = matrix, all = matrix;
  for (int i = static_cast<int>(batch.size()) - 1; i >= 0; --i) {
    const bool varies = which == 2 || (which == 0 ? batch[i].a_varies : batch[i].b_varies);
    p.x.sizes[i] = batch[i].size;
    p.x.strides[i] = varies ? stride : 0;
    if (varies) {
      all = stride * batch[i].size;
      stride = all + (aligned ? 16 : 0);  // so that neighbours do not collapse
    }
  }
  p.elements = all;
  return p;
}

constexpr int64_t kGuard = 1024;  // elements on either side

template <typename T, typename C>
void check_case_of(const Case& x, int variant) {
  const Placed pa = place(x.m, x.k, x.a_transposed, x.a_pad, true, 1, x.batch, 0);
  const Placed pb = place(x.k, x.n, x.b_transposed, x.b_pad, true, 1, x.batch, 1);
  const Placed pc = place(x.m, x.n, x.c_transposed, x.c_pad, false, x.c_column_step, x.batch, 2);
  int64_t matrices = 1;
  for (const Batch& dim : x.batch) matrices *= dim.size;

  const auto make = [](int64_t elements, std::size_t item) {
    char* memory;
    const std::size_t bytes = (elements + 2 * kGuard) * item;
    MUST(cudaMalloc(&memory, bytes));
    MUST(cudaMemsetAsync(memory, 0xff, bytes, g_stream));  // NaN in every dtype
    return memory;
  };
  char *const memory_a = make(pa.elements, 2), *const memory_b = make(pb.elements, 2);
  const int64_t elements_c = pc.elements + x.c_offset;
  char *const got = make(elements_c, sizeof(C)), *const want = make(elements_c, sizeof(C));
  T *const a = reinterpret_cast<T*>(memory_a) + kGuard, *const b = reinterpret_cast<T*>(memory_b) + kGuard;
  C *const c_got = reinterpret_cast<C*>(got) + kGuard + x.c_offset, *const c_want = reinterpret_cast<C*>(want) +
                                                                                    kGuard + x.c_offset;
  // A broadcast operand is filled several times with different values: keep one by filling its own matrices only.
  const auto fill = [&](T* data, Strided s, uint32_t seed) {
    int64_t own = 1;
    for (int i = 0; i < s.batch_ndim; ++i) {
      if (s.strides[i] == 0) s.sizes[i] = 1;
      own *= s.sizes[i];
    }
    fill_kernel<<<1024, 256, 0, g_stream>>>(data, s, own, seed, x.what);
  };
  fill(a, pa.x, 1);
  fill(b, pb.x, 2);
  reference_kernel<T, C><<<2048, 256, 0, g_stream>>>(a, b, c_want, pa.x, pb.x, pc.x, matrices, x.k);
  MUST(cudaGetLastError());

  Gemm gemm;
  gemm.dtype = x.dtype;
  gemm.m = x.m;
  gemm.n = x.n;
  gemm.k = x.k;
  gemm.a = a;
  gemm.b = b;
  gemm.c = c_got;
  gemm.a_strides = {pa.x.row_stride, pa.x.column_stride};
  gemm.b_strides = {pb.x.row_stride, pb.x.column_stride};
  gemm.c_strides = {pc.x.row_stride, pc.x.column_stride};
  for (const Batch& dim : x.batch) {
    const int i = gemm.batch_ndim++;
    gemm.batch[i] = {dim.size, pa.x.strides[i], pb.x.strides[i], pc.x.strides[i]};
  }
  wgmma::Options options;
  options.variant = variant;
  options.float32_c = x.float32_c;
  options.direct_stores = x.direct;
  if (expect(wgmma::serves(gemm), text(x, variant) + ": is not served")) {
    wgmma::launch(gemm, options, g_stream);
    const std::size_t bytes = (elements_c + 2 * kGuard) * sizeof(C);
    std::vector<C> host_got(bytes / sizeof(C)), host_want(bytes / sizeof(C));
    MUST(cudaStreamSynchronize(g_stream));
    MUST(cudaMemcpy(host_got.data(), got, bytes, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(host_want.data(), want, bytes, cudaMemcpyDeviceToHost));
    std::string wrong;
    if (x.what != 1) {
      std::size_t count = 0, first = 0;
      for (std::size_t i = 0; i < host_got.size(); ++i) {
        if (std::memcmp(&host_got[i], &host_want[i], sizeof(C)) == 0) continue;
        if (float(host_got[i]) == float(host_want[i])) continue;  // zeros of either sign
        if (count++ == 0) first = i;
      }
      if (count != 0) {
        const int64_t at = static_cast<int64_t>(first) - kGuard - x.c_offset;
        const int64_t ld = x.c_transposed ? pc.x.column_stride : pc.x.row_stride;
        std::ostringstream s;
        s << ": " << count << " elements differ, first at " << at << " (" << at / ld << ", " << at % ld << ") of "
          << elements_c << ": " << float(host_got[first]) << ", not " << float(host_want[first]);
        wrong = s.str();
      }
    } else {
      const double rounding = std::is_same_v<C, float> ? 0 : std::is_same_v<C, __half> ? 1. / 1024 : 1. / 128;
      for (std::size_t i = 0; i < host_got.size() && wrong.empty(); ++i) {
        const double g = float(host_got[i]), w = float(host_want[i]);
        const double allowed = rounding * std::abs(w) + x.k * 1e-6;
        if (std::isnan(w) ? !std::isnan(g) : !(std::abs(g - w) <= allowed)) {
          wrong = ": element " + std::to_string(i) + " is " + std::to_string(g) + ", not " + std::to_string(w);
        }
      }
    }
    expect(wrong.empty(), text(x, variant) + wrong);
  }
  for (char* memory : {memory_a, memory_b, got, want}) MUST(cudaFree(memory));
}

void check_case(const Case& x, int variant) {
  Gemm dtype;
  dtype.dtype = x.dtype;
  if (!wgmma::takes(variant, dtype)) return;
  if (x.dtype == kHalf) {
    x.float32_c ? check_case_of<__half, float>(x, variant) : check_case_of<__half, __half>(x, variant);
  } else {
    x.float32_c ? check_case_of<__nv_bfloat16, float>(x, variant)
                : check_case_of<__nv_bfloat16, __nv_bfloat16>(x, variant);
  }
}

std::vector<Case> cases() {
  std::vector<Case> list;
  const auto add = [&](int64_t m, int64_t n, int64_t k, auto change) {
    for (int layout = 0; layout < 4; ++layout) {
      Case x{m, n, k};
      x.a_transposed = layout & 2;
      x.b_transposed = layout & 1;
      change(x);
      list.push_back(x);
    }
  };
  const auto as_is = [](Case&) {};
  // From the simplest on, so that the first failure says most.
  add(128, 256, 64, as_is);
  add(128, 256, 64, [](Case& x) { x.direct = true; });
  add(128, 256, 64, [](Case& x) { x.float32_c = true; });
  add(64, 64, 16, as_is);
  add(256, 512, 64, as_is);
  add(128, 256, 128, as_is);
  add(128, 256, 1024, as_is);
  add(2048, 2048, 512, as_is);
  add(2048, 2048, 512, [](Case& x) { x.direct = true; });
  add(3000, 4104, 328, as_is);
  add(3000, 4104, 328, [](Case& x) { x.dtype = kHalf; });
  for (const DLDataType dtype : {kHalf, kBrain}) {
    for (const int64_t m : {1, 7, 65, 200}) {
      for (const int64_t n : {1, 8, 33, 130, 264, 520}) {
        for (const int64_t k : {1, 17, 64, 200}) {
          add(m, n, k, [&](Case& x) { x.dtype = dtype; });
        }
      }
    }
  }
  add(300, 520, 200, [](Case& x) { x.float32_c = true; });
  add(301, 521, 201, [](Case& x) { x.float32_c = true; });
  add(301, 521, 201, [](Case& x) { x.a_pad = 40, x.b_pad = 8, x.c_pad = 3; });
  add(304, 520, 201, [](Case& x) { x.c_pad = 16; });
  add(304, 520, 201, [](Case& x) { x.c_pad = 2; });
  add(304, 520, 201, [](Case& x) { x.c_transposed = true; });
  add(303, 521, 201, [](Case& x) { x.c_transposed = true; });
  add(303, 521, 201, [](Case& x) { x.c_column_step = 2; });
  add(304, 520, 201, [](Case& x) { x.c_offset = 1; });
  add(304, 520, 201, [](Case& x) { x.c_offset = 2; });
  add(127, 129, 1001, [](Case& x) { x.what = 2; });
  add(127, 129, 1001, [](Case& x) { x.what = 2, x.float32_c = true; });
  add(129, 257, 65537, [](Case& x) { x.what = 2, x.float32_c = true; });
  add(512, 512, 4096, [](Case& x) { x.what = 1; });
  add(512, 512, 4096, [](Case& x) { x.what = 1, x.float32_c = true; });
  add(512, 512, 4096, [](Case& x) { x.what = 1, x.dtype = kHalf; });
  add(200, 328, 136, [](Case& x) { x.batch = {{5, true, true}}; });
  add(200, 328, 136, [](Case& x) { x.batch = {{5, true, false}}; });
  add(200, 328, 136, [](Case& x) { x.batch = {{5, false, true}}; });
  add(201, 329, 135, [](Case& x) { x.batch = {{3, true, false}, {4, false, true}}; });
  add(64, 72, 136, [](Case& x) { x.batch = {{3, true, true}, {2, false, true}, {7, true, true}}; });
  add(64, 72, 136, [](Case& x) { x.batch = {{2, true, false}, {3, true, true}, {2, false, true}, {5, true, true}}; });
  add(16, 24, 8, [](Case& x) { x.batch = {{700, true, true}}; });
  add(64, 64, 64, [](Case& x) { x.batch = {{1024, true, true}}; });
  return list;
}

void test(int only) {
  for (int variant = 0; variant < wgmma::variant_count(); ++variant) {
    if (only >= 0 && variant != only) continue;
    const int failed = g_failed, passed = g_passed;
    int printed_limit = 0;
    for (const Case& x : cases()) {
      check_case(x, variant);
      if (g_failed - failed > 8 && printed_limit++ == 0) {
        std::printf("variant %d: many failures, stopping it\n", variant);
        break;
      }
    }
    std::printf("variant %d %-32s %d passed, %d failed\n", variant, wgmma::variant_name(variant), g_passed - passed,
                g_failed - failed);
    std::fflush(stdout);
  }
}

/// What the kernel must leave to another.
void test_refusals() {
  const auto gemm = [](auto change) {
    Gemm g;
    g.dtype = kBrain;
    g.m = g.n = g.k = 64;
    g.a = g.b = reinterpret_cast<void*>(4096);
    g.c = reinterpret_cast<void*>(8192);
    g.a_strides = g.b_strides = g.c_strides = {64, 1};
    change(g);
    return wgmma::serves(g);
  };
  expect(gemm([](Gemm&) {}), "the plain product is served");
  expect(!gemm([](Gemm& g) { g.dtype = {kDLFloat, 32, 1}; }), "float32");
  expect(!gemm([](Gemm& g) { g.k = 0; }), "k = 0");
  expect(!gemm([](Gemm& g) { g.a_strides = {65, 1}; }), "odd rows of a");
  expect(!gemm([](Gemm& g) { g.a_strides = {-64, 1}; }), "rows of a backwards");
  expect(!gemm([](Gemm& g) { g.a_strides = {0, 1}; }), "one row of a for all");
  expect(!gemm([](Gemm& g) { g.b_strides = {128, 2}; }), "no unit stride in b");
  expect(!gemm([](Gemm& g) { g.a = reinterpret_cast<void*>(4098); }), "a not aligned");
  expect(!gemm([](Gemm& g) {
    g.batch_ndim = 1;
    g.batch[0] = {2, 4096, -4096, 4096};
  }),
         "batch of b backwards");
  expect(gemm([](Gemm& g) {
           g.batch_ndim = 1;
           g.batch[0] = {2, 4096, 0, 4096};
         }),
         "broadcast b is served");
}

// ---- the benchmark ----

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

  void launch(const Gemm& gemm) const {
    const bool a_t = gemm.a_strides.column != 1, b_t = gemm.b_strides.column != 1;
    const int type = gemm.dtype == kHalf ? 2 : 14;  // CUDA_R_16F, CUDA_R_16BF
    const float one = 1, zero = 0;
    const BatchDim dim = gemm.batch_ndim ? gemm.batch[0] : BatchDim{1, 0, 0, 0};
    must_be_0(gemm_(handle_, b_t, a_t, gemm.n, gemm.m, gemm.k, &one, gemm.b, type,
                    b_t ? gemm.b_strides.column : gemm.b_strides.row, dim.b_stride, gemm.a, type,
                    a_t ? gemm.a_strides.column : gemm.a_strides.row, dim.a_stride, &zero, gemm.c, type,
                    gemm.c_strides.row, dim.c_stride, dim.size, 68, -1));  // CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT
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
  template <typename Launch>
  Repeats(int repeats, Launch launch) : repeats_(repeats) {
    launch(0);  // what loads on first use
    MUST(cudaStreamSynchronize(g_stream));
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
    MUST(cudaEventSynchronize(stop_));
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

struct BenchOptions {
  std::vector<int> variants;
  std::vector<int> super_rows{0};
  bool direct_too = false;
  DLDataType dtype = kBrain;
};

void bench(int64_t m, int64_t n, int64_t k, int64_t batch, bool b_broadcast, bool a_t, bool b_t,
           const BenchOptions& bench_options, const Cublas& cublas, char* memory, std::size_t bytes) {
  const auto up = [](int64_t elements) { return static_cast<std::size_t>((elements * 2 + 255) / 256 * 256); };
  const std::size_t a_bytes = up(m * k * batch), b_bytes = up(k * n * (b_broadcast ? 1 : batch)),
                    c_bytes = up(m * n * batch);
  const std::size_t set_bytes = a_bytes + b_bytes + c_bytes;
  if (set_bytes > bytes) return;
  const int sets = static_cast<int>(
      std::clamp<std::size_t>((std::size_t{160} << 20) / (a_bytes + b_bytes) + 1, 1, bytes / set_bytes));
  const double work = 2.0 * m * n * k * batch;
  const int repeats = std::clamp(static_cast<int>(4e-3 / (work / 500e12)), 2, 200);
  const auto make = [&](int i) {
    char* const set = memory + i % sets * set_bytes;
    Gemm gemm;
    gemm.dtype = bench_options.dtype;
    gemm.m = m;
    gemm.n = n;
    gemm.k = k;
    gemm.a = set;
    gemm.b = set + a_bytes;
    gemm.c = set + a_bytes + b_bytes;
    gemm.a_strides = a_t ? MatrixStrides{1, m} : MatrixStrides{k, 1};
    gemm.b_strides = b_t ? MatrixStrides{1, k} : MatrixStrides{n, 1};
    gemm.c_strides = {n, 1};
    if (batch > 1) {
      gemm.batch_ndim = 1;
      gemm.batch[0] = {batch, m * k, b_broadcast ? 0 : k * n, m * n};
    }
    return gemm;
  };
  // Outputs land among the inputs of the next case: fill anew.
  const Strided all{1, static_cast<int64_t>(sets * set_bytes / 2), 0, 1, 0, {}, {}};
  if (bench_options.dtype == kHalf) {
    fill_kernel<<<1024, 256, 0, g_stream>>>(reinterpret_cast<__half*>(memory), all, 1, 3, 1);
  } else {
    fill_kernel<<<1024, 256, 0, g_stream>>>(reinterpret_cast<__nv_bfloat16*>(memory), all, 1, 3, 1);
  }

  struct Row {
    std::string name;
    std::unique_ptr<Repeats> repeats;
  };
  std::vector<Row> rows;
  if (cublas) {
    rows.push_back({"cuBLAS", std::make_unique<Repeats>(repeats, [&](int i) { cublas.launch(make(i)); })});
  }
  for (const int variant : bench_options.variants) {
    if (!wgmma::takes(variant, make(0)) || !wgmma::serves(make(0))) continue;
    for (const int super_row : bench_options.super_rows) {
      for (int direct = 0; direct <= bench_options.direct_too; ++direct) {
        wgmma::Options options;
        options.variant = variant;
        options.super_row = super_row;
        options.direct_stores = direct;
        const std::string name = std::to_string(variant) + " " + wgmma::variant_name(variant) +
                                 (direct ? " direct" : "") +
                                 (super_row ? " super-row " + std::to_string(super_row) : std::string());
        rows.push_back(
            {name, std::make_unique<Repeats>(repeats, [&](int i) { wgmma::launch(make(i), options, g_stream); })});
      }
    }
  }
  const int rounds = 8;
  for (int round = -1; round < rounds; ++round) {
    for (Row& row : rows) row.repeats->replay();
    for (auto row = rows.rbegin(); row != rows.rend(); ++row) row->repeats->replay();
    if (round < 0) {
      for (Row& row : rows) row.repeats->forget();
    }
  }
  std::printf("%s %lldx%lldx%lld", bench_options.dtype == kHalf ? "float16" : "bfloat16", (long long)m, (long long)n,
              (long long)k);
  if (batch > 1) std::printf(" batch %lld%s", (long long)batch, b_broadcast ? " (b broadcast)" : "");
  std::printf(" %c%c\n", a_t ? 'T' : 'N', b_t ? 'T' : 'N');
  const double base = rows.empty() ? 0 : rows[0].repeats->median();
  for (Row& row : rows) {
    const double time = row.repeats->median();
    std::printf("  %-48s %9.2f us %7.1f TFLOP/s  x%.3f\n", row.name.c_str(), time * 1e6, work / time / 1e12,
                base / time);
  }
  std::fflush(stdout);
}

void bench_all(const std::vector<int>& sizes, bool shapes, const BenchOptions& options, const Cublas& cublas) {
  constexpr std::size_t kBytes = std::size_t{6} << 30;
  char* memory;
  MUST(cudaMalloc(&memory, kBytes));
  const auto one = [&](int64_t m, int64_t n, int64_t k, int64_t batch, bool b_broadcast, int layout) {
    bench(m, n, k, batch, b_broadcast, layout & 2, layout & 1, options, cublas, memory, kBytes);
  };
  for (int i = 0; i < 4; ++i) one(8192, 8192, 8192, 1, false, 0);  // the clock settles; the last one counts
  std::printf("---- clock settled ----\n");
  for (const int size : sizes) {
    for (int layout = 0; layout < 4; ++layout) one(size, size, size, 1, false, layout);
  }
  if (!shapes) return;
  for (const int layout : {0, 1}) {
    for (const int m : {16, 128, 4096}) one(m, 4096, 4096, 1, false, layout);
    for (const int m : {16, 128, 4096}) one(m, 11008, 4096, 1, false, layout);
    one(4096, 4096, 14336, 1, false, layout);
  }
  one(8192, 128, 8192, 1, false, 0);
  one(65536, 64, 64, 1, false, 0);
  one(256, 256, 65536, 1, false, 0);
  one(4096, 4096, 256, 1, false, 0);
  one(8192, 8192, 512, 1, false, 0);
  one(512, 512, 512, 64, false, 0);
  one(64, 64, 64, 1024, false, 0);
  one(1024, 1024, 512, 32, true, 0);
}

std::vector<int> numbers(const char* text) {
  std::vector<int> list;
  std::stringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) list.push_back(std::stoi(item));
  return list;
}

}  // namespace

int main(int argc, char** argv) {
  bool benchmark = false, shapes = true;
  int only = -1;
  std::vector<int> sizes{1024, 2048, 4096, 8192};
  BenchOptions options;
  std::vector<std::string> paths{"libcublas.so.13", "libcublas.so.12", "libcublas.so",
                                 "/usr/local/cuda/lib64/libcublas.so"};
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--bench") {
      benchmark = true;
    } else if (flag == "--no-shapes") {
      shapes = false;
    } else if (flag == "--direct-too") {
      options.direct_too = true;
    } else if (flag == "--variant") {
      only = std::stoi(value), ++i;
    } else if (flag == "--sizes") {
      sizes = numbers(value), ++i;
    } else if (flag == "--variants") {
      options.variants = numbers(value), ++i;
    } else if (flag == "--super-rows") {
      options.super_rows = numbers(value), ++i;
    } else if (flag == "--dtype") {
      options.dtype = std::strcmp(value, "f16") == 0 ? kHalf : kBrain, ++i;
    } else if (flag == "--cublas") {
      paths.insert(paths.begin(), value), ++i;
    } else {
      std::printf("unknown argument %s\n", argv[i]);
      return 2;
    }
  }
  MUST(cudaStreamCreateWithFlags(&g_stream, cudaStreamNonBlocking));
  cudaDeviceProp properties;
  MUST(cudaGetDeviceProperties(&properties, 0));
  std::printf("%s, %d SMs\n", properties.name, properties.multiProcessorCount);
  try {
    if (benchmark) {
      if (options.variants.empty()) {
        for (int i = 0; i < wgmma::variant_count(); ++i) options.variants.push_back(i);
      }
      bench_all(sizes, shapes, options, Cublas(paths));
      return 0;
    }
    test_refusals();
    test(only);
  } catch (const std::exception& error) {
    std::printf("STOPPED: %s\n", error.what());
    return 2;
  }
  std::printf("%d passed, %d failed\n", g_passed, g_failed);
  return g_failed != 0;
}
