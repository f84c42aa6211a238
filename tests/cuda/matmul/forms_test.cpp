/// Tests of <interop/cuda/matmul.h>: products in every dtype, with factors, an addend, a bias, an activation and aux.
///
/// Run it under compute-sanitizer, too: form.h says what the arrays are.
#include <gtest/gtest.h>
#include <interop/cuda/driver.h>
#include <interop/cuda/matmul.h>
#include <interop/error.h>

#include <array>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "cuda/device.h"
#include "cuda/matmul/cublas.h"
#include "cuda/matmul/form.h"

using namespace interop;
using namespace interop::cuda;
using namespace interop::tests;

namespace {

// ---- dtypes, and what is for each ----

constexpr DLDataType dtype(DLDataTypeCode code, int bits) {
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1};
}
constexpr DLDataType kHalf = dtype(kDLFloat, 16), kComplex64 = dtype(kDLComplex, 64),
                     kComplex128 = dtype(kDLComplex, 128), kE4M3 = dtype(kDLFloat8_e4m3fn, 8),
                     kE5M2 = dtype(kDLFloat8_e5m2, 8), kInt8 = dtype(kDLInt, 8), kInt16 = dtype(kDLInt, 16),
                     kInt32 = dtype(kDLInt, 32), kInt64 = dtype(kDLInt, 64), kUint8 = dtype(kDLUInt, 8),
                     kUint16 = dtype(kDLUInt, 16), kUint32 = dtype(kDLUInt, 32), kUint64 = dtype(kDLUInt, 64),
                     kBool = dtype(kDLBool, 8);

const Dtypes kAll[] = {
    {kBool, kBool, kBool},
    {kInt8, kInt8, kInt8},
    {kUint8, kUint8, kUint8},
    {kInt16, kInt16, kInt16},
    {kUint16, kUint16, kUint16},
    {kInt32, kInt32, kInt32},
    {kUint32, kUint32, kUint32},
    {kInt64, kInt64, kInt64},
    {kUint64, kUint64, kUint64},
    {kHalf, kHalf, kHalf},
    {kBfloat16, kBfloat16, kBfloat16},
    {kFloat32, kFloat32, kFloat32},
    {kFloat64, kFloat64, kFloat64},
    {kComplex64, kComplex64, kComplex64},
    {kComplex128, kComplex128, kComplex128},
    {kInt8, kInt8, kInt32},
    {kInt8, kUint8, kInt16},
    {kBool, kInt8, kInt8},
    {kInt16, kUint16, kInt32},
    {kHalf, kHalf, kFloat32},
    {kBfloat16, kBfloat16, kFloat32},
    {kHalf, kBfloat16, kFloat32},
    {kE4M3, kE4M3, kBfloat16},
    {kE5M2, kE4M3, kHalf},
    {kE4M3, kE5M2, kFloat32},
    {kE5M2, kE5M2, kFloat32},
};

bool has_cublas_product(const Dtypes& t) {
  const bool is_float = t.a.code == kDLFloat || t.a.code == kDLBfloat || t.a.code == kDLComplex;
  return is_float && t.a == t.b;
}
bool has_terms(const Dtypes& t) { return t.out.code != kDLBool; }
bool has_activation(const Dtypes& t) { return t.out.code == kDLFloat || t.out.code == kDLBfloat; }
/// Does cuBLASLt add a bias, and apply relu?
bool has_epilogue(const Dtypes& t) { return has_cublas_product(t) && t.out.bits <= 32 && t.a.code != kDLComplex; }

// ---- the tests: of each dtype, by each backend ----

using Parameter = std::tuple<Dtypes, MatmulBackend>;

std::string name(const ::testing::TestParamInfo<Parameter>& info) {
  const auto& [t, backend] = info.param;
  return dtype_name(t.a) + "_" + dtype_name(t.b) + "_to_" + dtype_name(t.out) +
         (backend == MatmulBackend::tiled ? "_tiled" : "_cublas");
}

class Forms : public DeviceTest, public ::testing::WithParamInterface<Parameter> {
 protected:
  const Dtypes t = std::get<Dtypes>(GetParam());

  void SetUp() override {
    if (is_cublas_) interop::tests::require_cublas();
  }
  void TearDown() override {
    DeviceTest::TearDown();
    if (computed_ == 0 && !IsSkipped() && !HasFailure()) GTEST_SKIP() << "cuBLASLt has no such product";
  }

  /// Computes and compares one case, unless cuBLASLt says that it has no such product. `is_blas`: must it have it?
  void check(const Case& x, bool is_blas = false) {
    SCOPED_TRACE(text(x));
    bool is_served = false;
    EXPECT_NO_THROW(is_served = compute_and_compare(x));
    if (is_cublas_ && is_blas) {
      EXPECT_TRUE(is_served);
    }
    computed_ += is_served;
  }

 private:
  bool compute_and_compare(const Case& x) {
    Arrays arrays(x, random_);
    const Gemm gemm = gemm_of(x, arrays);
    const MatmulOptions options{std::get<MatmulBackend>(GetParam())};
    MatmulPlan plan;
    try {
      plan = plan_matmul(gemm, options);
    } catch (const ValueError& error) {
      if (is_cublas_ && std::strstr(error.what(), "cannot take this product")) return false;
      throw;
    }
    EXPECT_LE(plan.workspace_bytes, largest_workspace(gemm, options));
    if (x.in_parts && !is_cublas_) {
      EXPECT_TRUE(is_in_parts(gemm, plan)) << describe(gemm, plan);
    }
    void* const workspace = plan.workspace_bytes ? allocate(plan.workspace_bytes, own_stream()) : nullptr;
    if (workspace) check_cuda(cudaMemsetAsync(workspace, 0xFF, plan.workspace_bytes, own_stream()), "cudaMemsetAsync");
    launch_matmul(gemm, plan, workspace, own_stream());
    if (workspace) release(workspace, 0, own_stream());
    synchronize(own_stream());
    compute(x, arrays);
    // Every byte: the elements, and what lies between them.
    const bool right = arrays.c.matches();
    EXPECT_TRUE(right && (!x.aux || arrays.aux.matches())) << (right ? "aux" : "c") << " is wrong";
    return true;
  }
  static bool is_in_parts(const Gemm& gemm, const MatmulPlan& plan) {
    const std::string algorithm = describe(gemm, plan);
    const bool is_divided = algorithm.find(", split-k ") != std::string::npos;
    return plan.workspace_bytes > 0 && (is_divided || algorithm.find("packed first") != std::string::npos);
  }

  const bool is_cublas_ = std::get<MatmulBackend>(GetParam()) == MatmulBackend::cublas;
  std::mt19937 random_{20261128};
  int computed_ = 0;
};

/// All dtypes that `is_one` is true of, by both backends.
template <typename Predicate>
auto of_dtypes(Predicate is_one) {
  std::vector<Dtypes> list;
  for (const Dtypes& t : kAll) {
    if (is_one(t)) list.push_back(t);
  }
  return ::testing::Combine(::testing::ValuesIn(list), ::testing::Values(MatmulBackend::tiled, MatmulBackend::cublas));
}

struct Products : Forms {};
INSTANTIATE_TEST_SUITE_P(, Products, of_dtypes([](const Dtypes&) { return true; }), name);

// k is short: the sums of small integers are to be exact in bfloat16.
TEST_P(Products, OfEveryLayout) {
  for (int a = 0; a < kOrders; ++a) {
    for (int b = 0; b < kOrders; ++b) {
      const int c = (a * 3 + b) % kOrders;
      const bool is_blas = a <= kPadded && b <= kPadded && c <= kPadded;
      check({t, 37, 45, 19, a, b, c}, has_cublas_product(t) && is_blas);
    }
  }
}

TEST_P(Products, OfManySizesAndABatch) {
  for (const auto& s : {std::array<int64_t, 3>{1, 1, 1}, {1, 70, 30}, {70, 1, 30}, {130, 131, 33}, {256, 192, 40}}) {
    check({t, s[0], s[1], s[2]}, has_cublas_product(t));
    check({t, s[0], s[1], s[2], kColumns, kRows, kColumns, 3}, has_cublas_product(t));
  }
}

struct IntegerProducts : Forms {};
INSTANTIATE_TEST_SUITE_P(, IntegerProducts,
                         of_dtypes([](const Dtypes& t) { return t.a.code == kDLInt || t.a.code == kDLUInt; }), name);

TEST_P(IntegerProducts, WrapAround) { check({t, 20, 20, 700}); }

struct ComplexProducts : Forms {};
INSTANTIATE_TEST_SUITE_P(, ComplexProducts, of_dtypes([](const Dtypes& t) { return t.a.code == kDLComplex; }), name);

TEST_P(ComplexProducts, OfConjugates) {
  for (int a = 0; a < kOrders; ++a) {
    for (int b = 0; b < kOrders; ++b) {
      for (int which = 1; which < 4; ++which) {
        Case x{t, 40, 30, 20, a, b, (a + b) % kOrders};
        x.conjugates_a = which & 1;
        x.conjugates_b = which & 2;
        check(x);
      }
    }
  }
}

// ---- what a product is put through ----

struct Terms : Forms {
  /// A product for each order of c, alone and in a batch, to be changed.
  std::vector<Case> cases() const {
    std::vector<Case> list;
    for (const int c : {kRows, kColumns, kStrided}) {
      for (const int64_t batch : {1, 2}) list.push_back({t, 64, 80, 16, kRows, kRows, c, batch});
    }
    return list;
  }
  bool is_blas(const Case& x) const { return has_cublas_product(t) && x.c != kStrided; }
  /// The bias that cuBLASLt adds: one value for each row of what it takes for columns.
  static int bias_along(const Case& x) { return x.c == kColumns ? 2 : 1; }
};
INSTANTIATE_TEST_SUITE_P(, Terms, of_dtypes(has_terms), name);

TEST_P(Terms, AreFactorsAndAnAddend) {
  for (Case x : cases()) {
    x.scales = true;
    check(x, is_blas(x));
    x.adds = true;
    check(x, is_blas(x));
    x.scales = false;
    x.in_place = true;
    check(x, is_blas(x));
  }
}

TEST_P(Terms, AreABias) {
  for (Case x : cases()) {
    x.bias = bias_along(x);
    check(x, is_blas(x) && has_epilogue(t));
    x.bias = 3 - x.bias;
    check(x);
  }
}

TEST_P(Terms, AreABiasAndAnAddendInPlace) {
  for (Case x : cases()) {
    x.adds = x.in_place = true;
    x.bias = bias_along(x);
    check(x);
  }
}

struct Activations : Terms {};
INSTANTIATE_TEST_SUITE_P(, Activations, of_dtypes(has_activation), name);

TEST_P(Activations, FollowABias) {
  for (Case x : cases()) {
    x.bias = bias_along(x);
    x.activation = Activation::relu;
    check(x, is_blas(x) && has_epilogue(t));
  }
}

TEST_P(Activations, FollowAllTermsAndAux) {
  for (Case x : cases()) {
    x.bias = bias_along(x);
    x.activation = Activation::relu;
    x.aux = x.scales = x.adds = true;
    check(x);
  }
}

// ---- k in parts, most of which leave a rest ----

/// Few outputs and a long k.
Case long_case(const Dtypes& t, int64_t k) {
  Case x{t, 20, 18, k, kRows, k == 2051 ? kColumns : kRows, k == 4099 ? kColumns : kRows};
  x.in_parts = true;
  return x;
}

/// A batch of them, conjugated where they are complex.
Case long_batch(const Dtypes& t, bool conjugates_b) {
  Case x = long_case(t, 2051);
  x.batch = 2;
  x.conjugates_a = t.a.code == kDLComplex;
  x.conjugates_b = conjugates_b && x.conjugates_a;
  return x;
}

TEST_P(Products, OfALongKAreDivided) {
  for (const int64_t k : {2048, 2051, 4099}) check(long_case(t, k));
  check(long_batch(t, false));
}

TEST_P(Terms, FollowADividedK) {
  Case x = long_batch(t, true);
  x.scales = x.adds = true;
  x.bias = 2;
  check(x);
}

TEST_P(Activations, FollowADividedK) {
  Case x = long_batch(t, true);
  x.scales = x.adds = x.aux = true;
  x.bias = 2;
  x.activation = Activation::relu;
  check(x);
}

}  // namespace
