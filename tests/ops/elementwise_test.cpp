/// Tests of ops/elementwise.h, as a C++ program uses it.
#include "ops/elementwise.h"

#include <gtest/gtest.h>
#include <interop/error.h>

#include <string>

#include "base/layout.h"
#include "base/throws.h"

namespace {

using namespace interop;
using interop::tests::Layout;
using interop::tests::throws;

constexpr DLDataType kBool{kDLBool, 8, 1}, kInt8{kDLInt, 8, 1}, kInt64{kDLInt, 64, 1}, kUint8{kDLUInt, 8, 1},
    kUint32{kDLUInt, 32, 1}, kUint64{kDLUInt, 64, 1};

std::string compared_in(DLDataType a, DLDataType b) { return dtype_name(ops::comparison_dtype(a, b)); }

TEST(BroadcastShape, IsNumPys) {
  const Layout row({1, 4}), column({3, 1});
  const ops::NamedTensor inputs[] = {{"a", &row.tensor}, {"b", &column.tensor}};
  EXPECT_EQ(shape_text(ops::broadcast_shape("add", inputs, 2)), "(3, 4)");
}

TEST(BroadcastShape, RefusesShapesThatDoNotFit) {
  const Layout row({1, 4}), other({5});
  const ops::NamedTensor inputs[] = {{"a", &row.tensor}, {"b", &other.tensor}};
  EXPECT_TRUE(throws<ValueError>("(5,)", [&] { ops::broadcast_shape("add", inputs, 2); }));
}

TEST(ResultDtype, OfAComparisonIsBool) {
  EXPECT_EQ(dtype_name(ops::result_dtype("less", *find_operation("less"), kFloat32)), "bool");
}

TEST(ResultDtype, RefusesWhatHasNoMeaning) {
  const DLDataType complex64{kDLComplex, 64, 1};
  EXPECT_TRUE(throws<TypeError>("less", [&] { ops::result_dtype("less", *find_operation("less"), complex64); }));
  EXPECT_TRUE(throws<TypeError>("subtract", [] { ops::result_dtype("subtract", *find_operation("subtract"), kBool); }));
}

TEST(ComparisonDtype, IsTheWiderOfAKind) {
  EXPECT_EQ(compared_in(kInt8, kInt64), "int64");
  EXPECT_EQ(compared_in(kUint32, kUint8), "uint32");
}

TEST(ComparisonDtype, HoldsBothKinds) {
  EXPECT_EQ(compared_in(kInt8, kUint8), "int16");
  EXPECT_EQ(compared_in(kUint32, kInt8), "int64");
}

TEST(ComparisonDtype, TakesBoolAsAnyInteger) {
  EXPECT_EQ(compared_in(kBool, kUint8), "uint8");
  EXPECT_EQ(compared_in(kInt8, kBool), "int8");
}

TEST(ComparisonDtype, IsUint64WhereNoneHoldsBoth) {
  EXPECT_EQ(compared_in(kUint64, kInt8), "uint64");
  EXPECT_EQ(compared_in(kInt64, kUint64), "uint64");
}

TEST(PlanLoop, OfCompactArraysHasOneDimension) {
  Layout out({3, 4});
  DLTensor inputs[] = {out.tensor, out.tensor};
  Loop loop;
  ops::plan_loop(loop, out.tensor, inputs, 2);
  EXPECT_EQ(loop.ndim, 1);
  EXPECT_EQ(loop.sizes[0], 12);
  EXPECT_EQ(loop.layout, LayoutClass::contiguous);
}

TEST(PlanLoop, GivesBroadcastInputsStrideZero) {
  Layout out({3, 4}), row({1, 4});
  DLTensor inputs[] = {row.tensor};
  Loop loop;
  ops::plan_loop(loop, out.tensor, inputs, 1);
  EXPECT_EQ(loop.ndim, 2);
  EXPECT_EQ(loop.strides[1][0], 0);
  EXPECT_EQ(loop.strides[1][1], 1);
}

TEST(PlanLoop, BeginsAReversedOutputAtItsOtherEnd) {
  alignas(16) float memory[8];
  Layout out({8}, kFloat32, {-1}), in({8});
  out.tensor.data = memory + 7;
  in.tensor.data = memory;
  DLTensor inputs[] = {in.tensor};
  Loop loop;
  ops::plan_loop(loop, out.tensor, inputs, 1);
  EXPECT_EQ(out.tensor.data, memory);
  EXPECT_EQ(inputs[0].data, memory + 7);
  EXPECT_EQ(loop.strides[0][0], 1);
  EXPECT_EQ(loop.strides[1][0], -1);
}

}  // namespace
