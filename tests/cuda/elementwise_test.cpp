/// Tests of the elementwise kernels without Python: layouts, alignments and dtypes against a plain loop.
///
///   elementwise_test [--huge]
///
/// Prints "N passed, N failed" and exits with 1 if any failed. --huge adds loops of more than 2^31 vectors (needs 13 GB
/// of device memory). Arrays are allocated to the last element, so that compute-sanitizer finds any access beyond.
#include <interop/cuda/elementwise.h>
#include <interop/error.h>

#include <functional>

#include "check.h"
#include "ops/elementwise.h"

using namespace interop;
using namespace interop::testing;

namespace {

std::mt19937 g_random(20240607);

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

/// How an array of a shape lies in memory: the order of its dimensions, what lies between them, where it begins.
struct Layout {
  const char* name;
  bool transposed = false;
  int64_t pad = 0;                  // elements after each row
  int64_t step = 1;                 // between neighbours; negative: reversed
  int64_t offset = 0;               // elements before the first
  std::vector<bool> repeated = {};  // dimensions of size 1, from the last
};

/// An array in device memory of exactly its size, and the same on the host.
template <typename T>
class Strided {
 public:
  Strided(std::vector<int64_t> shape, const Layout& layout) : shape_(std::move(shape)) {
    const int ndim = static_cast<int>(shape_.size());
    for (int i = 0; i < ndim; ++i) {
      const size_t place = static_cast<size_t>(ndim - 1 - i);
      if (place < layout.repeated.size() && layout.repeated[place]) shape_[i] = 1;
    }
    strides_.resize(ndim);
    std::vector<int> order;
    for (int i = 0; i < ndim; ++i) order.push_back(layout.transposed ? ndim - 1 - i : i);
    int64_t stride = std::abs(layout.step);
    for (int place = ndim - 1; place >= 0; --place) {
      strides_[order[place]] = stride;
      stride = stride * std::max<int64_t>(shape_[order[place]], 1) + (place == ndim - 1 ? layout.pad : 0);
    }
    int64_t last = 0;
    bool empty = false;
    for (int i = 0; i < ndim; ++i) {
      empty |= shape_[i] == 0;
      last += (shape_[i] - 1) * strides_[i];
    }
    first_ = layout.offset;
    if (!empty) host_.resize(first_ + last + 1);
    for (T& x : host_) x = draw();
    if (layout.step < 0 && !empty) {
      first_ += (shape_[ndim - 1] - 1) * strides_[ndim - 1];
      strides_[ndim - 1] = -strides_[ndim - 1];
    }
    if (host_.empty()) return;
    MUST(cudaMalloc(&memory_, host_.size() * sizeof(T)));
    upload();
  }
  ~Strided() { cudaFree(memory_); }
  Strided(const Strided&) = delete;
  Strided& operator=(const Strided&) = delete;

  void upload() {
    MUST(cudaMemcpy(memory_, host_.data(), host_.size() * sizeof(T), cudaMemcpyHostToDevice));
    MUST(cudaDeviceSynchronize());
  }
  std::vector<T> download() const {
    std::vector<T> all(host_.size());
    if (!all.empty()) MUST(cudaMemcpy(all.data(), memory_, all.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return all;
  }
  DLTensor tensor() {
    return {memory_ ? static_cast<T*>(memory_) + first_ : nullptr,
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
  static T draw() {
    if constexpr (std::is_floating_point_v<T>) {
      return static_cast<T>(std::uniform_real_distribution<double>(-4, 4)(g_random));
    } else {
      return static_cast<T>(std::uniform_int_distribution<int>(-20, 20)(g_random));  // zeros among them
    }
  }

  std::vector<int64_t> shape_, strides_;
  std::vector<T> host_;
  int64_t first_ = 0;
  void* memory_ = nullptr;
};

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
T answer(ElementwiseOp op, T a, T b) {
  using U = std::conditional_t<std::is_floating_point_v<T>, T, uint64_t>;  // wraps
  switch (op) {
    case ElementwiseOp::subtract:
      return static_cast<T>(static_cast<U>(a) - static_cast<U>(b));
    case ElementwiseOp::multiply:
      return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
    case ElementwiseOp::divide:
      return b == 0 ? T(7) : static_cast<T>(a / b);  // always with where_zero = 7
    case ElementwiseOp::minimum:
      return std::min(a, b);
    case ElementwiseOp::maximum:
      return std::max(a, b);
    case ElementwiseOp::negative:
      return static_cast<T>(-static_cast<U>(a));
    case ElementwiseOp::abs:
      return a < 0 ? static_cast<T>(-a) : a;
    case ElementwiseOp::floor_divide:
      return b == 0 ? T(0) : static_cast<T>(a / b - (rest(a, b) != 0 && (a < 0) != (b < 0)));
    case ElementwiseOp::remainder:
      return b == 0 ? T(0) : static_cast<T>(rest(a, b) != 0 && (a < 0) != (b < 0) ? rest(a, b) + b : rest(a, b));
    case ElementwiseOp::copy:
      return a;
    default:
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  }
}

template <typename T>
bool compared(ElementwiseOp op, T a, T b) {
  switch (op) {
    case ElementwiseOp::equal:
      return a == b;
    case ElementwiseOp::not_equal:
      return a != b;
    case ElementwiseOp::less:
      return a < b;
    case ElementwiseOp::less_equal:
      return a <= b;
    case ElementwiseOp::greater:
      return a > b;
    default:
      return a >= b;
  }
}

/// As Python compares integers: to C++, a negative one beside an unsigned one is large.
template <typename A, typename B>
bool compared_exactly(ElementwiseOp op, A a, B b) {
  const bool a_negative = std::is_signed_v<A> && a < A(0), b_negative = std::is_signed_v<B> && b < B(0);
  if (a_negative != b_negative) return compared<int>(op, b_negative, a_negative);
  return compared(op, static_cast<uint64_t>(a), static_cast<uint64_t>(b));
}

bool is_comparison(ElementwiseOp op) { return op >= ElementwiseOp::equal; }
bool is_unary(ElementwiseOp op) {
  return op == ElementwiseOp::copy || op == ElementwiseOp::negative || op == ElementwiseOp::abs;
}

/// Computes `op` in T on the GPU, from memory of types A and B, and compares all of the output's memory.
template <typename T, typename O, typename A = T, typename B = T>
void check(ElementwiseOp op, const std::vector<int64_t>& shape, const Layout& a_layout, const Layout& b_layout,
           const Layout& out_layout) {
  Strided<A> a(shape, a_layout);
  Strided<B> b(shape, b_layout);
  Strided<O> out(shape, out_layout);
  DLTensor result = out.tensor();
  DLTensor inputs[2] = {a.tensor(), b.tensor()};
  const int count = is_unary(op) ? 1 : 2;
  Elementwise work;
  work.op = op;
  work.dtype = dtype_of<T>();
  work.out_dtype = dtype_of<O>();
  ops::plan_loop(work.loop, result, inputs, count);
  work.out = result.data;
  for (int k = 0; k < count; ++k) {
    work.inputs[k].data = inputs[k].data;
    work.inputs[k].dtype = inputs[k].dtype;
  }
  work.replaces_zero = op == ElementwiseOp::divide;
  const T seven = 7;
  std::memcpy(work.where_zero.bytes, &seven, sizeof seven);
  cuda::launch_elementwise(work, nullptr);
  MUST(cudaDeviceSynchronize());

  std::vector<int64_t> at(shape.size(), 0);
  const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  for (bool more = !empty; more;) {
    const A first = a.host()[a.place(at)];
    const B second = b.host()[b.place(at)];
    const T x = static_cast<T>(first), y = static_cast<T>(second);
    O& place = out.host()[out.place(at)];
    if constexpr (std::is_same_v<T, uint64_t> && std::is_same_v<O, Bool>) {
      place = static_cast<O>(compared_exactly(op, first, second));
    } else {
      place = is_comparison(op) ? static_cast<O>(compared(op, x, y)) : static_cast<O>(answer(op, x, y));
    }
    more = false;
    for (int i = static_cast<int>(shape.size()) - 1; i >= 0 && !more; --i) {
      if (++at[i] < shape[i])
        more = true;
      else
        at[i] = 0;
    }
  }
  const std::vector<O> got = out.download();
  const bool same = got.empty() || std::memcmp(got.data(), out.host().data(), got.size() * sizeof(O)) == 0;
  std::string text = "op " + std::to_string(static_cast<int>(op)) + ", " + dtype_name(work.dtype) + " from " +
                     dtype_name(dtype_of<A>()) + " (" + a_layout.name + ") and " + dtype_name(dtype_of<B>()) + " (" +
                     b_layout.name + ") into " + out_layout.name + ", shape " +
                     shape_text(shape.data(), static_cast<int>(shape.size())) + ": " + cuda::describe(work);
  expect(same, text);
}

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
    {1}, {3}, {1023}, {5, 7}, {33, 65}, {3, 70, 67}, {2, 3, 4, 5, 6, 7, 2}, {0, 4}, {4, 130}};

template <typename T>
void check_layouts() {
  for (const auto& shape : kShapes) {
    for (const Layout& a : kLayouts) {
      for (const Layout& b : kLayouts) check<T, T>(ElementwiseOp::subtract, shape, a, b, kOutputs[0]);
      for (const Layout& out : kOutputs) check<T, T>(ElementwiseOp::add, shape, a, kLayouts[0], out);
      check<T, Bool>(ElementwiseOp::less, shape, a, kLayouts[1], kOutputs[1]);
      for (const Layout& out : kOutputs) check<T, Bool>(ElementwiseOp::less_equal, shape, a, kLayouts[7], out);
      if constexpr (std::is_integral_v<T>) {
        check<T, T>(ElementwiseOp::floor_divide, shape, a, kLayouts[6], kOutputs[2]);
        check<T, T>(ElementwiseOp::remainder, shape, kLayouts[1], a, kOutputs[5]);
      }
    }
  }
}

template <typename T>
void check_operations() {
  using Op = ElementwiseOp;
  for (Op op : {Op::copy, Op::add, Op::subtract, Op::multiply, Op::minimum, Op::maximum, Op::negative, Op::abs}) {
    check<T, T>(op, {7, 301}, kLayouts[0], kLayouts[1], kOutputs[0]);
  }
  for (Op op : {Op::equal, Op::not_equal, Op::less, Op::less_equal, Op::greater, Op::greater_equal}) {
    check<T, Bool>(op, {7, 301}, kLayouts[1], kLayouts[0], kOutputs[1]);
  }
  if constexpr (std::is_floating_point_v<T>) {
    check<T, T>(Op::divide, {7, 301}, kLayouts[0], kLayouts[8], kOutputs[0]);
  } else {
    for (Op op : {Op::floor_divide, Op::remainder}) check<T, T>(op, {7, 301}, kLayouts[0], kLayouts[1], kOutputs[0]);
  }
}

template <typename T, typename A, typename B>
void check_mixed() {
  for (const Layout& a : kLayouts) {
    check<T, T, A, B>(ElementwiseOp::add, {33, 67}, a, kLayouts[1], kOutputs[0]);
    check<T, Bool, A, B>(ElementwiseOp::less, {33, 67}, kLayouts[0], a, kOutputs[0]);
  }
}

/// Signed integers beside uint64, which no dtype holds: every kernel, with either operand first.
template <typename A, typename B>
void check_signs() {
  using Op = ElementwiseOp;
  for (Op op : {Op::equal, Op::not_equal, Op::less, Op::less_equal, Op::greater, Op::greater_equal}) {
    for (const Layout& a : kLayouts) {
      check<uint64_t, Bool, A, B>(op, {33, 67}, a, kLayouts[1], kOutputs[0]);
      check<uint64_t, Bool, B, A>(op, {33, 67}, kLayouts[0], a, kOutputs[5]);
    }
  }
}

void check_errors() {
  Elementwise work;
  work.dtype = work.out_dtype = dtype_of<float>();
  work.op = ElementwiseOp::copy;
  work.loop.operand_count = 2;
  work.out = reinterpret_cast<void*>(2);
  work.inputs[0] = {reinterpret_cast<void*>(256), dtype_of<float>(), {}};
  expect_throw<ValueError>("an output that is not aligned", "not a multiple of 4 bytes",
                           [&] { cuda::launch_elementwise(work, nullptr); });
}

/// More vectors than 31 bits count: rows of two int8, apart from each other, are a vector each.
void check_huge() {
  const int64_t rows = (int64_t{1} << 31) + 5;
  char *a = nullptr, *out = nullptr;
  MUST(cudaMalloc(&a, rows * 3));
  MUST(cudaMalloc(&out, rows * 3));
  MUST(cudaMemset(a, 3, rows * 3));
  MUST(cudaMemset(out, 0, rows * 3));
  int64_t shape[] = {rows, 2}, strides[] = {3, 1};
  DLTensor result{out, {kDLCUDA, 0}, 2, {kDLInt, 8, 1}, shape, strides, 0};
  DLTensor inputs[2] = {{a, {kDLCUDA, 0}, 2, {kDLInt, 8, 1}, shape, strides, 0},
                        {a, {kDLCUDA, 0}, 2, {kDLInt, 8, 1}, shape, strides, 0}};
  Elementwise work;
  work.op = ElementwiseOp::add;
  work.dtype = work.out_dtype = {kDLInt, 8, 1};
  ops::plan_loop(work.loop, result, inputs, 2);
  work.out = result.data;
  for (int k = 0; k < 2; ++k) work.inputs[k] = {inputs[k].data, inputs[k].dtype, {}};
  cuda::launch_elementwise(work, nullptr);
  MUST(cudaDeviceSynchronize());
  std::vector<char> got(66);
  for (const int64_t place : {int64_t{0}, rows / 2 - 11, rows - 22}) {
    MUST(cudaMemcpy(got.data(), out + place * 3, got.size(), cudaMemcpyDeviceToHost));
    bool right = true;
    for (size_t i = 0; i < got.size(); ++i) right &= got[i] == (i % 3 == 2 ? 0 : 6);
    expect(right, "rows at " + std::to_string(place) + " of more than 2^31");
  }
  cudaFree(a);
  cudaFree(out);
}

}  // namespace

int main(int count, char** arguments) {
  MUST(cudaFree(nullptr));  // makes the primary context current
  check_layouts<float>();
  check_layouts<double>();
  check_layouts<int16_t>();
  check_layouts<uint8_t>();
  check_operations<int8_t>();
  check_operations<uint16_t>();
  check_operations<int32_t>();
  check_operations<uint32_t>();
  check_operations<int64_t>();
  check_operations<uint64_t>();
  check_operations<float>();
  check_operations<double>();
  check_mixed<float, float, int8_t>();
  check_mixed<float, int16_t, float>();
  check_mixed<double, float, int32_t>();
  check_mixed<int64_t, int64_t, uint8_t>();
  check_mixed<int32_t, Bool, int16_t>();
  check_signs<uint64_t, int64_t>();
  check_signs<uint64_t, int8_t>();
  check_errors();
  if (count > 1 && std::strcmp(arguments[1], "--huge") == 0) check_huge();
  std::printf("%d passed, %d failed\n", g_passed, g_failed);
  return g_failed ? 1 : 0;
}
