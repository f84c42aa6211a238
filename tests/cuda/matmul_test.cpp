/// Tests of src/cuda without Python: the driver's wrappers, and matrix products of every layout by both backends.
///
///   matmul_test [--cublas PATH] [--no-cublas] [--huge]
///
/// Prints "N passed, N failed" and exits with 1 if any failed. --huge adds a grid of more than 2^31 blocks (needs 10 GB
/// of device memory). Run it with NVIDIA_TF32_OVERRIDE=1, and under `compute-sanitizer --report-api-errors no`, too:
/// the tests provoke errors of the driver on purpose.
#include <interop/cuda/driver.h>
#include <interop/cuda/matmul.h>
#include <interop/error.h>

#include <array>
#include <atomic>
#include <thread>

#include "check.h"

using namespace interop;
using namespace interop::cuda;
using namespace interop::testing;

namespace {

bool g_cublas = true;
std::mt19937 g_random(20240607);

template <typename T>
DLDataType dtype_of() {
  return {kDLFloat, static_cast<uint8_t>(sizeof(T) * 8), 1};
}

const char* name_of(MatmulBackend backend) {
  return backend == MatmulBackend::tiled ? "tiled" : backend == MatmulBackend::cublas ? "cublas" : "automatic";
}

/// Plans, allocates the workspace and launches, as a caller does.
MatmulPlan run(const Gemm& gemm, const MatmulOptions& options, cudaStream_t stream) {
  const MatmulPlan plan = plan_matmul(gemm, options);
  void* workspace = plan.workspace_bytes ? allocate(plan.workspace_bytes, stream) : nullptr;
  launch_matmul(gemm, plan, workspace, stream);
  if (workspace) release(workspace, 0, stream);
  return plan;
}

// ---- layouts ----

/// How a (rows, columns) matrix lies in memory.
enum Layout {
  kRowMajor,
  kColumnMajor,
  kRowPadded,
  kColumnPadded,
  kRowPadded4,
  kBothStrided,
  kNegativeRows,
  kNegativeColumns,
  kZeroRows,
  kZeroColumns,
  kLayouts
};
const char* const kLayoutNames[] = {"row",     "column", "row+3",    "column+3", "row+4",
                                    "strided", "-rows",  "-columns", "0 rows",   "0 columns"};
const Layout kOutputLayouts[] = {kRowMajor,   kColumnMajor, kRowPadded,    kColumnPadded,
                                 kRowPadded4, kBothStrided, kNegativeRows, kNegativeColumns};

MatrixStrides strides_of(Layout layout, int64_t rows, int64_t columns) {
  switch (layout) {
    case kRowMajor:
      return {columns, 1};
    case kColumnMajor:
      return {1, rows};
    case kRowPadded:
      return {columns + 3, 1};
    case kColumnPadded:
      return {1, rows + 3};
    case kRowPadded4:
      return {(columns + 7) / 4 * 4, 1};
    case kBothStrided:
      return {2 * columns * 3 + 1, 2};
    case kNegativeRows:
      return {-columns, 1};
    case kNegativeColumns:
      return {columns, -1};
    case kZeroRows:
      return {0, 1};
    case kZeroColumns:
      return {1, 0};
    default:
      return {};
  }
}

/// Can cuBLASLt take it? (As cublas.cpp decides, said independently.)
bool is_blas(Layout layout, int64_t rows, int64_t columns) {
  if (layout <= kRowPadded4) return true;
  const MatrixStrides s = strides_of(layout, rows, columns);
  return (columns == 1 && (s.row >= 1 || rows == 1)) || (rows == 1 && (s.column >= 1 || columns == 1));
}

struct BatchSpec {
  int64_t size;
  bool a_varies, b_varies;
};

struct Case {
  int64_t m, n, k;
  Layout a = kRowMajor, b = kRowMajor, c = kRowMajor;
  std::vector<BatchSpec> batch;
  int64_t offset = 0;  // elements that a, b and c start past an aligned address
};

std::string text(const Case& x) {
  std::string s = std::to_string(x.m) + "x" + std::to_string(x.n) + "x" + std::to_string(x.k) + " a " +
                  kLayoutNames[x.a] + ", b " + kLayoutNames[x.b] + ", c " + kLayoutNames[x.c];
  for (const BatchSpec& dim : x.batch) {
    s += ", batch " + std::to_string(dim.size) + (dim.a_varies ? "a" : "") + (dim.b_varies ? "b" : "");
  }
  return x.offset ? s + ", offset " + std::to_string(x.offset) : s;
}

int64_t span(int64_t rows, int64_t columns, const MatrixStrides& s) {
  return 1 + std::abs(s.row) * (rows - 1) + std::abs(s.column) * (columns - 1);
}

std::vector<Dim> dims_of(int64_t rows, int64_t columns, const MatrixStrides& s, const std::vector<Dim>& batch) {
  std::vector<Dim> dims = batch;
  dims.push_back({rows, s.row});
  dims.push_back({columns, s.column});
  return dims;
}

/// Runs one case and compares every element; checks that nothing between the elements of c was written.
template <typename T>
void check_case(const Case& x, MatmulBackend backend, const T* value = nullptr) {
  Gemm gemm;
  gemm.dtype = gemm.b_dtype = gemm.out_dtype = dtype_of<T>();
  gemm.m = x.m;
  gemm.n = x.n;
  gemm.k = x.k;
  gemm.a_strides = strides_of(x.a, x.m, x.k);
  gemm.b_strides = strides_of(x.b, x.k, x.n);
  gemm.c_strides = strides_of(x.c, x.m, x.n);
  gemm.batch_ndim = static_cast<int>(x.batch.size());
  std::vector<Dim> a_batch(x.batch.size()), b_batch(x.batch.size()), c_batch(x.batch.size());
  int64_t a_step = span(x.m, x.k, gemm.a_strides) + 1, b_step = span(x.k, x.n, gemm.b_strides);
  int64_t c_step = span(x.m, x.n, gemm.c_strides) + 2;
  for (int i = gemm.batch_ndim - 1; i >= 0; --i) {
    const BatchSpec& spec = x.batch[i];
    gemm.batch[i] = {spec.size, spec.a_varies ? a_step : 0, spec.b_varies ? b_step : 0, c_step, 0, 0};
    a_batch[i] = {spec.size, gemm.batch[i].a_stride};
    b_batch[i] = {spec.size, gemm.batch[i].b_stride};
    c_batch[i] = {spec.size, c_step};
    if (spec.a_varies) a_step *= spec.size;
    if (spec.b_varies) b_step *= spec.size;
    c_step *= spec.size;
  }
  if (x.offset) {  // a leading pair of elements `offset` apart: the product uses the second
    a_batch.insert(a_batch.begin(), {2, x.offset});
    b_batch.insert(b_batch.begin(), {2, x.offset});
    c_batch.insert(c_batch.begin(), {2, x.offset});
  }
  const T poison = std::numeric_limits<T>::quiet_NaN();
  DeviceArray<T> a(dims_of(x.m, x.k, gemm.a_strides, a_batch), g_random, value);
  DeviceArray<T> b(dims_of(x.k, x.n, gemm.b_strides, b_batch), g_random, value);
  DeviceArray<T> c(dims_of(x.m, x.n, gemm.c_strides, c_batch), g_random, &poison);
  gemm.a = a.data() ? a.data() + x.offset : nullptr;
  gemm.b = b.data() ? b.data() + x.offset : nullptr;
  gemm.c = c.data() ? c.data() + x.offset : nullptr;

  const std::string what = std::string(sizeof(T) == 4 ? "float32 " : "float64 ") + name_of(backend) + " " + text(x);
  try {
    run(gemm, {backend}, own_stream());
    synchronize(own_stream());
  } catch (const std::exception& error) {
    expect(false, what + ": " + error.what());
    return;
  }
  if (!c.data()) {
    expect(true, what);
    return;
  }
  c.download();
  const std::string wrong =
      compare(gemm, a.host() + x.offset, b.host() + x.offset, c.host() + x.offset, tolerance<T>(x.k));
  if (!expect(wrong.empty(), what + ": " + wrong)) return;
  std::vector<bool> is_output(c.all().size(), false);
  Gemm g = gemm;
  std::vector<Dim> own = dims_of(x.m, x.n, g.c_strides, {c_batch.begin() + (x.offset ? 1 : 0), c_batch.end()});
  std::vector<int64_t> at(own.size(), 0);
  const int64_t start = c.host() + x.offset - c.all().data();
  for (bool more = true; more;) {
    int64_t place = start;
    for (std::size_t i = 0; i < own.size(); ++i) place += at[i] * own[i].stride;
    is_output[place] = true;
    int i = static_cast<int>(own.size()) - 1;
    while (i >= 0 && ++at[i] == own[i].size) at[i--] = 0;
    more = i >= 0;
  }
  for (std::size_t i = 0; i < is_output.size(); ++i) {
    if (!is_output[i] && !std::isnan(c.all()[i])) {
      expect(false, what + ": wrote outside of c, at element " + std::to_string(i));
      return;
    }
  }
}

void check_both(const Case& x, bool by_cublas) {
  check_case<float>(x, MatmulBackend::tiled);
  check_case<double>(x, MatmulBackend::tiled);
  if (by_cublas && g_cublas) {
    check_case<float>(x, MatmulBackend::cublas);
    check_case<double>(x, MatmulBackend::cublas);
  }
}

// ---- products ----

void test_sizes() {
  const Layout inputs[] = {kRowMajor, kColumnMajor};
  int turn = 0;
  for (int64_t size = 1; size <= 130; ++size, ++turn) {
    const Case square{size, size, size, inputs[turn & 1], inputs[turn >> 1 & 1], inputs[turn >> 2 & 1], {}};
    check_both(square, true);
  }
  const int64_t sizes[] = {1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 97, 127, 128, 129, 130, 257};
  std::uniform_int_distribution<int> pick(0, 20), coin(0, 1);
  for (int i = 0; i < 200; ++i) {
    check_both({sizes[pick(g_random)],
                sizes[pick(g_random)],
                sizes[pick(g_random)],
                inputs[coin(g_random)],
                inputs[coin(g_random)],
                inputs[coin(g_random)],
                {}},
               true);
  }
}

void test_layouts() {
  const int64_t shapes[][3] = {{33, 45, 70}, {130, 129, 67}, {260, 132, 36}, {1, 40, 50},
                               {40, 1, 50},  {40, 50, 1},    {1, 1, 100}};
  int turn = 0;
  for (const auto& s : shapes) {
    for (int a = 0; a < kLayouts; ++a) {
      for (int b = 0; b < kLayouts; ++b) {
        const Layout c = kOutputLayouts[turn++ % 8];
        const Case x{s[0], s[1], s[2], Layout(a), Layout(b), c, {}};
        check_both(x, is_blas(x.a, x.m, x.k) && is_blas(x.b, x.k, x.n) && is_blas(x.c, x.m, x.n));
      }
    }
  }
  for (const Layout layout : {kRowMajor, kColumnMajor}) {
    for (const Layout other : {kRowMajor, kColumnMajor}) {
      for (int64_t offset = 1; offset <= 4; ++offset)
        check_both({129, 132, 64, layout, other, kRowMajor, {}, offset}, true);
    }
  }
  for (const Layout layout : {kRowMajor, kColumnMajor}) {  // large enough for several blocks in each direction
    for (const Layout other : {kRowMajor, kColumnMajor}) {
      for (const Layout output : {kRowMajor, kColumnMajor}) {
        check_both({512, 640, 96, layout, other, output, {}}, true);
        check_both({515, 637, 99, layout, other, output, {}}, true);
      }
    }
  }
}

void test_batches() {
  using Batch = std::vector<BatchSpec>;
  const Batch one_dim[] = {{{3, true, true}}, {{3, true, false}}, {{3, false, true}}, {{100, true, true}}};
  const Batch more_dims[] = {
      {{2, true, false}, {3, false, true}},
      {{2, false, true}, {3, true, false}, {2, true, true}},
      {{2, true, false}, {2, false, true}, {3, true, false}, {2, false, true}},
      {{2, true, true}, {2, true, false}, {2, false, true}, {3, true, false}, {2, false, true}},
      {{2, false, false},
       {2, true, false},
       {2, false, true},
       {1, true, true},
       {2, true, false},
       {3, false, true},
       {2, true, true}},
      {{0, true, true}},
      {{2, true, true}, {0, true, false}},
  };
  for (const auto& s : {std::array<int64_t, 3>{17, 18, 19}, {64, 64, 64}, {65, 130, 33}, {1, 1, 7}, {4, 4, 4}}) {
    for (const Layout a : {kRowMajor, kColumnMajor, kNegativeRows}) {
      for (const Layout c : {kRowMajor, kColumnMajor}) {
        for (const Batch& batch : one_dim)
          check_both({s[0], s[1], s[2], a, kRowMajor, c, batch}, is_blas(a, s[0], s[2]));
        for (const Batch& batch : more_dims) check_both({s[0], s[1], s[2], a, kRowMajor, c, batch}, false);
      }
    }
  }
}

void test_nothing_to_do() {
  for (const auto& s : {std::array<int64_t, 3>{0, 5, 5}, {5, 0, 5}, {0, 0, 0}, {5, 6, 0}, {1, 1, 0}, {200, 300, 0}}) {
    for (const Layout c : {kRowMajor, kColumnMajor, kRowPadded})
      check_both({s[0], s[1], s[2], kRowMajor, kRowMajor, c, {}}, true);
  }
  check_both({5, 6, 0, kRowMajor, kRowMajor, kRowMajor, {{3, true, true}}}, true);
  for (const MatmulBackend backend : {MatmulBackend::automatic, MatmulBackend::tiled}) {
    check_case<float>({5, 6, 0, kRowMajor, kRowMajor, kRowMajor, {}}, backend);
  }
}

/// Products of ones: each output is k, exactly. Finds a kernel that drops the end of k.
void test_ones() {
  const float one32 = 1;
  const double one64 = 1;
  for (const int64_t k : {1, 3, 7, 9, 31, 127, 129, 255, 1001, 4000, 4095, 4097, 8191, 11528, 16385, 65537}) {
    for (const int64_t size : {1, 16, 17, 64, 130}) {
      const Case x{size, size, k, kRowMajor, size == 64 ? kColumnMajor : kRowMajor, kRowMajor, {}};
      if (k > 20000 && size > 64) continue;
      for (const MatmulBackend backend : {MatmulBackend::tiled, MatmulBackend::cublas}) {
        if (backend == MatmulBackend::cublas && !g_cublas) continue;
        check_case<float>(x, backend, &one32);
        check_case<double>(x, backend, &one64);
      }
    }
  }
}

template <typename T>
std::vector<T> product(int64_t size, int64_t k, const MatmulOptions& options, cudaStream_t stream, const T* a,
                       const T* b) {
  Gemm gemm;
  gemm.dtype = gemm.b_dtype = gemm.out_dtype = dtype_of<T>();
  gemm.m = gemm.n = size;
  gemm.k = k;
  gemm.a_strides = {k, 1};
  gemm.b_strides = gemm.c_strides = {size, 1};
  gemm.a = a;
  gemm.b = b;
  gemm.c = allocate(size * size * sizeof(T), stream);
  run(gemm, options, stream);
  std::vector<T> result(size * size);
  copy_to_host(result.data(), gemm.c, result.size() * sizeof(T), stream);
  synchronize(stream);
  release(gemm.c, 0);
  return result;
}

/// Without the workspace k is not divided.
void test_no_workspace() {
  const int64_t size = 64, k = 8192;
  const float one = 1, poison = std::numeric_limits<float>::quiet_NaN();
  DeviceArray<float> a({{size, k}, {k, 1}}, g_random, &one), b({{k, size}, {size, 1}}, g_random, &one);
  Gemm gemm;
  gemm.dtype = gemm.b_dtype = gemm.out_dtype = dtype_of<float>();
  gemm.m = gemm.n = size;
  gemm.k = k;
  gemm.a_strides = {k, 1};
  gemm.b_strides = gemm.c_strides = {size, 1};
  gemm.a = a.data();
  gemm.b = b.data();
  const MatmulPlan plan = plan_matmul(gemm, {MatmulBackend::tiled});
  expect(plan.workspace_bytes > 0, "k = 8192 of 64 x 64 outputs is divided: " + describe(gemm, plan));
  void* workspace = allocate(plan.workspace_bytes, own_stream());
  for (void* const memory : {workspace, static_cast<void*>(nullptr)}) {
    DeviceArray<float> c({{size, size}, {size, 1}}, g_random, &poison);
    gemm.c = c.data();
    launch_matmul(gemm, plan, memory, own_stream());
    synchronize(own_stream());
    c.download();
    const bool right = std::all_of(c.all().begin(), c.all().end(), [](float x) { return x == k; });
    expect(right, memory ? "with the workspace" : "without the workspace");
  }
  release(workspace, 0, own_stream());
}

void test_repeats_bit_for_bit(int64_t size, int64_t k) {
  DeviceArray<float> a({{size, k}, {k, 1}}, g_random), b({{k, size}, {size, 1}}, g_random);
  for (const MatmulBackend backend : {MatmulBackend::tiled, MatmulBackend::cublas}) {
    if (backend == MatmulBackend::cublas && !g_cublas) continue;
    const auto first = product<float>(size, k, {backend}, own_stream(), a.data(), b.data());
    bool same = true;
    for (int i = 0; i < 5; ++i) same &= product<float>(size, k, {backend}, kLegacyStream, a.data(), b.data()) == first;
    expect(same, std::string(name_of(backend)) + ": the same bits every run, k " + std::to_string(k));
  }
}

/// float32 is exact unless TF32 is allowed; also where NVIDIA_TF32_OVERRIDE=1 is set, which the caller of this test
/// does.
void test_tf32() {
  if (!g_cublas) return;
  const int64_t size = 512;
  DeviceArray<float> a({{size, size}, {size, 1}}, g_random), b({{size, size}, {size, 1}}, g_random);
  const auto exact = product<float>(size, size, {MatmulBackend::tiled}, own_stream(), a.data(), b.data());
  const auto distance = [&](const std::vector<float>& x) {
    double difference = 0, size2 = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      difference += (double(x[i]) - exact[i]) * (double(x[i]) - exact[i]);
      size2 += double(exact[i]) * exact[i];
    }
    return std::sqrt(difference / size2);
  };
  const double strict = distance(product<float>(size, size, {MatmulBackend::cublas}, own_stream(), a.data(), b.data()));
  const double tf32 = distance(
      product<float>(size, size, {MatmulBackend::cublas, MatmulPrecision::tf32}, own_stream(), a.data(), b.data()));
  std::printf("relative distance of cublas float32 from tiled: %.2g exact, %.2g with TF32 allowed\n", strict, tf32);
  expect(strict < 2e-6, "cublas float32 is exact");
  expect(tf32 < 1e-3 && tf32 > 2e-5, "cublas uses TF32 where it is allowed");
}

void test_refusals() {
  float x = 0;
  Gemm gemm;
  gemm.dtype = gemm.b_dtype = gemm.out_dtype = dtype_of<float>();
  gemm.m = gemm.n = gemm.k = 8;
  gemm.a = gemm.b = gemm.c = &x;  // never touched: planning only
  gemm.a_strides = gemm.b_strides = gemm.c_strides = {8, 1};
  if (g_cublas) {
    const MatmulOptions cublas{MatmulBackend::cublas};
    Gemm bad = gemm;
    bad.a_strides = {16, 2};
    expect_throw<ValueError>("a strided twice", "a has no unit stride", [&] { plan_matmul(bad, cublas); });
    bad = gemm;
    bad.b_strides = {0, 1};
    expect_throw<ValueError>("b broadcast", "b has no unit stride", [&] { plan_matmul(bad, cublas); });
    bad = gemm;
    bad.c_strides = {-8, 1};
    expect_throw<ValueError>("negative out", "out has no unit stride", [&] { plan_matmul(bad, cublas); });
    bad = gemm;
    bad.batch_ndim = 2;
    bad.batch[0] = {2, 0, 64, 128, 0, 0};
    bad.batch[1] = {2, 64, 0, 64, 0, 0};
    expect_throw<ValueError>("two batch dimensions", "does not collapse", [&] { plan_matmul(bad, cublas); });
    expect(plan_matmul(bad, {}).backend == MatmulBackend::tiled, "automatic takes what cuBLASLt cannot");
    Gemm large = gemm;
    large.m = large.n = large.k = 4096;
    large.a_strides = large.b_strides = large.c_strides = {4096, 1};
    const MatmulPlan plan = plan_matmul(large, {});
    expect(plan.backend == MatmulBackend::cublas, "automatic takes cuBLASLt for a large product");
    std::printf("4096^3 float32 automatic: %s, workspace %zu\n", describe(large, plan).c_str(), plan.workspace_bytes);
    expect(plan_matmul(large, {}).algorithm == plan.algorithm, "the second plan comes from the cache");
    expect(plan.workspace_bytes <= largest_workspace(large, {}), "the workspace has a bound");
    Gemm moved = large;
    large.a = reinterpret_cast<void*>(uintptr_t{1} << 20);
    moved.a = reinterpret_cast<void*>((uintptr_t{1} << 20) + 16);
    MatmulOptions aligned16;
    aligned16.alignment = 16;
    expect(plan_matmul(moved, aligned16).algorithm == plan_matmul(large, aligned16).algorithm,
           "one plan for all addresses of the alignment that is asked for");
    expect(plan_matmul(moved, {}).algorithm != plan_matmul(large, {}).algorithm, "another for a better aligned one");
  }
  std::printf("8^3 float32 automatic: %s\n", describe(gemm, plan_matmul(gemm, {})).c_str());
  Gemm crooked = gemm;
  crooked.b = reinterpret_cast<char*>(&x) + 1;
  expect_throw<ValueError>("a crooked pointer", "b starts at", [&] { plan_matmul(crooked, {}); });
  if (!g_cublas) return;
  gemm.dtype = gemm.b_dtype = gemm.out_dtype = DLDataType{kDLInt, 32, 1};
  expect_throw<ValueError>("int32", "it has no product of these dtypes",
                           [&] { plan_matmul(gemm, {MatmulBackend::cublas}); });
}

/// Many shapes from many threads: the plan cache is shared, and overflows.
void test_threads() {
  if (!g_cublas) return;
  float x = 0;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      DeviceGuard guard(0);
      for (int i = 0; i < 800; ++i) {
        Gemm gemm;
        gemm.dtype = gemm.b_dtype = gemm.out_dtype = dtype_of<float>();
        gemm.m = 64 + i;
        gemm.n = 65 + (t + i) % 9;
        gemm.k = 66;
        gemm.a = gemm.b = gemm.c = &x;
        gemm.a_strides = {66, 1};
        gemm.b_strides = gemm.c_strides = {gemm.n, 1};
        if (plan_matmul(gemm, {MatmulBackend::cublas}).backend != MatmulBackend::cublas) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect(wrong == 0, "plans from eight threads");
}

/// More blocks than one grid can have: 2^31 + 5 products of 1 x 1.
void test_huge_grid() {
  const int64_t count = (int64_t{1} << 31) + 5;
  float* c = nullptr;
  MUST(cudaMalloc(&c, count * sizeof(float)));
  MUST(cudaMemset(c, 0xFF, count * sizeof(float)));
  const float three = 3;
  DeviceArray<float> a({{1, 1}}, g_random, &three), b({{1, 1}}, g_random, &three);
  Gemm gemm;
  gemm.dtype = gemm.b_dtype = gemm.out_dtype = dtype_of<float>();
  gemm.m = gemm.n = gemm.k = 1;
  gemm.a = a.data();
  gemm.b = b.data();
  gemm.c = c;
  gemm.batch_ndim = 1;
  gemm.batch[0] = {count, 0, 0, 1, 0, 0};
  run(gemm, {MatmulBackend::tiled}, own_stream());
  synchronize(own_stream());
  std::vector<float> part(1 << 20);
  bool right = true;
  for (const int64_t start : {int64_t{0}, count / 2, count - (1 << 20)}) {
    MUST(cudaMemcpy(part.data(), c + start, part.size() * sizeof(float), cudaMemcpyDeviceToHost));
    for (const float value : part) right &= value == 9;
  }
  expect(right, "a grid of more than 2^31 blocks");
  MUST(cudaFree(c));
}

// ---- captures ----

/// The first product of the process is captured: nothing that CUDA does on first use may break the capture.
void test_capture_of_first_call(MatmulBackend backend) {
  const int64_t size = 192;
  const float poison = std::numeric_limits<float>::quiet_NaN();
  DeviceArray<float> a({{size, size}, {size, 1}}, g_random), b({{size, size}, {size, 1}}, g_random);
  DeviceArray<float> c({{size, size}, {size, 1}}, g_random, &poison);
  Gemm gemm;
  gemm.dtype = gemm.b_dtype = gemm.out_dtype = dtype_of<float>();
  gemm.m = gemm.n = gemm.k = size;
  gemm.a_strides = gemm.b_strides = gemm.c_strides = {size, 1};
  gemm.a = a.data();
  gemm.b = b.data();
  gemm.c = c.data();
  void* workspace = nullptr;
  MUST(cudaMalloc(&workspace, 32 << 20));
  cudaStream_t stream;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const std::string what = std::string(name_of(backend)) + ": capture of the first call: ";
  MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  try {
    expect(is_capturing(stream), what + "is_capturing");
    launch_matmul(gemm, plan_matmul(gemm, {backend}), workspace, stream);
  } catch (const std::exception& error) {
    expect(false, what + error.what());
  }
  cudaGraph_t graph = nullptr;
  if (!expect(cudaStreamEndCapture(stream, &graph) == cudaSuccess, what + "ends well")) return;
  cudaGraphExec_t exec;
  MUST(cudaGraphInstantiate(&exec, graph, 0));
  MUST(cudaGraphLaunch(exec, stream));
  MUST(cudaStreamSynchronize(stream));
  c.download();
  const std::string wrong = compare(gemm, a.host(), b.host(), c.host(), tolerance<float>(size));
  expect(wrong.empty(), what + wrong);
  MUST(cudaGraphExecDestroy(exec));
  MUST(cudaGraphDestroy(graph));
  MUST(cudaStreamDestroy(stream));
  MUST(cudaFree(workspace));
}

void test_streams() {
  cudaStream_t x, y, blocking;
  MUST(cudaStreamCreateWithFlags(&x, cudaStreamNonBlocking));
  MUST(cudaStreamCreateWithFlags(&y, cudaStreamNonBlocking));
  MUST(cudaStreamCreate(&blocking));

  // y waits for a product on x before it copies the result.
  const int64_t size = 2048;
  const float one = 1;
  DeviceArray<float> a({{size, size}, {size, 1}}, g_random, &one);
  void* c = allocate(size * size * sizeof(float), x);
  Gemm gemm;
  gemm.dtype = gemm.b_dtype = gemm.out_dtype = dtype_of<float>();
  gemm.m = gemm.n = gemm.k = size;
  gemm.a_strides = gemm.b_strides = gemm.c_strides = {size, 1};
  gemm.a = gemm.b = a.data();
  gemm.c = c;
  MUST(cudaMemsetAsync(c, 0xFF, size * size * sizeof(float), x));
  for (int i = 0; i < 5; ++i) run(gemm, {MatmulBackend::tiled}, x);
  Event event(x);
  expect(!event.done(), "an event of a busy stream is not done");
  wait_stream(y, x);
  std::vector<float> result(size * size);
  copy_to_host(result.data(), c, result.size() * sizeof(float), y);
  release(c, 0);  // while x and y are still busy
  synchronize(y);
  expect(result.front() == size && result.back() == size, "wait_stream orders two streams");
  expect(event.done(), "the event is done");
  event.make_wait(y);
  event.synchronize();
  Event moved = std::move(event);
  expect(!event && moved, "an event moves");
  wait_stream(x, x);
  wait_stream(x, kLegacyStream);
  wait_stream(kPerThreadStream, kLegacyStream);

  // Captures.
  MUST(cudaStreamBeginCapture(x, cudaStreamCaptureModeGlobal));
  expect_throw<ValueError>("a captured stream and one that is not", "same CUDA graph capture",
                           [&] { wait_stream(x, y); });
  expect_throw<ValueError>("... the other way round", "same CUDA graph capture", [&] { wait_stream(y, x); });
  expect(!is_capturing(y), "the other stream is not captured");
  expect(moved.done(), "an event query beside a capture");
  synchronize(y);
  void* memory = allocate(1 << 20, y);
  copy_to_device(memory, result.data(), 1 << 10, y);
  synchronize(y);
  expect(pointer_device(memory) == 0, "pointer_device beside a capture");
  std::thread([] {
    DeviceGuard guard(0);
    own_stream();
  }).join();
  cudaGraph_t graph = nullptr;
  expect(cudaStreamEndCapture(x, &graph) == cudaSuccess, "the capture survives all that");
  if (graph) MUST(cudaGraphDestroy(graph));
  (void)cudaGetLastError();

  for (const cudaStream_t captured : {x, blocking}) {
    for (const auto mode :
         {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
      if (!memory) memory = allocate(1 << 20, y);
      void* other = allocate(1 << 20, y);
      MUST(cudaStreamBeginCapture(captured, mode));
      release(memory, 0);
      std::thread([other] { release(other, 0); }).join();
      memory = nullptr;
      expect(cudaStreamEndCapture(captured, &graph) == cudaSuccess, "a capture survives releases");
      (void)cudaGetLastError();
    }
  }

  MUST(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
  expect_throw<ValueError>("the legacy stream beside a blocking capture", "legacy",
                           [&] { wait_stream(blocking, kLegacyStream); });
  expect(cudaStreamEndCapture(blocking, &graph) == cudaSuccess, "that capture survives, too");
  (void)cudaGetLastError();

  expect(own_stream() == own_stream(), "own_stream is kept");
  MUST(cudaStreamDestroy(x));
  MUST(cudaStreamDestroy(y));
  MUST(cudaStreamDestroy(blocking));
}

void test_devices() {
  expect(driver_version() >= built_for() / 1000 * 1000, "the driver's version");
  expect(device_count() >= 1, "a device");
  const DeviceInfo info = device_info(0);
  std::printf("%s, compute %d.%d, %d SMs, driver CUDA %d, built for CUDA %d (%s; %s)\n", info.name.c_str(),
              info.compute_major, info.compute_minor, info.multiprocessors, driver_version(), built_for(),
              built_architectures(), built_compiler());
  expect(info.multiprocessors > 0 && info.memory_bytes > 0, "device_info");
  int on_host = 0;
  expect(!pointer_device(&on_host), "a host pointer belongs to no device");
  expect_throw<CudaError>("no such device", "CUDA_ERROR_INVALID_DEVICE", [] { DeviceGuard guard(99); });
  // A thread that has no context: the guard brings one, and takes it away again.
  std::thread([] {
    {
      DeviceGuard guard(0);
      void* memory = allocate(1000, own_stream());
      expect(pointer_device(memory) == 0, "a device pointer belongs to its device");
      std::thread([memory] { release(memory, 0); }).join();
    }
    expect_throw<CudaError>("no context outside of the guard", "CUDA_ERROR_INVALID_CONTEXT", [] { own_stream(); });
  }).join();
  release(nullptr, 0);
  release(&on_host, 0);  // never throws
}

}  // namespace

int main(int argc, char** argv) {
  bool huge = false;
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--cublas") && i + 1 < argc)
      set_cublas_paths(&argv[++i], 1);
    else if (!std::strcmp(argv[i], "--no-cublas"))
      g_cublas = false;
    else if (!std::strcmp(argv[i], "--huge"))
      huge = true;
  }
  try {
    require_driver();
    MUST(cudaFree(nullptr));  // makes the primary context current
    std::printf("cuBLASLt: %s\n", cublas_status().c_str());
    test_capture_of_first_call(MatmulBackend::tiled);
    if (g_cublas) test_capture_of_first_call(MatmulBackend::cublas);
    test_devices();
    test_streams();
    test_refusals();
    test_nothing_to_do();
    test_sizes();
    test_layouts();
    test_batches();
    test_ones();
    test_no_workspace();
    test_repeats_bit_for_bit(640, 640);
    test_repeats_bit_for_bit(200, 10007);  // in parts
    test_tf32();
    test_threads();
    if (huge) test_huge_grid();
    MUST(cudaDeviceSynchronize());
  } catch (const std::exception& error) {
    expect(false, std::string("stopped by ") + error.what());
  }
  std::printf("%d passed, %d failed\n", g_passed, g_failed);
  return g_failed ? 1 : 0;
}
