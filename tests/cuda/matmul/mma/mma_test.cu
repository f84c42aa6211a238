/// Tests of cuda/matmul/mma/mma.h.
#include "cuda/matmul/mma/mma.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "cuda/matmul/tensor_cores.cuh"

using namespace interop;
using namespace interop::cuda;
using namespace interop::tests;

namespace {

constexpr char kNeeds[] = "needs compute capability 8.0";

// ---- products, by every variant ----

/// One step, one k tile, all stages.
Cases small_tiles() {
  Cases add;
  add(64, 64, 16);
  add(64, 64, 32);
  add(128, 128, 64);
  add(128, 128, 96);
  return add;
}

Cases what_tma_cannot_read() {
  Cases add;
  for (const auto& [m, n, k] : {std::tuple{64, 64, 32}, {302, 522, 202}, {130, 66, 1030}}) {
    add(m, n, k, [](Case& x) { x.unaligned = 2; });
    add(m, n, k, [](Case& x) { x.unaligned = 2, x.a_pad = 2, x.b_pad = 4, x.dtype = kFloat16; });
  }
  add(300, 520, 200, [](Case& x) { x.unaligned = 2, x.batch = Batches{{3, true, true}, {2, false, true}}; });
  return add;
}

std::vector<Group> groups() {
  std::vector<Group> all{{"SmallTiles", small_tiles}, {"WhatTmaCannotRead", what_tma_cannot_read}};
  for (const Group& group : groups_of_16_bits()) all.push_back(group);
  return all;
}

struct Mma : TensorCores {
  void SetUp() override {
    if (compute_capability() < 80) GTEST_SKIP() << kNeeds;
  }
};
INSTANTIATE_TEST_SUITE_P(, Mma, ::testing::ValuesIn(groups()), group_name);

TEST_P(Mma, Computes) { check_all({MatmulPrecision::exact, true}); }

// ---- what is served ----

struct MmaServes : ::testing::Test {
  void SetUp() override {
    if (compute_capability() < 80) GTEST_SKIP() << kNeeds;
  }
};

/// Is a product of 64 x 64 matrices of bfloat16 served, once changed?
template <typename Change>
bool serves(Change change) {
  Gemm g;
  g.dtype = g.b_dtype = g.out_dtype = kBfloat16;
  g.m = g.n = g.k = 64;
  g.a = g.b = reinterpret_cast<void*>(4096);
  g.c = reinterpret_cast<void*>(8192);
  g.a_strides = g.b_strides = g.c_strides = {64, 1};
  change(g);
  return mma::serves(g, Device());
}

TEST_F(MmaServes, EvenStridesOfAnySign) {
  EXPECT_TRUE(serves([](Gemm&) {}));
  EXPECT_TRUE(serves([](Gemm& g) { g.a_strides = {-66, 1}, g.b_strides = {1, 0}; }));
  EXPECT_FALSE(serves([](Gemm& g) { g.a_strides = {65, 1}; })) << "odd rows";
  EXPECT_FALSE(serves([](Gemm& g) { g.b_strides = {128, 2}; })) << "no unit stride";
}

TEST_F(MmaServes, AddressesOf4Bytes) {
  EXPECT_TRUE(serves([](Gemm& g) { g.a = reinterpret_cast<void*>(4100); }));
  EXPECT_FALSE(serves([](Gemm& g) { g.a = reinterpret_cast<void*>(4098); }));
}

TEST_F(MmaServes, TwoOperandsOfOneDtypeOf16Bits) {
  EXPECT_FALSE(serves([](Gemm& g) { g.dtype = g.b_dtype = g.out_dtype = kFloat32; }));
  EXPECT_FALSE(serves([](Gemm& g) { g.b_dtype = kFloat16; }));
}

TEST_F(MmaServes, NoEmptySums) {
  EXPECT_FALSE(serves([](Gemm& g) { g.k = 0; }));
}

}  // namespace
