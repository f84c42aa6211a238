/// Tests of cuda/matmul/mma/wide.h, of its TF32; tests/gpu/test_matmul_mma_wide_gpu.py has float64 and complex128.
#include "cuda/matmul/mma/wide.h"

#include <gtest/gtest.h>

#include "cuda/matmul/tensor_cores.cuh"

using namespace interop;
using namespace interop::cuda;
using namespace interop::tests;

namespace {

constexpr char kNeeds[] = "needs compute capability 8.0";

struct MmaWide : TensorCores {
  void SetUp() override {
    if (compute_capability() < 80) GTEST_SKIP() << kNeeds;
  }
};
INSTANTIATE_TEST_SUITE_P(Tf32, MmaWide, ::testing::ValuesIn(groups_of_float32()), group_name);

TEST_P(MmaWide, Computes) { check_all({MatmulPrecision::tf32, true}); }

struct MmaWideServes : ::testing::Test {
  void SetUp() override {
    if (compute_capability() < 80) GTEST_SKIP() << kNeeds;
  }
};

bool serves(MatmulPrecision precision, DLDataType dtype, DLDataType out_dtype) {
  Gemm g;
  g.dtype = g.b_dtype = dtype;
  g.out_dtype = out_dtype;
  g.m = g.n = g.k = 64;
  g.a_strides = g.b_strides = {130, -2};
  return mma_wide::serves(g, precision, Device());
}

TEST_F(MmaWideServes, Tf32OfFloat32) {
  EXPECT_TRUE(serves(MatmulPrecision::tf32, kFloat32, kFloat32));
  EXPECT_FALSE(serves(MatmulPrecision::exact, kFloat32, kFloat32));
  EXPECT_FALSE(serves(MatmulPrecision::tf32x3, kFloat32, kFloat32));
  EXPECT_FALSE(serves(MatmulPrecision::tf32, kFloat32, kFloat64)) << "a float64 result of float32";
}

TEST_F(MmaWideServes, ExactFloat64) {
  EXPECT_TRUE(serves(MatmulPrecision::exact, kFloat64, kFloat64));
  EXPECT_FALSE(serves(MatmulPrecision::tf32, kFloat64, kFloat64));
}

}  // namespace
