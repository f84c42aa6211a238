/// Tests of launch_arange of <interop/cuda/elementwise.h>: every element against the formula, and none beyond.
#include <gtest/gtest.h>
#include <interop/cuda/elementwise.h>

#include <cstring>
#include <type_traits>
#include <vector>

#include "cuda/device.h"

using namespace interop;
using interop::tests::DeviceMemory;
using interop::tests::DeviceTest;

namespace {

template <typename T>
ScalarValue value_of(T x) {
  ScalarValue value{};
  std::memcpy(value.bytes, &x, sizeof x);
  return value;
}

template <typename T>
DLDataType dtype_of() {
  const auto code = std::is_floating_point_v<T> ? kDLFloat : std::is_signed_v<T> ? kDLInt : kDLUInt;
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(8 * sizeof(T)), 1};
}

/// The product is kept in memory, so that no compiler fuses it with the sum.
template <typename T>
T expected(T first, T second, int64_t i) {
  if (i == 0) return first;
  if (i == 1) return second;
  if constexpr (std::is_integral_v<T>) {
    const auto start = static_cast<uint64_t>(first);
    return static_cast<T>(start + static_cast<uint64_t>(i) * (static_cast<uint64_t>(second) - start));
  } else {
    const volatile T product = static_cast<T>(i) * (second - first);
    return first + product;
  }
}

template <typename T>
struct Arange : DeviceTest {
  static void check(T first, T second) {
    for (const int64_t count : {0, 1, 2, 3, 255, 257, 65535 * 256 + 77}) {
      const DeviceMemory memory(static_cast<size_t>(count) * sizeof(T));
      cuda::launch_arange(memory.data(), count, dtype_of<T>(), value_of(first), value_of(second), nullptr);
      std::vector<T> got(static_cast<size_t>(count));
      memory.download(got.data());
      int64_t wrong = 0;
      for (int64_t i = 0; i < count; ++i) wrong += got[i] != expected(first, second, i);
      EXPECT_EQ(wrong, 0) << "of " << count;
    }
  }
};

using Types = ::testing::Types<int8_t, uint16_t, int32_t, int64_t, uint64_t, float, double>;
TYPED_TEST_SUITE(Arange, Types);

TYPED_TEST(Arange, IsTheFormula) {
  this->check(static_cast<TypeParam>(7), static_cast<TypeParam>(10));
  this->check(static_cast<TypeParam>(0.1), static_cast<TypeParam>(0.3));
  if (std::is_signed_v<TypeParam>) this->check(static_cast<TypeParam>(5), static_cast<TypeParam>(-2));
}

}  // namespace
