/// Tests of <interop/gemm.h>.
#include <gtest/gtest.h>
#include <interop/gemm.h>

#include <cstring>

namespace {

using namespace interop;

ScalarValue float32_value(float x) {
  ScalarValue value{};
  std::memcpy(value.bytes, &x, sizeof x);
  return value;
}

/// A float32 product with an addend.
struct SetFactors : ::testing::Test {
  SetFactors() {
    gemm.out_dtype = kFloat32;
    gemm.k = 8;
    gemm.addend = &element;
  }
  float element = 0;
  Gemm gemm;
};

TEST_F(SetFactors, OfZeroMakesAnEmptySum) {
  set_factors(gemm, float32_value(0), float32_value(1));
  EXPECT_TRUE(gemm.k == 0 && gemm.addend);
}

TEST_F(SetFactors, OfZeroDropsTheAddend) {
  set_factors(gemm, float32_value(1), float32_value(0));
  EXPECT_TRUE(gemm.k == 8 && !gemm.addend);
}

TEST_F(SetFactors, KeepsTheOthers) {
  set_factors(gemm, float32_value(2), float32_value(3));
  EXPECT_TRUE(gemm.k == 8 && gemm.addend && gemm.scales);
  EXPECT_EQ(std::memcmp(gemm.beta.bytes, float32_value(3).bytes, sizeof(float)), 0);
}

TEST(FactorDtype, IsAsWideAsTheSums) {
  EXPECT_EQ(dtype_name(factor_dtype(kBfloat16)), "float32");
  EXPECT_EQ(dtype_name(factor_dtype(kFloat64)), "float64");
  EXPECT_EQ(dtype_name(factor_dtype({kDLInt, 8, 1})), "int32");
  EXPECT_EQ(dtype_name(factor_dtype({kDLUInt, 16, 1})), "uint32");
  EXPECT_EQ(dtype_name(factor_dtype({kDLInt, 64, 1})), "int64");
}

TEST(Gemm, CopiesTheBatchThatItHas) {
  Gemm gemm;
  gemm.m = 3;
  gemm.batch_ndim = 2;
  gemm.batch[0] = {2, 12, 0, 4, 0, 0};
  gemm.batch[1] = {5, 0, 7, 8, 0, 0};
  const Gemm copy = gemm;
  EXPECT_EQ(copy.m, 3);
  EXPECT_EQ(copy.batch_ndim, 2);
  EXPECT_EQ(copy.batch[1].b_stride, 7);
}

TEST(Gemm, IsPlainWithoutTerms) {
  Gemm gemm;
  EXPECT_TRUE(gemm.is_plain());
  gemm.activation = Activation::relu;
  EXPECT_FALSE(gemm.is_plain());
}

}  // namespace
