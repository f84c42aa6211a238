/// Times the kernels of cuda/matmul/skinny/skinny.h beside cuBLAS, with the rate of a copy.
///
///   skinny_benchmark [--cublas PATH] [--dtype f16|bf16|f32|f64] [--seconds 50]
///
/// Graphs of many launches over buffers that exceed L2, random data, rows interleaved, medians. Starts no shape after
/// that many seconds. Ends with "HANGS", exit status 3, when a launch takes seconds.
#include "cuda/matmul/skinny/skinny.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/cuda/timing.cuh"

using namespace interop;
using namespace interop::cuda;
using namespace interop::tests;

namespace {

constexpr std::size_t kBytes = std::size_t{2} << 30, kWorkspace = std::size_t{32} << 20;

/// A product of few rows, over as many sets of arrays as exceed L2.
struct Shape {
  DLDataType dtype;
  int64_t m, n, k;
  bool b_k_fast;

  std::size_t a_bytes() const { return aligned_bytes(m * k, dtype); }
  std::size_t b_bytes() const { return aligned_bytes(k * n, dtype); }
  std::size_t set_bytes() const { return a_bytes() + b_bytes() + aligned_bytes(m * n, dtype); }
  int sets() const {
    return static_cast<int>(
        std::clamp<std::size_t>((std::size_t{160} << 20) / set_bytes() + 1, 1, kBytes / set_bytes()));
  }
  int repeats() const { return std::clamp(static_cast<int>(2e-3 * 2.5e12 / set_bytes()), 4, 200); }
  double moved_bytes() const { return static_cast<double>(m * k + k * n + m * n) * item_bytes(dtype); }

  Gemm gemm(char* memory, int i) const {
    char* const set = memory + i % sets() * set_bytes();
    Gemm gemm;
    gemm.dtype = gemm.b_dtype = gemm.out_dtype = dtype;
    gemm.m = m;
    gemm.n = n;
    gemm.k = k;
    gemm.a = set;
    gemm.b = set + a_bytes();
    gemm.c = set + a_bytes() + b_bytes();
    gemm.a_strides = {k, 1};
    gemm.b_strides = b_k_fast ? MatrixStrides{1, k} : MatrixStrides{n, 1};
    gemm.c_strides = {n, 1};
    return gemm;
  }
};

using Rows = std::vector<std::unique_ptr<Repeats>>;

/// In one part and in several; the number that is chosen has a star.
void add_parts(Rows& rows, const Shape& shape, char* memory, skinny::Way way) {
  const bool is_streamed = way == skinny::Way::shared_memory;
  const Gemm first = shape.gemm(memory, 0);
  if (is_streamed && !skinny::may_stream(first, Device())) return;
  const int own = skinny::choose(first, kWorkspace, Device(), way).parts;
  std::vector<int> tried{own};
  for (const int parts : {1, 2, 3, 4}) {
    if (parts != own) tried.push_back(parts);
  }
  for (const int parts : tried) {
    const MatmulPlan plan = skinny::choose_in_parts(first, parts, Device(), way);
    if (plan.workspace_bytes > kWorkspace) continue;
    const std::string name = (is_streamed ? "streamed, " : "") + std::to_string(parts) +
                             (parts == 1 ? " part" : " parts") + (parts == own ? " *" : "");
    rows.push_back(std::make_unique<Repeats>(name, shape.repeats(), [=, &shape](int i) {
      launch_matmul(shape.gemm(memory, i), plan, memory + kBytes, stream());
    }));
  }
}

void bench(const Shape& shape, const Cublas& cublas, char* memory, double rate) {
  const Gemm first = shape.gemm(memory, 0);
  if (!skinny::serves(first, Device())) return;
  // Outputs land among the inputs of the next case: fill anew.
  fill_uniform(shape.dtype, memory, shape.sets() * shape.set_bytes());
  std::printf("%s %lldx%lldx%lld, b %s, chosen: %s\n", dtype_name(shape.dtype).c_str(), (long long)shape.m,
              (long long)shape.n, (long long)shape.k, shape.b_k_fast ? "k adjacent" : "n adjacent",
              skinny::describe(first, skinny::choose(first, kWorkspace, Device())).c_str());
  Rows rows;
  if (cublas) {
    rows.push_back(
        std::make_unique<Repeats>("cuBLAS", shape.repeats(), [&](int i) { cublas.launch(shape.gemm(memory, i)); }));
  }
  for (const skinny::Way way : {skinny::Way::registers, skinny::Way::shared_memory}) {
    add_parts(rows, shape, memory, way);
  }
  replay_in_turn(rows);
  const double base = rows[0]->median();
  for (auto& row : rows) {
    const double time = row->median(), bytes = shape.moved_bytes();
    std::printf("  %-20s %9.2f us %7.0f GB/s  %.2f of a copy  x%.3f\n", row->name.c_str(), time * 1e6,
                bytes / time / 1e9, bytes / time / rate, base / time);
  }
}

void bench_all(const std::vector<DLDataType>& dtypes, double seconds, const Cublas& cublas) {
  const DeviceMemory buffer(kBytes + kWorkspace);
  const double rate = copy_rate(buffer.data(), kBytes);
  std::printf("a copy: %.0f GB/s\n", rate / 1e9);
  struct Size {
    int64_t n, k;
  };
  Limit limit(seconds);
  for (const Size size : {Size{4096, 4096}, {11008, 4096}, {4096, 14336}, {576, 7168}, {24, 65536}, {65536, 64}}) {
    for (const DLDataType dtype : dtypes) {
      for (const bool b_k_fast : {true, false}) {
        for (const int64_t m : {1, 2, 4, 8, 16}) {
          if (!limit.is_over()) bench({dtype, m, size.n, size.k, b_k_fast}, cublas, buffer.data(), rate);
        }
      }
    }
  }
  limit.report();
}

}  // namespace

int main(int count, char** arguments) {
  double seconds = 50;
  std::vector<DLDataType> dtypes{kFloat32, kBfloat16, kFloat16, kFloat64};
  std::vector<std::string> paths = kCublasPaths;
  for (int i = 1; i < count; ++i) {
    const std::string flag = arguments[i], value = i + 1 < count ? arguments[i + 1] : "";
    if (flag == "--seconds") {
      seconds = std::stod(value), ++i;
    } else if (flag == "--dtype") {
      dtypes = {value == "f16" ? kFloat16 : value == "bf16" ? kBfloat16 : value == "f64" ? kFloat64 : kFloat32}, ++i;
    } else if (flag == "--cublas") {
      paths.insert(paths.begin(), value), ++i;
    } else {
      std::printf("unknown argument %s\n", arguments[i]);
      return 2;
    }
  }
  try {
    start_output();
    bench_all(dtypes, seconds, Cublas(paths));
  } catch (const std::exception& error) {
    std::printf("STOPPED: %s\n", error.what());
    return 2;
  }
  return 0;
}
