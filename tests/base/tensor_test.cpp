/// Tests of <interop/tensor.h>.
#include <gtest/gtest.h>
#include <interop/tensor.h>

#include <vector>

#include "base/layout.h"

namespace {

using namespace interop;
using interop::tests::Layout;

constexpr int64_t kLarge = int64_t{1} << 40;

TEST(DtypeName, IsNumPys) {
  EXPECT_EQ(dtype_name(kFloat32), "float32");
  EXPECT_EQ(dtype_name(kBfloat16), "bfloat16");
  EXPECT_EQ(dtype_name({kDLBool, 8, 1}), "bool");
  EXPECT_EQ(dtype_name({kDLUInt, 16, 1}), "uint16");
  EXPECT_EQ(dtype_name({kDLComplex, 64, 1}), "complex64");
  EXPECT_EQ(dtype_name({kDLFloat8_e4m3fn, 8, 1}), "float8_e4m3fn");
}

TEST(DtypeName, ShowsTheNumbersOfAnUnknownDtype) {
  EXPECT_EQ(dtype_name({99, 8, 1}), "dtype(code=99, bits=8, lanes=1)");
  EXPECT_EQ(dtype_name({kDLFloat, 32, 4}), "dtype(code=2, bits=32, lanes=4)");
}

TEST(ShapeText, IsThatOfAPythonTuple) {
  EXPECT_EQ(shape_text(Layout({2, 3}).tensor), "(2, 3)");
  EXPECT_EQ(shape_text(Layout({4}).tensor), "(4,)");
  EXPECT_EQ(shape_text(Layout({}).tensor), "()");
}

TEST(DeviceText, NamesTheDevice) {
  EXPECT_EQ(device_text({kDLCPU, 0}), "cpu");
  EXPECT_EQ(device_text({kDLCUDA, 1}), "cuda:1");
  EXPECT_EQ(device_text({kDLCUDAHost, 0}), "pinned host memory");
}

TEST(Shape, CopiesItsSizes) {
  Shape shape;
  shape.ndim = 2;
  shape.sizes[0] = 5, shape.sizes[1] = 7;
  const Shape copy = shape;
  EXPECT_EQ(shape_text(copy), "(5, 7)");
}

TEST(ItemBytes, CountsLanesAndRoundsUp) {
  EXPECT_EQ(item_bytes(kFloat64), 8);
  EXPECT_EQ(item_bytes({kDLFloat, 32, 4}), 16);
  EXPECT_EQ(item_bytes({kDLInt, 4, 1}), 1);
}

TEST(ElementCount, IsOneOfAScalarAndNoneOfAnEmptyShape) {
  EXPECT_EQ(element_count(Layout({}).tensor), 1);
  EXPECT_EQ(element_count(Layout({3, 0, 2}).tensor), 0);
  EXPECT_EQ(element_count(Layout({3, 4}).tensor), 12);
}

TEST(IsBeyondCounting, LooksAtBytesAndPassesOverZeros) {
  EXPECT_FALSE(is_beyond_counting(Layout({kLarge}).tensor));
  EXPECT_TRUE(is_beyond_counting(Layout({kLarge, kLarge}).tensor));
  EXPECT_TRUE(is_beyond_counting(Layout({kLarge, 0, kLarge}).tensor));
  EXPECT_FALSE(is_beyond_counting(Layout({int64_t{1} << 61}, {kDLInt, 8, 1}).tensor));
  EXPECT_TRUE(is_beyond_counting(Layout({int64_t{1} << 61}, kFloat32).tensor));
}

TEST(CompactStrides, AreRowMajor) {
  EXPECT_EQ(Layout({2, 3, 4}).strides, (std::vector<int64_t>{12, 4, 1}));
  EXPECT_EQ(Layout({2, 0, 4}).strides, (std::vector<int64_t>{4, 4, 1}));
}

TEST(IsCompact, TellsRowsFromColumns) {
  const Layout rows({2, 3}), columns({2, 3}, kFloat32, {1, 2});
  EXPECT_TRUE(is_compact(rows.tensor));
  EXPECT_FALSE(is_compact_backwards(rows.tensor));
  EXPECT_FALSE(is_compact(columns.tensor));
  EXPECT_TRUE(is_compact_backwards(columns.tensor));
}

TEST(IsCompact, PassesOverStridesThatNameNoElement) {
  EXPECT_TRUE(is_compact(Layout({1, 3}, kFloat32, {99, 1}).tensor));
  EXPECT_TRUE(is_compact(Layout({0, 3}, kFloat32, {7, 7}).tensor));
  EXPECT_FALSE(is_compact(Layout({2, 3}, kFloat32, {4, 1}).tensor));
}

TEST(ByteRange, HoldsElementsOfNegativeStrides) {
  Layout backwards({4}, kFloat32, {-1});
  backwards.tensor.data = reinterpret_cast<void*>(1000);
  const ByteRange range = byte_range(backwards.tensor);
  EXPECT_EQ(range.begin, 1000u - 12);
  EXPECT_EQ(range.end, 1000u + 4);
}

TEST(ByteRange, OfAnEmptyTensorMeetsNothing) {
  Layout empty({0, 4}), full({8});
  empty.tensor.data = full.tensor.data = reinterpret_cast<void*>(1000);
  EXPECT_FALSE(ranges_meet(byte_range(empty.tensor), byte_range(full.tensor)));
}

TEST(RangesMeet, WhereTheyShareAByte) {
  EXPECT_TRUE(ranges_meet({0, 8}, {7, 9}));
  EXPECT_FALSE(ranges_meet({0, 8}, {8, 9}));
}

TEST(MayOverlapItself, OfBroadcastElementsAndOfWindows) {
  EXPECT_FALSE(may_overlap_itself(Layout({3, 4}, kFloat32, {-4, 1}).tensor));
  EXPECT_FALSE(may_overlap_itself(Layout({3, 4}, kFloat32, {1, 3}).tensor));
  EXPECT_TRUE(may_overlap_itself(Layout({3, 4}, kFloat32, {0, 1}).tensor));
  EXPECT_TRUE(may_overlap_itself(Layout({3, 4}, kFloat32, {1, 1}).tensor));
  EXPECT_FALSE(may_overlap_itself(Layout({1, 4}, kFloat32, {0, 1}).tensor));
}

TEST(DtypeKinds, TellIntegersFloatsAndWhatIsServed) {
  EXPECT_TRUE(is_integral({kDLBool, 8, 1}));
  EXPECT_FALSE(is_integral(kFloat32));
  EXPECT_TRUE(is_float(kBfloat16));
  EXPECT_FALSE(is_float({kDLComplex, 64, 1}));
  EXPECT_TRUE(is_served({kDLComplex, 128, 1}));
  EXPECT_FALSE(is_served({kDLFloat8_e5m2, 8, 1}));
  EXPECT_FALSE(is_served({kDLFloat, 32, 2}));
  EXPECT_FALSE(is_served({kDLInt, 4, 1}));
}

}  // namespace
