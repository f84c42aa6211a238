/// Tests of <interop/cuda/elementwise.h>: layouts, alignments and dtypes against a plain loop.
#include <gtest/gtest.h>
#include <interop/cuda/elementwise.h>
#include <interop/error.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/throws.h"
#include "cuda/device.h"
#include "ops/elementwise.h"

using namespace interop;
using interop::tests::DeviceMemory;
using interop::tests::DeviceTest;
using interop::tests::throws;

namespace {

using Op = ElementwiseOp;

/// bool, of which std::vector makes no bits.
struct Bool {
  bool value = false;
  Bool() = default;
  template <typename T>
  explicit Bool(T x) : value(x != 0) {}
  template <typename T>
  explicit operator T() const {
    return static_cast<T>(value);
  }
};

template <typename T>
DLDataType dtype_of() {
  const auto bits = static_cast<uint8_t>(sizeof(T) * 8);
  if (std::is_same_v<T, Bool>) return {kDLBool, 8, 1};
  if (std::is_floating_point_v<T>) return {kDLFloat, bits, 1};
  return {static_cast<uint8_t>(std::is_signed_v<T> ? kDLInt : kDLUInt), bits, 1};
}

// ---- arrays ----

/// How an array of a shape lies in memory: the order of its dimensions, what lies between them, where it begins.
struct Layout {
  const char* name;
  bool transposed = false;
  int64_t pad = 0;                  // elements after each row
  int64_t step = 1;                 // between neighbours; negative: reversed
  int64_t offset = 0;               // elements before the first
  std::vector<bool> repeated = {};  // dimensions of size 1, from the last
};

const Layout kLayouts[] = {
    {"compact"},
    {"offset", false, 0, 1, 1},
    {"offset 3", false, 0, 1, 3},
    {"padded", false, 3},
    {"every 2nd", false, 0, 2},
    {"reversed", false, 0, -1},
    {"transposed", true},
    {"transposed, padded", true, 5, 1, 2},
    {"one row", false, 0, 1, 0, {false, true}},
    {"one column", false, 0, 1, 1, {true}},
    {"one element", false, 0, 1, 0, {true, true, true}},
};
const Layout kOutputs[] = {{"compact"},
                           {"offset", false, 0, 1, 1},
                           {"padded", false, 3, 1, 5},
                           {"every 2nd", false, 0, 2},
                           {"reversed", false, 0, -1},
                           {"transposed", true}};
const std::vector<std::vector<int64_t>> kShapes = {
    {1}, {3}, {1023}, {4097}, {5, 7}, {33, 65}, {3, 70, 67}, {2, 3, 4, 5, 6, 7, 2}, {0, 4}, {4, 130}};

template <typename T>
T draw(std::mt19937& random) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(std::uniform_real_distribution<double>(-4, 4)(random));
  } else {
    return static_cast<T>(std::uniform_int_distribution<int>(-20, 20)(random));  // zeros among them
  }
}

/// An array in device memory of exactly its size, and the same on the host.
template <typename T>
class Array {
 public:
  Array(std::vector<int64_t> shape, const Layout& layout, std::mt19937& random)
      : shape_(std::move(shape)), strides_(shape_.size()) {
    const int ndim = static_cast<int>(shape_.size());
    for (int i = 0; i < ndim; ++i) {
      const size_t place = static_cast<size_t>(ndim - 1 - i);
      if (place < layout.repeated.size() && layout.repeated[place]) shape_[i] = 1;
    }
    const int64_t last = set_strides(layout);
    const bool is_empty = std::find(shape_.begin(), shape_.end(), 0) != shape_.end();
    first_ = layout.offset;
    if (!is_empty) host_.resize(first_ + last + 1);
    for (T& x : host_) x = draw<T>(random);
    if (layout.step < 0 && !is_empty) {
      first_ += (shape_[ndim - 1] - 1) * strides_[ndim - 1];
      strides_[ndim - 1] = -strides_[ndim - 1];
    }
    memory_.emplace(host_.size() * sizeof(T));
    memory_->upload(host_.data());
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  std::vector<T> download() const {
    std::vector<T> all(host_.size());
    memory_->download(all.data());
    return all;
  }
  DLTensor tensor() {
    T* const start = reinterpret_cast<T*>(memory_->data());
    return {start ? start + first_ : nullptr,
            {kDLCUDA, 0},
            static_cast<int32_t>(shape_.size()),
            dtype_of<T>(),
            shape_.data(),
            strides_.data(),
            0};
  }
  std::vector<T>& host() { return host_; }
  /// The place in host() of the element at a place of the broadcast shape.
  size_t place(const std::vector<int64_t>& at) const {
    int64_t place = first_;
    for (size_t i = 0; i < shape_.size(); ++i) place += shape_[i] == 1 ? 0 : at[i] * strides_[i];
    return static_cast<size_t>(place);
  }

 private:
  /// How far the last element is from the first.
  int64_t set_strides(const Layout& layout) {
    const int ndim = static_cast<int>(shape_.size());
    int64_t stride = std::abs(layout.step), last = 0;
    for (int i = ndim - 1; i >= 0; --i) {
      const int dim = layout.transposed ? ndim - 1 - i : i;
      strides_[dim] = stride;
      stride = stride * std::max<int64_t>(shape_[dim], 1) + (i == ndim - 1 ? layout.pad : 0);
      last += (shape_[dim] - 1) * strides_[dim];
    }
    return last;
  }

  std::vector<int64_t> shape_, strides_;
  std::vector<T> host_;
  int64_t first_ = 0;
  std::optional<DeviceMemory> memory_;
};

// ---- the plain loop ----

/// a % b of C++; 0 for floats, whose quotients are tested from Python.
template <typename T>
T rest(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return 0;
  } else {
    return static_cast<T>(a % b);
  }
}

/// The answer for one element, as Python has it.
template <typename T>
T answer(Op op, T a, T b) {
  using U = std::conditional_t<std::is_floating_point_v<T>, T, uint64_t>;  // wraps
  switch (op) {
    case Op::subtract:
      return static_cast<T>(static_cast<U>(a) - static_cast<U>(b));
    case Op::multiply:
      return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
    case Op::divide:
      return b == 0 ? T(7) : static_cast<T>(a / b);  // always with where_zero = 7
    case Op::minimum:
      return std::min(a, b);
    case Op::maximum:
      return std::max(a, b);
    case Op::negative:
      return static_cast<T>(-static_cast<U>(a));
    case Op::abs:
      return a < 0 ? static_cast<T>(-a) : a;
    case Op::floor_divide:
      return b == 0 ? T(0) : static_cast<T>(a / b - (rest(a, b) != 0 && (a < 0) != (b < 0)));
    case Op::remainder:
      return b == 0 ? T(0) : static_cast<T>(rest(a, b) != 0 && (a < 0) != (b < 0) ? rest(a, b) + b : rest(a, b));
    case Op::copy:
      return a;
    default:
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  }
}

template <typename T>
bool compared(Op op, T a, T b) {
  switch (op) {
    case Op::equal:
      return a == b;
    case Op::not_equal:
      return a != b;
    case Op::less:
      return a < b;
    case Op::less_equal:
      return a <= b;
    case Op::greater:
      return a > b;
    default:
      return a >= b;
  }
}

/// As Python compares integers: to C++, a negative one beside an unsigned one is large.
template <typename A, typename B>
bool compared_exactly(Op op, A a, B b) {
  const bool a_negative = std::is_signed_v<A> && a < A(0), b_negative = std::is_signed_v<B> && b < B(0);
  if (a_negative != b_negative) return compared<int>(op, b_negative, a_negative);
  return compared(op, static_cast<uint64_t>(a), static_cast<uint64_t>(b));
}

bool gives_bool(Op op) { return op >= Op::equal && op <= Op::greater_equal; }
bool is_unary(Op op) { return op == Op::copy || op == Op::negative || op == Op::abs; }

/// What the operation gives for one pair of elements in memory.
template <typename T, typename O, typename A, typename B>
O expected(Op op, A first, B second) {
  if constexpr (std::is_same_v<T, uint64_t> && std::is_same_v<O, Bool>) {
    return static_cast<O>(compared_exactly(op, first, second));
  } else {
    const T x = static_cast<T>(first), y = static_cast<T>(second);
    return gives_bool(op) ? static_cast<O>(compared(op, x, y)) : static_cast<O>(answer(op, x, y));
  }
}

/// Calls `visit` with every place of a shape.
template <typename Visit>
void each(const std::vector<int64_t>& shape, Visit visit) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return;
  std::vector<int64_t> at(shape.size(), 0);
  for (;;) {
    visit(at);
    int i = static_cast<int>(shape.size()) - 1;
    while (i >= 0 && ++at[i] == shape[i]) at[i--] = 0;
    if (i < 0) return;
  }
}

struct ElementwiseTest : DeviceTest {
  std::mt19937 random{20240607};

  /// Computes `op` in T on the GPU, from memory of types A and B, and compares all of the output's memory.
  template <typename T, typename O, typename A = T, typename B = T>
  void check(Op op, const std::vector<int64_t>& shape, const Layout& a_layout, const Layout& b_layout,
             const Layout& out_layout) {
    Array<A> a(shape, a_layout, random);
    Array<B> b(shape, b_layout, random);
    Array<O> out(shape, out_layout, random);
    DLTensor result = out.tensor();
    DLTensor inputs[2] = {a.tensor(), b.tensor()};
    const int count = is_unary(op) ? 1 : 2;
    const ElementwiseStep step{op, dtype_of<T>(), op == Op::divide};
    Elementwise work;
    ops::plan_pass(work, result, inputs, count);
    const T seven = 7;
    std::memcpy(work.values[kWhereZero].bytes, &seven, sizeof seven);
    cuda::launch_elementwise(step, work, nullptr);
    check_cuda(cudaDeviceSynchronize(), "the kernel");

    each(shape, [&](const std::vector<int64_t>& at) {
      out.host()[out.place(at)] = expected<T, O>(op, a.host()[a.place(at)], b.host()[b.place(at)]);
    });
    const std::vector<O> got = out.download();
    EXPECT_TRUE(got.empty() || std::memcmp(got.data(), out.host().data(), got.size() * sizeof(O)) == 0)
        << "op " << static_cast<int>(op) << ", " << dtype_name(step.dtype) << " from " << dtype_name(dtype_of<A>())
        << " (" << a_layout.name << ") and " << dtype_name(dtype_of<B>()) << " (" << b_layout.name << ") into "
        << out_layout.name << ", shape " << shape_text(shape.data(), static_cast<int>(shape.size())) << ": "
        << cuda::describe(step, work);
  }
};

/// Computed in T, from memory of A and of B.
template <typename T, typename A, typename B>
struct Dtypes {
  using Computed = T;
  using First = A;
  using Second = B;
};

/// Names the instances of a test by their dtypes.
struct Name {
  template <typename T>
  static std::string GetName(int) {
    return name(static_cast<T*>(nullptr));
  }

 private:
  template <typename T>
  static std::string name(T*) {
    return dtype_name(dtype_of<T>());
  }
  template <typename T, typename A, typename B>
  static std::string name(Dtypes<T, A, B>*) {
    return dtype_name(dtype_of<A>()) + "_" + dtype_name(dtype_of<B>());
  }
};

// ---- layouts ----

template <typename T>
struct Layouts : ElementwiseTest {};
using LayoutTypes = ::testing::Types<float, double, int16_t, uint8_t>;
TYPED_TEST_SUITE(Layouts, LayoutTypes, Name);

TYPED_TEST(Layouts, OfBothInputs) {
  for (const auto& shape : kShapes) {
    for (const Layout& a : kLayouts) {
      for (const Layout& b : kLayouts) {
        this->template check<TypeParam, TypeParam>(Op::subtract, shape, a, b, kOutputs[0]);
      }
    }
  }
}

TYPED_TEST(Layouts, OfTheOutput) {
  for (const auto& shape : kShapes) {
    for (const Layout& a : kLayouts) {
      for (const Layout& out : kOutputs) {
        this->template check<TypeParam, TypeParam>(Op::add, shape, a, kLayouts[0], out);
      }
    }
  }
}

TYPED_TEST(Layouts, OfComparisons) {
  for (const auto& shape : kShapes) {
    for (const Layout& a : kLayouts) {
      this->template check<TypeParam, Bool>(Op::less, shape, a, kLayouts[1], kOutputs[1]);
      for (const Layout& out : kOutputs) {
        this->template check<TypeParam, Bool>(Op::less_equal, shape, a, kLayouts[7], out);
      }
    }
  }
}

template <typename T>
struct IntegerLayouts : ElementwiseTest {};
using IntegerLayoutTypes = ::testing::Types<int16_t, uint8_t>;
TYPED_TEST_SUITE(IntegerLayouts, IntegerLayoutTypes, Name);

TYPED_TEST(IntegerLayouts, OfQuotients) {
  for (const auto& shape : kShapes) {
    for (const Layout& a : kLayouts) {
      this->template check<TypeParam, TypeParam>(Op::floor_divide, shape, a, kLayouts[6], kOutputs[2]);
      this->template check<TypeParam, TypeParam>(Op::remainder, shape, kLayouts[1], a, kOutputs[5]);
    }
  }
}

// ---- operations ----

template <typename T>
struct Operations : ElementwiseTest {};
using OperationTypes = ::testing::Types<int8_t, uint16_t, int32_t, uint32_t, int64_t, uint64_t, float, double>;
TYPED_TEST_SUITE(Operations, OperationTypes, Name);

TYPED_TEST(Operations, OfArithmetic) {
  for (Op op : {Op::copy, Op::add, Op::subtract, Op::multiply, Op::minimum, Op::maximum, Op::negative, Op::abs}) {
    this->template check<TypeParam, TypeParam>(op, {7, 301}, kLayouts[0], kLayouts[1], kOutputs[0]);
  }
}

TYPED_TEST(Operations, OfComparison) {
  for (Op op : {Op::equal, Op::not_equal, Op::less, Op::less_equal, Op::greater, Op::greater_equal}) {
    this->template check<TypeParam, Bool>(op, {7, 301}, kLayouts[1], kLayouts[0], kOutputs[1]);
  }
}

TYPED_TEST(Operations, OfDivision) {
  if constexpr (std::is_floating_point_v<TypeParam>) {
    this->template check<TypeParam, TypeParam>(Op::divide, {7, 301}, kLayouts[0], kLayouts[8], kOutputs[0]);
  } else {
    for (Op op : {Op::floor_divide, Op::remainder}) {
      this->template check<TypeParam, TypeParam>(op, {7, 301}, kLayouts[0], kLayouts[1], kOutputs[0]);
    }
  }
}

// ---- inputs of two dtypes ----

template <typename D>
struct MixedDtypes : ElementwiseTest {};
using MixedTypes =
    ::testing::Types<Dtypes<float, float, int8_t>, Dtypes<float, int16_t, float>, Dtypes<double, float, int32_t>,
                     Dtypes<int64_t, int64_t, uint8_t>, Dtypes<int32_t, Bool, int16_t>>;
TYPED_TEST_SUITE(MixedDtypes, MixedTypes, Name);

TYPED_TEST(MixedDtypes, AreConvertedAsTheyAreRead) {
  using T = typename TypeParam::Computed;
  using A = typename TypeParam::First;
  using B = typename TypeParam::Second;
  for (const Layout& a : kLayouts) {
    this->template check<T, T, A, B>(Op::add, {33, 67}, a, kLayouts[1], kOutputs[0]);
    this->template check<T, Bool, A, B>(Op::less, {33, 67}, kLayouts[0], a, kOutputs[0]);
  }
}

/// Integers beside uint64, which no dtype holds where they have signs: every kernel, with either operand first.
template <typename B>
struct BesideUint64 : ElementwiseTest {};
using SignedTypes = ::testing::Types<int64_t, int8_t>;
TYPED_TEST_SUITE(BesideUint64, SignedTypes, Name);

TYPED_TEST(BesideUint64, SignedIntegersKeepTheirSigns) {
  for (Op op : {Op::equal, Op::not_equal, Op::less, Op::less_equal, Op::greater, Op::greater_equal}) {
    for (const Layout& a : kLayouts) {
      this->template check<uint64_t, Bool, uint64_t, TypeParam>(op, {33, 67}, a, kLayouts[1], kOutputs[0]);
      this->template check<uint64_t, Bool, TypeParam, uint64_t>(op, {33, 67}, kLayouts[0], a, kOutputs[5]);
    }
  }
}

// ---- limits ----

TEST(LaunchElementwise, RefusesAnOutputThatIsNotAligned) {
  Elementwise work;
  work.out_dtype = dtype_of<float>();
  work.loop.operand_count = 2;
  work.out = reinterpret_cast<void*>(2);
  work.inputs[0] = {reinterpret_cast<void*>(256), dtype_of<float>()};
  const ElementwiseStep copy{Op::copy, dtype_of<float>()};
  EXPECT_TRUE(throws<ValueError>("not a multiple of 4 bytes", [&] { cuda::launch_elementwise(copy, work, nullptr); }));
}

/// Rows of two int8, apart from each other, are a vector each. Needs 13 GB of device memory.
TEST_F(ElementwiseTest, DISABLED_TakesMoreVectorsThan31BitsCount) {
  const int64_t rows = (int64_t{1} << 31) + 5;
  const DeviceMemory a(rows * 3), out(rows * 3);
  check_cuda(cudaMemset(a.data(), 3, rows * 3), "cudaMemset");
  check_cuda(cudaMemset(out.data(), 0, rows * 3), "cudaMemset");
  int64_t shape[] = {rows, 2}, strides[] = {3, 1};
  DLTensor result{out.data(), {kDLCUDA, 0}, 2, {kDLInt, 8, 1}, shape, strides, 0};
  DLTensor inputs[2] = {{a.data(), {kDLCUDA, 0}, 2, {kDLInt, 8, 1}, shape, strides, 0},
                        {a.data(), {kDLCUDA, 0}, 2, {kDLInt, 8, 1}, shape, strides, 0}};
  Elementwise work;
  ops::plan_pass(work, result, inputs, 2);
  cuda::launch_elementwise(ElementwiseStep{Op::add, {kDLInt, 8, 1}}, work, nullptr);
  check_cuda(cudaDeviceSynchronize(), "the kernel");
  std::vector<char> got(66);
  for (const int64_t place : {int64_t{0}, rows / 2 - 11, rows - 22}) {
    check_cuda(cudaMemcpy(got.data(), out.data() + place * 3, got.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    bool right = true;
    for (size_t i = 0; i < got.size(); ++i) right &= got[i] == (i % 3 == 2 ? 0 : 6);
    EXPECT_TRUE(right) << "rows at " << place;
  }
}

}  // namespace
