/// Times matrix products: our tiled kernel against cuBLASLt, in one process on one card.
///
///   matmul_bench [--cublas PATH] [--float32 512,1024,...] [--float64 2048,...] [--no-host]
///
/// GPU time: repeats captured into a CUDA graph that rotates over enough buffers to leave L2 cold, random data,
/// backends interleaved, medians. Host time: a loop of launches of a 16 x 16 product, synchronised every 100.
#include <interop/cuda/driver.h>
#include <interop/cuda/matmul.h>

#include <dlfcn.h>

#include <algorithm>
#include <chrono>

#include "check.h"

using namespace interop;
using namespace interop::cuda;
using namespace interop::testing;

namespace {

cudaStream_t g_stream;
void* g_workspace;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Gemm square(int64_t size, int bits, bool a_transposed, bool b_transposed, const char* a, const char* b, char* c) {
  Gemm gemm;
  gemm.dtype = gemm.b_dtype = gemm.out_dtype = DLDataType{kDLFloat, static_cast<uint8_t>(bits), 1};
  gemm.m = gemm.n = gemm.k = size;
  gemm.a_strides = a_transposed ? MatrixStrides{1, size} : MatrixStrides{size, 1};
  gemm.b_strides = b_transposed ? MatrixStrides{1, size} : MatrixStrides{size, 1};
  gemm.c_strides = {size, 1};
  gemm.a = a;
  gemm.b = b;
  gemm.c = c;
  return gemm;
}

/// A graph of `repeats` products, each on the next set of buffers.
class Repeats {
 public:
  template <typename MakeGemm>
  Repeats(int repeats, MatmulBackend backend, MakeGemm make) : repeats_(repeats) {
    MUST(cudaStreamBeginCapture(g_stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < repeats; ++i) {
      const Gemm gemm = make(i);
      const MatmulPlan plan = plan_matmul(gemm, {backend});
      if (i == 0) what_ = describe(gemm, plan);
      launch_matmul(gemm, plan, g_workspace, g_stream);
    }
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

  /// Seconds for one product.
  double replay() {
    MUST(cudaEventRecord(start_, g_stream));
    MUST(cudaGraphLaunch(exec_, g_stream));
    MUST(cudaEventRecord(stop_, g_stream));
    MUST(cudaEventSynchronize(stop_));
    float ms = 0;
    MUST(cudaEventElapsedTime(&ms, start_, stop_));
    return ms / 1e3 / repeats_;
  }
  const std::string& what() const { return what_; }

 private:
  int repeats_;
  cudaGraphExec_t exec_;
  cudaEvent_t start_, stop_;
  std::string what_;
};

/// Uniform in [-1, 1]: a card runs faster on zeros.
void fill(char* memory, std::size_t bytes, int bits) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<char> chunk(std::size_t{1} << 22);
  for (std::size_t at = 0; at < chunk.size(); at += bits / 8) {
    const double value = uniform(random);
    const float rounded = static_cast<float>(value);
    std::memcpy(&chunk[at], bits == 64 ? static_cast<const void*>(&value) : &rounded, bits / 8);
  }
  MUST(cudaMemcpy(memory, chunk.data(), chunk.size(), cudaMemcpyHostToDevice));
  for (std::size_t done = chunk.size(); done < bytes; done *= 2) {
    MUST(cudaMemcpy(memory + done, memory, std::min(done, bytes - done), cudaMemcpyDeviceToDevice));
  }
}

void bench_square(int64_t size, int bits, bool a_transposed, bool b_transposed, char* memory, std::size_t bytes) {
  fill(memory, bytes, bits);  // anew, since outputs land among the inputs
  const std::size_t matrix = (size * size * bits / 8 + 255) / 256 * 256;
  const int sets =
      static_cast<int>(std::clamp<std::size_t>((std::size_t{128} << 20) / (2 * matrix), 1, bytes / (3 * matrix)));
  const double work = 2.0 * size * size * size;
  const int repeats = std::clamp(static_cast<int>(4e-3 / (work / 40e12)), 1, 100);
  const auto make = [&](int i) {
    char* const set = memory + i % sets * 3 * matrix;
    return square(size, bits, a_transposed, b_transposed, set, set + matrix, set + 2 * matrix);
  };
  Repeats tiled(repeats, MatmulBackend::tiled, make);
  Repeats cublas(repeats, MatmulBackend::cublas, make);
  std::vector<double> tiled_times, cublas_times;
  const int rounds = 12;
  for (int round = -1; round < rounds; ++round) {  // A B B A, so that a drift of the clock hits both
    for (const int which : {0, 1, 1, 0}) {
      const double time = (which ? cublas : tiled).replay();
      if (round >= 0) (which ? cublas_times : tiled_times).push_back(time);
    }
  }
  const double t = median(tiled_times), l = median(cublas_times);
  std::printf(
      "%s %5lld %c%c  tiled %9.2f us %6.2f TFLOP/s  cublas %9.2f us %6.2f TFLOP/s  speed ratio %.3f   %s | %s\n",
      bits == 32 ? "float32" : "float64", (long long)size, a_transposed ? 'T' : 'N', b_transposed ? 'T' : 'N', t * 1e6,
      work / t / 1e12, l * 1e6, work / l / 1e12, l / t, tiled.what().c_str(), cublas.what().c_str());
  std::fflush(stdout);
}

/// Microseconds a call, the median of blocks of 100 calls that each begin on an idle stream.
template <typename Call>
double host_time(Call call) {
  std::vector<double> blocks;
  for (int block = 0; block < 60; ++block) {
    MUST(cudaStreamSynchronize(g_stream));
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 100; ++i) call();
    const auto stop = std::chrono::steady_clock::now();
    if (block >= 10) blocks.push_back(std::chrono::duration<double, std::micro>(stop - start).count() / 100);
  }
  MUST(cudaStreamSynchronize(g_stream));
  return median(blocks);
}

/// A kernel that does nothing, launched by the driver directly: the floor.
class EmptyKernel {
 public:
  EmptyKernel() {
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    const auto load = reinterpret_cast<int (*)(void**, const void*)>(dlsym(driver, "cuModuleLoadData"));
    const auto get = reinterpret_cast<int (*)(void**, void*, const char*)>(dlsym(driver, "cuModuleGetFunction"));
    launch_ = reinterpret_cast<Launch>(dlsym(driver, "cuLaunchKernel"));
    void* module = nullptr;
    const char* const ptx = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry empty() { ret; }\n";
    if (load(&module, ptx) != 0 || get(&function_, module, "empty") != 0) std::exit(2);
  }
  void launch() const { launch_(function_, 1, 1, 1, 64, 1, 1, 0, g_stream, nullptr, nullptr); }

 private:
  using Launch = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cudaStream_t,
                         void**, void**);
  Launch launch_;
  void* function_ = nullptr;
};

void bench_host(char* memory) {
  const EmptyKernel empty;
  const auto product = [&](int64_t size, MatmulBackend backend) {
    const Gemm gemm = square(size, 32, false, false, memory, memory + (1 << 20), memory + (2 << 20));
    return host_time([&] { launch_matmul(gemm, plan_matmul(gemm, {backend}), g_workspace, g_stream); });
  };
  const auto plan = [&](MatmulBackend backend) {
    const Gemm gemm = square(16, 32, false, false, memory, memory + (1 << 20), memory + (2 << 20));
    volatile std::size_t sink = 0;
    return host_time([&] { sink = sink + plan_matmul(gemm, {backend}).workspace_bytes; });
  };
  Gemm nothing = square(16, 32, false, false, memory, memory, memory);
  nothing.k = 0;
  for (int round = 0; round < 2; ++round) {
    std::printf(
        "host us a call: empty kernel %.2f, tiled 16 %.2f, cublas 16 %.2f, tiled k=0 %.2f, memset 16 B %.2f, plan "
        "tiled %.3f, plan cublas %.3f, "
        "record+wait %.2f, wait_stream %.2f, allocate+release %.2f, the same on its stream %.2f, pointer_device %.3f, "
        "guard %.3f\n",
        host_time([&] { empty.launch(); }), product(16, MatmulBackend::tiled), product(16, MatmulBackend::cublas),
        host_time([&] { launch_matmul(nothing, {}, nullptr, g_stream); }),
        host_time([&] { MUST(cudaMemsetAsync(memory, 0, 16, g_stream)); }), plan(MatmulBackend::tiled),
        plan(MatmulBackend::cublas), host_time([&] {
          Event event(g_stream);
          event.make_wait(own_stream());
        }),
        host_time([&] { wait_stream(g_stream, own_stream()); }),
        host_time([&] { release(allocate(1024, g_stream), 0); }),
        host_time([&] { release(allocate(1024, g_stream), 0, g_stream); }), host_time([&] { pointer_device(memory); }),
        host_time([&] { DeviceGuard guard(0); }));
  }
  for (const int64_t size : {16, 32, 64, 128, 256, 512}) {  // where does cuBLASLt start to pay?
    char* const a = memory;
    const auto make = [&](int) { return square(size, 32, false, false, a, a + (4 << 20), a + (8 << 20)); };
    Repeats tiled(100, MatmulBackend::tiled, make), cublas(100, MatmulBackend::cublas, make);
    std::vector<double> t, l;
    for (int i = 0; i < 12; ++i) {
      t.push_back(tiled.replay());
      l.push_back(cublas.replay());
    }
    std::printf("small %4lld: host tiled %.2f cublas %.2f us, GPU (warm) tiled %.2f cublas %.2f us   %s | %s\n",
                (long long)size, product(size, MatmulBackend::tiled), product(size, MatmulBackend::cublas),
                median(t) * 1e6, median(l) * 1e6, tiled.what().c_str(), cublas.what().c_str());
  }
}

/// "512,1024" as numbers; "" is none.
std::vector<int64_t> sizes_in(std::string list) {
  std::vector<int64_t> sizes;
  for (char* at = std::strtok(&list[0], ","); at; at = std::strtok(nullptr, ",")) sizes.push_back(std::atoll(at));
  return sizes;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int64_t> sizes32 = {512, 1024, 2048, 4096, 8192, 1023, 4095}, sizes64 = {2048, 4096};
  bool host = true;
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--cublas") && i + 1 < argc)
      set_cublas_paths(&argv[++i], 1);
    else if (!std::strcmp(argv[i], "--float32") && i + 1 < argc)
      sizes32 = sizes_in(argv[++i]);
    else if (!std::strcmp(argv[i], "--float64") && i + 1 < argc)
      sizes64 = sizes_in(argv[++i]);
    else if (!std::strcmp(argv[i], "--no-host"))
      host = false;
  }
  require_driver();
  MUST(cudaFree(nullptr));
  const std::size_t bytes = std::size_t{1} << 31;
  char* memory = nullptr;
  MUST(cudaMalloc(&memory, bytes));
  MUST(cudaMalloc(&g_workspace, 32 << 20));
  MUST(cudaStreamCreateWithFlags(&g_stream, cudaStreamNonBlocking));
  const DeviceInfo info = device_info(0);
  std::printf("%s, driver CUDA %d, cuBLASLt %s\n", info.name.c_str(), driver_version(), cublas_status().c_str());
  fill(memory, bytes, 32);
  if (host) bench_host(memory);
  for (const int bits : {32, 64}) {
    for (const int64_t size : bits == 32 ? sizes32 : sizes64) {
      for (const bool a_transposed : {false, true}) {
        for (const bool b_transposed : {false, true})
          bench_square(size, bits, a_transposed, b_transposed, memory, bytes);
      }
    }
  }
  return 0;
}
