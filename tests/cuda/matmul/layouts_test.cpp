/// Tests of <interop/cuda/matmul.h>: products of every layout and size, in float32 and float64, by both backends.
#include <gtest/gtest.h>
#include <interop/cuda/driver.h>
#include <interop/cuda/matmul.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "cuda/matmul/strided_array.h"
#include "cuda/matmul/whole_products.h"

using namespace interop;
using namespace interop::cuda;
using namespace interop::tests;

namespace {

template <typename T>
DLDataType dtype_of() {
  return {kDLFloat, static_cast<uint8_t>(sizeof(T) * 8), 1};
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

}  // namespace
