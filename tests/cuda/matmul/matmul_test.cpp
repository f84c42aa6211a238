/// Tests of <interop/cuda/matmul.h>: plans, and products of every layout by both backends. forms_test.cpp has the other
/// dtypes, and what a product is put through.
///
/// Run it with NVIDIA_TF32_OVERRIDE=1, too, and under `compute-sanitizer --report-api-errors no`: what captures is
/// tested for makes errors of the driver on purpose.
#include <gtest/gtest.h>
#include <interop/cuda/driver.h>
#include <interop/cuda/matmul.h>
#include <interop/error.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/throws.h"
#include "cuda/device.h"
#include "cuda/matmul/cublas.h"
#include "cuda/matmul/strided_array.h"

using namespace interop;
using namespace interop::cuda;
using namespace interop::tests;

namespace {

template <typename T>
DLDataType dtype_of() {
  return {kDLFloat, static_cast<uint8_t>(sizeof(T) * 8), 1};
}

const char* name_of(MatmulBackend backend) {
  return backend == MatmulBackend::tiled ? "tiled" : backend == MatmulBackend::cublas ? "cublas" : "automatic";
}

/// A product of compact matrices, which lie nowhere yet.
Gemm compact_gemm(int64_t m, int64_t n, int64_t k, DLDataType dtype = kFloat32) {
  Gemm gemm;
  gemm.dtype = gemm.b_dtype = gemm.out_dtype = dtype;
  gemm.m = m;
  gemm.n = n;
  gemm.k = k;
  gemm.a_strides = {k, 1};
  gemm.b_strides = gemm.c_strides = {n, 1};
  return gemm;
}

std::vector<Dim> compact_dims(int64_t rows, int64_t columns) { return {{rows, columns}, {columns, 1}}; }

/// Plans, allocates the workspace and launches, as a caller does.
void run(const Gemm& gemm, const MatmulOptions& options, cudaStream_t stream) {
  const MatmulPlan plan = plan_matmul(gemm, options);
  void* workspace = plan.workspace_bytes ? allocate(plan.workspace_bytes, stream) : nullptr;
  launch_matmul(gemm, plan, workspace, stream);
  if (workspace) release(workspace, 0, stream);
}

struct MatmulTest : DeviceTest {
  std::mt19937 random{20240607};
};

/// By each of the backends.
struct MatmulBackends : MatmulTest, ::testing::WithParamInterface<MatmulBackend> {
  void SetUp() override {
    if (GetParam() == MatmulBackend::cublas) require_cublas();
  }
};

std::string backend_name(const ::testing::TestParamInfo<MatmulBackend>& info) { return name_of(info.param); }

// ---- a capture: first in this file, as the first product of the process is to be captured ----

struct FirstProduct : MatmulTest {
  static constexpr int64_t kSize = 192;

  void SetUp() override {
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  void TearDown() override {
    check_cuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
    MatmulTest::TearDown();
  }
  StridedArray<float> matrix(std::optional<float> value = std::nullopt) {
    return {compact_dims(kSize, kSize), random, value};
  }
  /// Nothing that CUDA does on first use may break the capture.
  void is_captured(MatmulBackend backend) {
    const StridedArray<float> a = matrix(), b = matrix();
    StridedArray<float> c = matrix(std::numeric_limits<float>::quiet_NaN());
    Gemm gemm = compact_gemm(kSize, kSize, kSize);
    gemm.a = a.data();
    gemm.b = b.data();
    gemm.c = c.data();
    const DeviceMemory workspace(32 << 20);
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    EXPECT_TRUE(is_capturing(stream));
    EXPECT_NO_THROW(launch_matmul(gemm, plan_matmul(gemm, {backend}), workspace.data(), stream));
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess) << "the capture was broken";
    cudaGraphExec_t exec;
    check_cuda(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
    check_cuda(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
    check_cuda(cudaStreamSynchronize(stream), "the graph");
    c.download();
    EXPECT_EQ(compare(gemm, a.host(), b.host(), c.host(), tolerance<float>(kSize)), "");
    check_cuda(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
    check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  cudaStream_t stream = nullptr;
};

TEST_F(FirstProduct, OfTheTiledKernelsIsCaptured) { is_captured(MatmulBackend::tiled); }

struct FirstCublasProduct : FirstProduct {
  void SetUp() override {
    FirstProduct::SetUp();
    require_cublas();  // opens it
    std::printf("cuBLASLt: %s\n", cublas_status().c_str());
  }
};

TEST_F(FirstCublasProduct, IsCaptured) { is_captured(MatmulBackend::cublas); }

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

/// Can cuBLASLt take it? (As cublas/key.cpp decides, said independently.)
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

/// The arrays of a case, and the product of them.
template <typename T>
class Problem {
 public:
  Problem(const Case& x, std::mt19937& random, std::optional<T> value) : offset_(x.offset) {
    gemm.dtype = gemm.b_dtype = gemm.out_dtype = dtype_of<T>();
    gemm.m = x.m;
    gemm.n = x.n;
    gemm.k = x.k;
    gemm.a_strides = strides_of(x.a, x.m, x.k);
    gemm.b_strides = strides_of(x.b, x.k, x.n);
    gemm.c_strides = strides_of(x.c, x.m, x.n);
    set_batch(x);
    a_.emplace(dims_of(x.m, x.k, gemm.a_strides, &BatchDim::a_stride, true), random, value);
    b_.emplace(dims_of(x.k, x.n, gemm.b_strides, &BatchDim::b_stride, true), random, value);
    c_.emplace(dims_of(x.m, x.n, gemm.c_strides, &BatchDim::c_stride, true), random,
               std::numeric_limits<T>::quiet_NaN());
    gemm.a = a_->data() ? a_->data() + offset_ : nullptr;
    gemm.b = b_->data() ? b_->data() + offset_ : nullptr;
    gemm.c = c_->data() ? c_->data() + offset_ : nullptr;
  }

  /// What is wrong first, in the elements of c or between them; "" if nothing.
  std::string wrong() {
    if (!c_->data()) return "";
    c_->download();
    const std::string differs =
        compare(gemm, a_->host() + offset_, b_->host() + offset_, c_->host() + offset_, tolerance<T>(gemm.k));
    if (!differs.empty()) return differs;
    const std::vector<T>& all = c_->all();
    std::vector<bool> is_output(all.size(), false);
    each_place(dims_of(gemm.m, gemm.n, gemm.c_strides, &BatchDim::c_stride, false), c_->host() + offset_ - all.data(),
               [&](int64_t place) { is_output[place] = true; });
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!is_output[i] && !std::isnan(all[i])) return "wrote outside of c, at element " + std::to_string(i);
    }
    return "";
  }

  Gemm gemm;

 private:
  void set_batch(const Case& x) {
    int64_t a_step = span(x.m, x.k, gemm.a_strides) + 1, b_step = span(x.k, x.n, gemm.b_strides);
    int64_t c_step = span(x.m, x.n, gemm.c_strides) + 2;
    gemm.batch_ndim = static_cast<int>(x.batch.size());
    for (int i = gemm.batch_ndim - 1; i >= 0; --i) {
      const BatchSpec& spec = x.batch[i];
      gemm.batch[i] = {spec.size, spec.a_varies ? a_step : 0, spec.b_varies ? b_step : 0, c_step, 0, 0};
      if (spec.a_varies) a_step *= spec.size;
      if (spec.b_varies) b_step *= spec.size;
      c_step *= spec.size;
    }
  }

  /// With a leading pair of elements `offset_` apart, of which the product uses the second, if `has_pair`.
  std::vector<Dim> dims_of(int64_t rows, int64_t columns, const MatrixStrides& s, int64_t BatchDim::* stride,
                           bool has_pair) const {
    std::vector<Dim> dims;
    if (has_pair && offset_) dims.push_back({2, offset_});
    for (int i = 0; i < gemm.batch_ndim; ++i) dims.push_back({gemm.batch[i].size, gemm.batch[i].*stride});
    dims.push_back({rows, s.row});
    dims.push_back({columns, s.column});
    return dims;
  }

  int64_t offset_;
  std::optional<StridedArray<T>> a_, b_, c_;
};

/// Computes one case and compares every element; nothing between the elements of c may be written.
template <typename T>
void check(const Case& x, MatmulBackend backend, std::mt19937& random, std::optional<T> value = std::nullopt) {
  Problem<T> problem(x, random, value);
  std::string wrong;
  try {
    run(problem.gemm, {backend}, own_stream());
    synchronize(own_stream());
    wrong = problem.wrong();
  } catch (const std::exception& error) {
    wrong = error.what();
  }
  EXPECT_EQ(wrong, "") << dtype_name(dtype_of<T>()) << " " << name_of(backend) << " " << text(x);
}

// ---- products ----

struct Products : MatmulBackends {
  /// In float32 and float64; by cuBLASLt if it can take the layouts.
  void check_both(const Case& x, bool by_cublas = true) {
    if (GetParam() == MatmulBackend::cublas && !by_cublas) return;
    check<float>(x, GetParam(), random);
    check<double>(x, GetParam(), random);
  }
};
INSTANTIATE_TEST_SUITE_P(, Products, ::testing::Values(MatmulBackend::tiled, MatmulBackend::cublas), backend_name);

TEST_P(Products, OfSquaresUpTo130) {
  const Layout inputs[] = {kRowMajor, kColumnMajor};
  int turn = 0;
  for (int64_t size = 1; size <= 130; ++size, ++turn) {
    check_both({size, size, size, inputs[turn & 1], inputs[turn >> 1 & 1], inputs[turn >> 2 & 1], {}});
  }
}

TEST_P(Products, OfRandomSizes) {
  const Layout inputs[] = {kRowMajor, kColumnMajor};
  const int64_t sizes[] = {1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 97, 127, 128, 129, 130, 257};
  std::uniform_int_distribution<int> pick(0, 20), coin(0, 1);
  std::mt19937 draw(20240607);  // the same for both backends, and of no other use
  for (int i = 0; i < 200; ++i) {
    const int64_t m = sizes[pick(draw)], n = sizes[pick(draw)], k = sizes[pick(draw)];
    const Layout a = inputs[coin(draw)], b = inputs[coin(draw)], c = inputs[coin(draw)];
    check_both({m, n, k, a, b, c, {}});
  }
}

TEST_P(Products, OfEveryPairOfLayouts) {
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
}

TEST_P(Products, OfArraysThatAreNotAligned) {
  for (const Layout layout : {kRowMajor, kColumnMajor}) {
    for (const Layout other : {kRowMajor, kColumnMajor}) {
      for (int64_t offset = 1; offset <= 4; ++offset) {
        check_both({129, 132, 64, layout, other, kRowMajor, {}, offset});
      }
    }
  }
}

TEST_P(Products, OfSeveralBlocksInEachDirection) {
  for (const Layout layout : {kRowMajor, kColumnMajor}) {
    for (const Layout other : {kRowMajor, kColumnMajor}) {
      for (const Layout output : {kRowMajor, kColumnMajor}) {
        check_both({512, 640, 96, layout, other, output, {}});
        check_both({515, 637, 99, layout, other, output, {}});
      }
    }
  }
}

/// Of matrices of these sizes, in each of these layouts.
template <typename Check>
void for_each_batch(const std::vector<std::vector<BatchSpec>>& batches, Check check) {
  for (const auto& s : {std::array<int64_t, 3>{17, 18, 19}, {64, 64, 64}, {65, 130, 33}, {1, 1, 7}, {4, 4, 4}}) {
    for (const Layout a : {kRowMajor, kColumnMajor, kNegativeRows}) {
      for (const Layout c : {kRowMajor, kColumnMajor}) {
        for (const auto& batch : batches) check(Case{s[0], s[1], s[2], a, kRowMajor, c, batch});
      }
    }
  }
}

TEST_P(Products, OfBatchesInOneDimension) {
  for_each_batch({{{3, true, true}}, {{3, true, false}}, {{3, false, true}}, {{100, true, true}}},
                 [&](const Case& x) { check_both(x, is_blas(x.a, x.m, x.k)); });
}

TEST_F(MatmulTest, TiledKernelsTakeBatchesInSeveralDimensions) {
  for_each_batch({{{2, true, false}, {3, false, true}},
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
                  {{2, true, true}, {0, true, false}}},
                 [&](const Case& x) {
                   check<float>(x, MatmulBackend::tiled, random);
                   check<double>(x, MatmulBackend::tiled, random);
                 });
}

TEST_P(Products, OfEmptyShapes) {
  for (const auto& s : {std::array<int64_t, 3>{0, 5, 5}, {5, 0, 5}, {0, 0, 0}, {5, 6, 0}, {1, 1, 0}, {200, 300, 0}}) {
    for (const Layout c : {kRowMajor, kColumnMajor, kRowPadded}) {
      check_both({s[0], s[1], s[2], kRowMajor, kRowMajor, c, {}});
    }
  }
  check_both({5, 6, 0, kRowMajor, kRowMajor, kRowMajor, {{3, true, true}}});
}

TEST_F(MatmulTest, EmptySumsAreZero) {
  for (const MatmulBackend backend : {MatmulBackend::automatic, MatmulBackend::tiled}) {
    check<float>({5, 6, 0, kRowMajor, kRowMajor, kRowMajor, {}}, backend, random);
  }
}

/// Each output is k, exactly. Finds a kernel that drops the end of k.
TEST_P(Products, OfOnesAreExact) {
  for (const int64_t k : {1, 3, 7, 9, 31, 127, 129, 255, 1001, 4000, 4095, 4097, 8191, 11528, 16385, 65537}) {
    for (const int64_t size : {1, 16, 17, 64, 130}) {
      const Case x{size, size, k, kRowMajor, size == 64 ? kColumnMajor : kRowMajor, kRowMajor, {}};
      if (k > 20000 && size > 64) continue;
      check<float>(x, GetParam(), random, 1);
      check<double>(x, GetParam(), random, 1);
    }
  }
}

/// 2^31 + 5 products of 1 x 1. Needs 10 GB of device memory.
TEST_F(MatmulTest, DISABLED_TakesMoreBlocksThanAGridHas) {
  const int64_t count = (int64_t{1} << 31) + 5;
  const DeviceMemory c(count * sizeof(float));
  check_cuda(cudaMemset(c.data(), 0xFF, c.bytes()), "cudaMemset");
  const StridedArray<float> a({{1, 1}}, random, 3), b({{1, 1}}, random, 3);
  Gemm gemm = compact_gemm(1, 1, 1);
  gemm.a = a.data();
  gemm.b = b.data();
  gemm.c = c.data();
  gemm.batch_ndim = 1;
  gemm.batch[0] = {count, 0, 0, 1, 0, 0};
  run(gemm, {MatmulBackend::tiled}, own_stream());
  synchronize(own_stream());
  std::vector<float> part(1 << 20);
  bool right = true;
  for (const int64_t start : {int64_t{0}, count / 2, count - (1 << 20)}) {
    check_cuda(
        cudaMemcpy(part.data(), c.data() + start * sizeof(float), part.size() * sizeof(float), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
    for (const float value : part) right &= value == 9;
  }
  EXPECT_TRUE(right);
}

// ---- the workspace, and the order of sums ----

TEST_F(MatmulTest, DividesKOnlyWithAWorkspace) {
  const int64_t size = 64, k = 8192;
  const StridedArray<float> a(compact_dims(size, k), random, 1), b(compact_dims(k, size), random, 1);
  Gemm gemm = compact_gemm(size, size, k);
  gemm.a = a.data();
  gemm.b = b.data();
  const MatmulPlan plan = plan_matmul(gemm, {MatmulBackend::tiled});
  ASSERT_GT(plan.workspace_bytes, 0u) << describe(gemm, plan);
  const DeviceMemory workspace(plan.workspace_bytes);
  for (void* const memory : {static_cast<void*>(workspace.data()), static_cast<void*>(nullptr)}) {
    StridedArray<float> c(compact_dims(size, size), random, std::numeric_limits<float>::quiet_NaN());
    gemm.c = c.data();
    launch_matmul(gemm, plan, memory, own_stream());
    synchronize(own_stream());
    c.download();
    EXPECT_EQ(c.all(), std::vector<float>(size * size, k)) << (memory ? "with" : "without") << " the workspace";
  }
}

std::vector<float> product(int64_t size, int64_t k, const MatmulOptions& options, cudaStream_t stream,
                           const StridedArray<float>& a, const StridedArray<float>& b) {
  Gemm gemm = compact_gemm(size, size, k);
  gemm.a = a.data();
  gemm.b = b.data();
  gemm.c = allocate(size * size * sizeof(float), stream);
  run(gemm, options, stream);
  std::vector<float> result(size * size);
  copy_to_host(result.data(), gemm.c, result.size() * sizeof(float), stream);
  synchronize(stream);
  release(gemm.c, 0);
  return result;
}

struct Sums : MatmulBackends {
  void repeat(int64_t size, int64_t k) {
    const StridedArray<float> a(compact_dims(size, k), random), b(compact_dims(k, size), random);
    const std::vector<float> first = product(size, k, {GetParam()}, own_stream(), a, b);
    bool same = true;
    for (int i = 0; i < 5; ++i) same &= product(size, k, {GetParam()}, kLegacyStream, a, b) == first;
    EXPECT_TRUE(same) << "k is " << k;
  }
};
INSTANTIATE_TEST_SUITE_P(, Sums, ::testing::Values(MatmulBackend::tiled, MatmulBackend::cublas), backend_name);

TEST_P(Sums, RepeatBitForBit) { repeat(640, 640); }

TEST_P(Sums, RepeatBitForBitInParts) { repeat(200, 10007); }

struct CublasSums : MatmulTest {
  void SetUp() override { require_cublas(); }
};

/// Also where NVIDIA_TF32_OVERRIDE=1 is set.
TEST_F(CublasSums, AreExactUnlessTf32IsAllowed) {
  const int64_t size = 512;
  const StridedArray<float> a(compact_dims(size, size), random), b(compact_dims(size, size), random);
  const auto exact = product(size, size, {MatmulBackend::tiled}, own_stream(), a, b);
  const auto distance = [&](const MatmulOptions& options) {
    const std::vector<float> x = product(size, size, options, own_stream(), a, b);
    double difference = 0, whole = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      difference += (double(x[i]) - exact[i]) * (double(x[i]) - exact[i]);
      whole += double(exact[i]) * exact[i];
    }
    return std::sqrt(difference / whole);
  };
  EXPECT_LT(distance({MatmulBackend::cublas}), 2e-6);
  const double tf32 = distance({MatmulBackend::cublas, MatmulPrecision::tf32});
  EXPECT_TRUE(tf32 < 1e-3 && tf32 > 2e-5) << tf32;
}

// ---- plans ----

/// A product of 8 x 8 float32 matrices, which lie where nothing is read: they are planned only.
struct Plans : ::testing::Test {
  Plans() { gemm.a = gemm.b = gemm.c = &element; }
  float element = 0;
  Gemm gemm = compact_gemm(8, 8, 8);
};

TEST_F(Plans, RefusePointersThatAreNotAligned) {
  gemm.b = reinterpret_cast<char*>(&element) + 1;
  EXPECT_TRUE(throws<ValueError>("b starts at", [&] { plan_matmul(gemm, {}); }));
}

struct CublasPlans : Plans {
  void SetUp() override {
    require_cublas();
    large = compact_gemm(4096, 4096, 4096);
    large.a = large.b = large.c = &element;
  }
  void is_refused(const char* why) {
    EXPECT_TRUE(throws<ValueError>(why, [&] { plan_matmul(gemm, {MatmulBackend::cublas}); }));
  }
  Gemm large;
};

TEST_F(CublasPlans, RefuseAWithoutAUnitStride) {
  gemm.a_strides = {16, 2};
  is_refused("a has no unit stride");
}

TEST_F(CublasPlans, RefuseABroadcastB) {
  gemm.b_strides = {0, 1};
  is_refused("b has no unit stride");
}

TEST_F(CublasPlans, RefuseANegativeOutput) {
  gemm.c_strides = {-8, 1};
  is_refused("out has no unit stride");
}

TEST_F(CublasPlans, LeaveTwoBatchDimensionsToTheTiledKernels) {
  gemm.batch_ndim = 2;
  gemm.batch[0] = {2, 0, 64, 128, 0, 0};
  gemm.batch[1] = {2, 64, 0, 64, 0, 0};
  is_refused("does not collapse");
  EXPECT_EQ(plan_matmul(gemm, {}).backend(), MatmulBackend::tiled);
}

TEST_F(CublasPlans, RefuseIntegers) {
  gemm.dtype = gemm.b_dtype = gemm.out_dtype = {kDLInt, 32, 1};
  is_refused("it has no product of these dtypes");
}

TEST_F(CublasPlans, AreChosenForALargeProductAndKept) {
  const MatmulPlan plan = plan_matmul(large, {});
  EXPECT_EQ(plan.backend(), MatmulBackend::cublas) << describe(large, plan);
  EXPECT_EQ(plan_matmul(large, {}).algorithm, plan.algorithm);
  EXPECT_LE(plan.workspace_bytes, largest_workspace(large, {}));
}

TEST_F(CublasPlans, AreMadeForTheAlignmentThatIsAskedFor) {
  Gemm moved = large;
  large.a = reinterpret_cast<void*>(uintptr_t{1} << 20);
  moved.a = reinterpret_cast<void*>((uintptr_t{1} << 20) + 16);
  MatmulOptions aligned16;
  aligned16.alignment = 16;
  EXPECT_EQ(plan_matmul(moved, aligned16).algorithm, plan_matmul(large, aligned16).algorithm);
  EXPECT_NE(plan_matmul(moved, {}).algorithm, plan_matmul(large, {}).algorithm);
}

/// The cache of plans is shared, and overflows.
TEST_F(CublasPlans, AreMadeByManyThreads) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      DeviceGuard guard(0);
      for (int i = 0; i < 800; ++i) {
        Gemm own = compact_gemm(64 + i, 65 + (t + i) % 9, 66);
        own.a = own.b = own.c = &element;
        if (plan_matmul(own, {MatmulBackend::cublas}).backend() != MatmulBackend::cublas) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
