/// Times the kernels of the tensor cores, every variant of them, beside cuBLAS: cuda/matmul/wgmma/wgmma.h, mma/mma.h,
/// and TF32 of mma/wide.h.
///
///   tensor_core_benchmark [--cublas PATH] [--sizes 1024,...] [--no-shapes] [--small] [--dtype f16|bf16|tf32|tf32x3]
///                         [--mma] [--variants 0,1,...] [--seconds 50]
///
/// Graphs of many launches over buffers that exceed L2, random data, rows interleaved, medians. Starts no shape after
/// that many seconds. cuBLAS is opened at run time; beside tf32x3 it computes in exact float32. What is packed is part
/// of the time; for tf32, a row "packed" shows what it takes to pack all that does not run along k. --mma: the kernels
/// by mma.sync. --small: small products instead, beside the general kernel. Ends with "HANGS", exit status 3, when a
/// launch takes seconds.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "benchmarks/cuda/timing.cuh"
#include "cuda/matmul/tiled/tiled.h"
#include "cuda/matmul/variants.h"

using namespace interop;
using namespace interop::tests;

namespace {

struct Options {
  std::vector<int> variants;
  bool small = false;  // small products, beside the general kernel
  bool shapes = true;
  std::vector<int> sizes{4096, 8192, 2048, 1024};
  double seconds = 50;
  DLDataType dtype = kBfloat16;
  Kernels kernels;
  std::vector<std::string> paths = kCublasPaths;
};

const char* kind_name(const Options& options) {
  return options.kernels.precision == MatmulPrecision::tf32     ? "tf32"
         : options.kernels.precision == MatmulPrecision::tf32x3 ? "tf32x3"
         : options.dtype == kFloat16                            ? "float16"
                                                                : "bfloat16";
}

/// A product in one of its four layouts, over as many sets of arrays as exceed L2.
class Shape {
 public:
  Shape(int64_t m, int64_t n, int64_t k, int64_t batch, bool b_broadcast, int layout, const Options& options,
        const DeviceMemory& buffer)
      : m(m),
        n(n),
        k(k),
        batch(batch),
        b_broadcast(b_broadcast),
        a_t(layout & 2),
        b_t(layout & 1),
        options(options),
        kernels(options.kernels),
        memory_(buffer.data()),
        bytes_(buffer.bytes()) {
    a_bytes_ = aligned_bytes(m * k * batch, options.dtype);
    b_bytes_ = aligned_bytes(k * n * (b_broadcast ? 1 : batch), options.dtype);
    set_bytes_ = a_bytes_ + b_bytes_ + aligned_bytes(m * n * batch, options.dtype);
    workspace = memory_;                               // one for all, as a caller's allocator has it
    workspace_bytes_ = (a_bytes_ + b_bytes_) * 5 / 2;  // a bit more than both in two
    if (is_float32()) memory_ += workspace_bytes_, bytes_ -= std::min(bytes_, workspace_bytes_);
  }

  bool is_float32() const { return kernels.precision != MatmulPrecision::exact; }
  bool fits() const { return set_bytes_ <= bytes_; }
  int sets() const {
    return static_cast<int>(
        std::clamp<std::size_t>((std::size_t{160} << 20) / (a_bytes_ + b_bytes_) + 1, 1, bytes_ / set_bytes_));
  }
  double work() const { return 2.0 * m * n * k * batch; }
  int repeats() const { return std::clamp(static_cast<int>(4e-3 / (work() / 500e12)), 2, 200); }
  void fill() const { fill_uniform(is_float32() ? kFloat32 : options.dtype, memory_, sets() * set_bytes_); }

  Gemm gemm(int i) const {
    char* const set = memory_ + i % sets() * set_bytes_;
    Gemm gemm;
    gemm.dtype = gemm.b_dtype = gemm.out_dtype = options.dtype;
    gemm.m = m;
    gemm.n = n;
    gemm.k = k;
    gemm.a = set;
    gemm.b = set + a_bytes_;
    gemm.c = set + a_bytes_ + b_bytes_;
    gemm.a_strides = a_t ? MatrixStrides{1, m} : MatrixStrides{k, 1};
    gemm.b_strides = b_t ? MatrixStrides{1, k} : MatrixStrides{n, 1};
    gemm.c_strides = {n, 1};
    if (batch > 1) {
      gemm.batch_ndim = 1;
      gemm.batch[0] = {batch, m * k, b_broadcast ? 0 : k * n, m * n, 0, 0};
    }
    return gemm;
  }
  std::optional<MatmulPlan> plan(const Gemm& gemm) const {
    if (kernels.by_mma) return kernels.serves(gemm) ? std::optional(MatmulPlan()) : std::nullopt;
    return wgmma::plan(gemm, kernels.precision, workspace_bytes_, Device());
  }
  /// Packs every operand that does not run along k, instead of reading one as it lies.
  MatmulPlan packing_plan(const Gemm& gemm) const {
    MatmulPlan packing = *plan(gemm);
    packing.packs_a = a_t, packing.packs_b = !b_t;
    return packing;
  }

  const int64_t m, n, k, batch;
  const bool b_broadcast, a_t, b_t;
  const Options& options;
  const Kernels& kernels;
  char* workspace;

 private:
  char* memory_;
  std::size_t bytes_, a_bytes_, b_bytes_, set_bytes_, workspace_bytes_;
};

void print_title(const Shape& shape) {
  const Gemm gemm = shape.gemm(0);
  std::optional<MatmulPlan> plan = shape.plan(gemm);
  if (plan && !shape.kernels.by_mma) {
    plan->kernel.variant = wgmma::choose(gemm, plan->precision, plan->packs_b, Device()).variant;
  }
  const std::string chosen = !plan                  ? "none"
                             : shape.kernels.by_mma ? shape.kernels.describe_chosen(gemm)
                                                    : wgmma::describe(gemm, *plan);
  std::printf("%s %lldx%lldx%lld", kind_name(shape.options), (long long)shape.m, (long long)shape.n,
              (long long)shape.k);
  if (shape.batch > 1) std::printf(" batch %lld%s", (long long)shape.batch, shape.b_broadcast ? " (b broadcast)" : "");
  std::printf(" %c%c, chosen: %s\n", shape.a_t ? 'T' : 'N', shape.b_t ? 'T' : 'N', chosen.c_str());
}

using Rows = std::vector<std::unique_ptr<Repeats>>;

void add_variants(Rows& rows, const Shape& shape) {
  const Kernels& kernels = shape.kernels;
  if (!shape.plan(shape.gemm(0))) return;
  for (const int variant : shape.options.variants) {
    const std::string name = std::to_string(variant) + " " + kernels.variant_name(variant);
    rows.push_back(std::make_unique<Repeats>(name, shape.repeats(), [&, variant](int i) {
      const Gemm gemm = shape.gemm(i);
      kernels.launch(variant, gemm, *shape.plan(gemm), shape.workspace, stream());
    }));
    const bool is_along_k = !shape.a_t && shape.b_t;
    if (kernels.precision != MatmulPrecision::tf32 || kernels.by_mma || is_along_k) continue;
    rows.push_back(std::make_unique<Repeats>(name + ", packed", shape.repeats(), [&, variant](int i) {
      const Gemm gemm = shape.gemm(i);
      kernels.launch(variant, gemm, shape.packing_plan(gemm), shape.workspace, stream());
    }));
  }
}

void bench(const Shape& shape, const Cublas& cublas) {
  if (!shape.fits()) return;
  print_title(shape);
  shape.fill();  // anew: outputs land among the inputs of the next shape
  Rows rows;
  if (cublas) {
    rows.push_back(std::make_unique<Repeats>("cuBLAS", shape.repeats(), [&](int i) {
      cublas.launch(shape.gemm(i), shape.kernels.precision == MatmulPrecision::tf32);
    }));
  }
  add_variants(rows, shape);
  if (shape.options.small) {
    rows.push_back(std::make_unique<Repeats>("general", shape.repeats(), [&](int i) {
      const Gemm gemm = shape.gemm(i);
      cuda::tiled::launch_variant(cuda::tiled::choose(gemm, Device()).variant, gemm, stream());
    }));
  }
  replay_in_turn(rows);
  const double base = rows.empty() ? 0 : rows[0]->median();
  for (auto& row : rows) {
    const double time = row->median();
    std::printf("  %-48s %9.2f us %7.1f TFLOP/s  x%.3f\n", row->name.c_str(), time * 1e6, shape.work() / time / 1e12,
                base / time);
  }
}

/// Calls `one(m, n, k, batch, b_broadcast, layout)` for each.
template <typename One>
void small_shapes(One one) {
  for (const int layout : {0, 1}) {
    for (const int size : {16, 32, 64, 96, 128, 192, 256, 384, 512}) one(size, size, size, 1, false, layout);
    for (const int k : {16, 32, 64, 128, 256, 1024}) {
      one(16, 16, k, 1, false, layout);
      one(64, 64, k, 1, false, layout);
      one(256, 256, k, 1, false, layout);
      one(1024, 1024, k, 1, false, layout);
    }
    for (const int batch : {4, 16, 64, 256}) {
      one(32, 32, 32, batch, false, layout);
      one(64, 64, 64, batch, false, layout);
    }
  }
}

template <typename One>
void other_shapes(One one) {
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

void bench_all(const Options& options, const Cublas& cublas) {
  const DeviceMemory buffer(std::size_t{8} << 30);
  Limit limit(options.seconds);
  const auto one = [&](int64_t m, int64_t n, int64_t k, int64_t batch, bool b_broadcast, int layout) {
    if (!limit.is_over()) bench({m, n, k, batch, b_broadcast, layout, options, buffer}, cublas);
  };
  for (int i = 0; i < 2; ++i) one(8192, 8192, 8192, 1, false, 0);
  std::printf("---- the clock has settled ----\n");
  if (options.small) small_shapes(one);
  for (const int size : options.sizes) {
    for (int layout = 0; layout < 4; ++layout) one(size, size, size, 1, false, layout);
  }
  if (options.shapes) other_shapes(one);
  limit.report();
}

// ---- the command line ----

std::vector<int> numbers(const std::string& text) {
  std::vector<int> list;
  std::stringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) list.push_back(std::stoi(item));
  return list;
}

bool read_dtype(const std::string& kind, Options& options) {
  if (kind != "f16" && kind != "bf16" && kind != "tf32" && kind != "tf32x3") {
    std::printf("--dtype %s: accepted: f16, bf16, tf32, tf32x3\n", kind.c_str());
    return false;
  }
  options.dtype = kind == "f16" ? kFloat16 : kind == "bf16" ? kBfloat16 : kFloat32;
  options.kernels.precision = kind == "tf32"     ? MatmulPrecision::tf32
                              : kind == "tf32x3" ? MatmulPrecision::tf32x3
                                                 : MatmulPrecision::exact;
  return true;
}

bool read_options(int count, char** arguments, Options& options) {
  for (int i = 1; i < count; ++i) {
    const std::string flag = arguments[i], value = i + 1 < count ? arguments[i + 1] : "";
    if (flag == "--no-shapes") {
      options.shapes = false;
    } else if (flag == "--small") {
      options.small = true;
      options.shapes = false;
      options.sizes.clear();
    } else if (flag == "--mma") {
      options.kernels.by_mma = true;
    } else if (flag == "--seconds") {
      options.seconds = std::stod(value), ++i;
    } else if (flag == "--sizes") {
      options.sizes = numbers(value), ++i;
    } else if (flag == "--variants") {
      options.variants = numbers(value), ++i;
    } else if (flag == "--dtype") {
      if (!read_dtype(value, options)) return false;
      ++i;
    } else if (flag == "--cublas") {
      options.paths.insert(options.paths.begin(), value), ++i;
    } else {
      std::printf("unknown argument %s\n", arguments[i]);
      return false;
    }
  }
  if (options.variants.empty()) options.variants = options.kernels.all_variants();
  return true;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    Options options;
    if (!read_options(count, arguments, options)) return 2;
    start_output();
    bench_all(options, Cublas(options.paths));
  } catch (const std::exception& error) {
    std::printf("STOPPED: %s\n", error.what());
    return 2;
  }
  return 0;
}
