/// Tests of cuda/matmul/wgmma/wgmma.h.
#include "cuda/matmul/wgmma/wgmma.h"

#include <gtest/gtest.h>

#include <optional>

#include "cuda/matmul/tensor_cores.cuh"

using namespace interop;
using namespace interop::cuda;
using namespace interop::tests;

namespace {

constexpr char kNeeds[] = "needs compute capability 9.0";

// ---- products, by every variant ----

struct Wgmma : TensorCores {
  void SetUp() override {
    if (compute_capability() != 90) GTEST_SKIP() << kNeeds;
  }
};
struct WgmmaTf32 : Wgmma {};
struct WgmmaTf32x3 : Wgmma {};

INSTANTIATE_TEST_SUITE_P(, Wgmma, ::testing::ValuesIn(groups_of_16_bits()), group_name);
INSTANTIATE_TEST_SUITE_P(, WgmmaTf32, ::testing::ValuesIn(groups_of_float32()), group_name);
INSTANTIATE_TEST_SUITE_P(, WgmmaTf32x3, ::testing::ValuesIn(groups_of_float32()), group_name);

TEST_P(Wgmma, Computes) { check_all({MatmulPrecision::exact}); }
TEST_P(WgmmaTf32, Computes) { check_all({MatmulPrecision::tf32}); }
TEST_P(WgmmaTf32x3, Computes) { check_all({MatmulPrecision::tf32x3}); }

// ---- plans: what is served, and what is packed first ----

struct WgmmaPlan : ::testing::Test {
  void SetUp() override {
    if (compute_capability() != 90) GTEST_SKIP() << kNeeds;
  }
};
struct WgmmaTf32Plan : WgmmaPlan {};

/// What is packed of a product of 64 x 64 matrices, once changed: nothing (0), a (1), b (2), or both (3). -1: it is not
/// served.
int packed(const std::optional<MatmulPlan>& plan) { return plan ? plan->packs_a + 2 * plan->packs_b : -1; }

Gemm square(DLDataType dtype) {
  Gemm g;
  g.dtype = g.b_dtype = g.out_dtype = dtype;
  g.m = g.n = g.k = 64;
  g.a = g.b = reinterpret_cast<void*>(4096);
  g.c = reinterpret_cast<void*>(8192);
  g.a_strides = g.b_strides = g.c_strides = {64, 1};
  return g;
}

constexpr std::size_t kMost = std::size_t{1} << 20;

/// Of bfloat16, in rows.
template <typename Change>
int packs(Change change) {
  Gemm g = square(kBfloat16);
  change(g);
  return packed(wgmma::plan(g, MatmulPrecision::exact, kMost, Device()));
}

/// Of float32, a in rows and b in columns.
template <typename Change>
std::optional<MatmulPlan> plan_float32(MatmulPrecision precision, Change change) {
  Gemm g = square(kFloat32);
  g.b_strides = {1, 64};
  change(g);
  return wgmma::plan(g, precision, kMost, Device());
}

template <typename Change>
int packs_tf32(Change change) {
  return packed(plan_float32(MatmulPrecision::tf32, change));
}

TEST_F(WgmmaPlan, ReadsAlignedRowsAsTheyAre) {
  EXPECT_EQ(packs([](Gemm&) {}), 0);
  EXPECT_EQ(packs([](Gemm& g) { g.out_dtype = kFloat32; }), 0);
}

TEST_F(WgmmaPlan, LeavesOtherDtypesToOtherKernels) {
  EXPECT_EQ(packs([](Gemm& g) { g.dtype = g.b_dtype = g.out_dtype = kFloat32; }), -1);
  EXPECT_EQ(packs([](Gemm& g) { g.out_dtype = kFloat16; }), -1) << "a float16 result of bfloat16";
  EXPECT_EQ(packs([](Gemm& g) { g.b_dtype = kFloat16; }), -1) << "float16 beside bfloat16";
}

TEST_F(WgmmaPlan, LeavesEmptySumsToOtherKernels) {
  EXPECT_EQ(packs([](Gemm& g) { g.k = 0; }), -1);
}

TEST_F(WgmmaPlan, PacksWhatTmaCannotRead) {
  EXPECT_EQ(packs([](Gemm& g) { g.a_strides = {65, 1}; }), 1) << "odd rows";
  EXPECT_EQ(packs([](Gemm& g) { g.a_strides = {-64, 1}; }), 1) << "rows backwards";
  EXPECT_EQ(packs([](Gemm& g) { g.a_strides = {0, 1}; }), 1) << "one row for all";
  EXPECT_EQ(packs([](Gemm& g) { g.b_strides = {128, 2}; }), 2) << "no unit stride";
  EXPECT_EQ(packs([](Gemm& g) { g.a = reinterpret_cast<void*>(4098); }), 1) << "not aligned";
}

TEST_F(WgmmaPlan, PacksABackwardsBatchAndReadsABroadcastOne) {
  EXPECT_EQ(packs([](Gemm& g) {
              g.batch_ndim = 1;
              g.batch[0] = {2, 4096, -4096, 4096, 0, 0};
            }),
            2);
  EXPECT_EQ(packs([](Gemm& g) {
              g.batch_ndim = 1;
              g.batch[0] = {2, 4096, 0, 4096, 0, 0};
            }),
            0);
}

TEST_F(WgmmaTf32Plan, ReadsRowsAndColumns) {
  EXPECT_EQ(packs_tf32([](Gemm&) {}), 0) << "aligned rows of k";
  EXPECT_EQ(packs_tf32([](Gemm& g) { g.a_strides = {1, 64}; }), 0) << "columns of a";
  EXPECT_EQ(packs_tf32([](Gemm& g) { g.b_strides = {64, 1}; }), 0) << "rows of b";
}

TEST_F(WgmmaTf32Plan, PacksTheSmallerWhereKIsTheUnitStrideOfNeither) {
  const auto neither = [](Gemm& g) { g.a_strides = {1, 64}, g.b_strides = {64, 1}; };
  EXPECT_EQ(packs_tf32(neither), 2);
  EXPECT_EQ(packs_tf32([&](Gemm& g) { neither(g), g.m = 32; }), 1);
}

TEST_F(WgmmaTf32Plan, PacksWhatTmaCannotRead) {
  EXPECT_EQ(packs_tf32([](Gemm& g) { g.a_strides = {66, 1}, g.b_strides = {64, 1}; }), 1) << "odd rows of a, not b";
  EXPECT_EQ(packs_tf32([](Gemm& g) { g.a = reinterpret_cast<void*>(4100); }), 1) << "not aligned";
  EXPECT_EQ(packs_tf32([](Gemm& g) { g.b_strides = {1, -64}; }), 2) << "backwards";
  EXPECT_EQ(packs_tf32([](Gemm& g) { g.a_strides = {0, 1}; }), 1) << "one row for all";
}

TEST_F(WgmmaTf32Plan, IsOfFloat32WithSomethingToAddUp) {
  EXPECT_EQ(packs_tf32([](Gemm& g) { g.dtype = g.b_dtype = kBfloat16; }), -1);
  EXPECT_EQ(packs_tf32([](Gemm& g) { g.k = 0; }), -1);
  EXPECT_FALSE(plan_float32(MatmulPrecision::exact, [](Gemm&) {})) << "exact is exact";
}

TEST_F(WgmmaTf32Plan, PacksBothInTwoForThreeProducts) {
  const std::optional<MatmulPlan> plan = plan_float32(MatmulPrecision::tf32x3, [](Gemm&) {});
  EXPECT_TRUE(plan && plan->packs_a && plan->packs_b && plan->workspace_bytes == 2 * 2 * 64 * 64 * 4);
}

TEST_F(WgmmaTf32Plan, PacksNoMoreThanIsAllowed) {
  const auto large = [](Gemm& g) { g.m = g.n = g.k = 512, g.a_strides = {512, 1}, g.b_strides = {512, 1}; };
  EXPECT_FALSE(plan_float32(MatmulPrecision::tf32x3, large));
}

}  // namespace
