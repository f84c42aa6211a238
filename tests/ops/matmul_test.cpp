/// Tests of ops/matmul.h, as a C++ program uses it.
#include "ops/matmul.h"

#include <gtest/gtest.h>
#include <interop/error.h>

#include "base/layout.h"
#include "base/throws.h"

namespace {

using namespace interop;
using interop::tests::Layout;
using interop::tests::throws;

constexpr DLDataType kE4M3{kDLFloat8_e4m3fn, 8, 1}, kInt32{kDLInt, 32, 1};

/// A stack of matrices by one matrix.
struct Product : ::testing::Test {
  const Layout a{{5, 2, 3}}, b{{3, 4}}, c{{5, 2, 4}};
};

TEST_F(Product, HasTheShapeAndDtypeOfNumPys) {
  const ops::MatmulResult result = ops::matmul_result(a.tensor, b.tensor, kFloat32);
  EXPECT_EQ(shape_text(result.shape), "(5, 2, 4)");
  EXPECT_EQ(dtype_name(result.dtype), "float32");
}

TEST_F(Product, IsPlannedAsOneGemm) {
  const Gemm gemm = ops::plan_matmul(a.tensor, b.tensor, c.tensor);
  EXPECT_EQ(gemm.k, 3);
  EXPECT_EQ(gemm.n, 4);
}

TEST_F(Product, ComputesEveryRow) {
  const Gemm gemm = ops::plan_matmul(a.tensor, b.tensor, c.tensor);
  int64_t rows = gemm.m;
  for (int i = 0; i < gemm.batch_ndim; ++i) rows *= gemm.batch[i].size;
  EXPECT_EQ(rows, 10);
}

TEST(MatmulResult, RefusesShapesThatDoNotFit) {
  const Layout x({2, 2}), y({4, 3});
  EXPECT_TRUE(throws<ValueError>("(4, 3)", [&] { ops::matmul_result(x.tensor, y.tensor, kFloat32); }));
}

TEST(CheckMatmulDtypes, RefusesFloat8BesideOthers) {
  EXPECT_TRUE(throws<TypeError>("float8", [] { ops::check_matmul_dtypes(kFloat32, kE4M3); }));
}

TEST(CheckTerms, RefusesAnActivationOfIntegers) {
  ops::MatmulTerms terms;
  terms.activation = Activation::relu;
  Shape shape;
  shape.ndim = 2;
  shape.sizes[0] = shape.sizes[1] = 2;
  EXPECT_TRUE(throws<TypeError>("epilogue", [&] { ops::check_terms(terms, shape, 2, kInt32); }));
}

TEST(ReadsMatmul, TakesOperandsOfOneDtype) {
  EXPECT_TRUE(ops::reads_matmul(kFloat32, kFloat32, kFloat32));
  EXPECT_FALSE(ops::reads_matmul(kInt32, kFloat32, kFloat32));
}

}  // namespace
