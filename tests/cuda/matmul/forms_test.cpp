/// Tests of <interop/cuda/matmul.h>: products in every dtype, with factors, an addend, a bias, an activation and aux.
///
/// Every element is a small integer, so that every sum is exact in every dtype and any order, and is compared for
/// equality. Run it under compute-sanitizer, too: arrays are allocated to their last element and no further.
#include <gtest/gtest.h>
#include <interop/cuda/driver.h>
#include <interop/cuda/matmul.h>
#include <interop/error.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <array>
#include <cmath>
#include <complex>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/device.h"
#include "cuda/matmul/cublas.h"

using namespace interop;
using namespace interop::cuda;
using interop::tests::DeviceMemory;
using interop::tests::DeviceTest;

namespace {

using Value = std::complex<double>;

// ---- elements ----

template <typename T>
void put(void* to, T value) {
  std::memcpy(to, &value, sizeof value);
}
template <typename T>
T get(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

/// Integers wrap, as the products' own do.
void encode(void* to, DLDataType dtype, Value value) {
  const double x = value.real();
  const auto bits = static_cast<uint64_t>(static_cast<int64_t>(x));
  switch (dtype.code) {
    case kDLBool:
      return put<uint8_t>(to, x != 0);
    case kDLInt:
    case kDLUInt:
      std::memcpy(to, &bits, dtype.bits / 8);
      return;
    case kDLFloat:
      if (dtype.bits == 16) return put(to, __float2half(static_cast<float>(x)));
      if (dtype.bits == 32) return put(to, static_cast<float>(x));
      return put(to, x);
    case kDLBfloat:
      return put(to, __float2bfloat16(static_cast<float>(x)));
    case kDLComplex:
      if (dtype.bits == 64) return put(to, std::complex<float>(value));
      return put(to, value);
    case kDLFloat8_e4m3fn:
      return put(to, __nv_fp8_e4m3(static_cast<float>(x)));
    default:
      return put(to, __nv_fp8_e5m2(static_cast<float>(x)));
  }
}

/// The bytes of an element as a number; of an integer its low bits, so that -1 and 255 of 8 bits are one.
Value decode(const void* from, DLDataType dtype) {
  switch (dtype.code) {
    case kDLBool:
    case kDLInt:
    case kDLUInt: {
      uint64_t bits = 0;
      std::memcpy(&bits, from, dtype.bits / 8);
      return static_cast<double>(bits);
    }
    case kDLFloat:
      if (dtype.bits == 16) return __half2float(get<__half>(from));
      if (dtype.bits == 32) return get<float>(from);
      return get<double>(from);
    case kDLBfloat:
      return __bfloat162float(get<__nv_bfloat16>(from));
    case kDLComplex:
      if (dtype.bits == 64) return Value(get<std::complex<float>>(from));
      return get<Value>(from);
    case kDLFloat8_e4m3fn:
      return static_cast<float>(get<__nv_fp8_e4m3>(from));
    default:
      return static_cast<float>(get<__nv_fp8_e5m2>(from));
  }
}

/// An array in device memory, and what it is to become on the host: (batch, rows, columns), strides in elements.
class Array {
 public:
  /// Elements are integers from `low` to `high`.
  Array(DLDataType dtype, int64_t batch, int64_t rows, int64_t columns, MatrixStrides strides, int64_t batch_stride,
        int low, int high, std::mt19937& random)
      : strides(strides), batch_stride(batch_stride), dtype_(dtype), item_(item_bytes(dtype)) {
    int64_t below = 0, above = 0;
    for (const auto& [size, stride] :
         {std::pair{batch, batch_stride}, {rows, strides.row}, {columns, strides.column}}) {
      (stride < 0 ? below : above) += (size - 1) * stride;
    }
    first_ = -below;
    host_.assign((above - below + 1) * item_, 0x5A);
    std::uniform_int_distribution<int> uniform(low, high);
    for (int64_t i = 0; i < batch; ++i) {
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t column = 0; column < columns; ++column) {
          const double imaginary = dtype.code == kDLComplex ? uniform(random) : 0;
          encode(at(i, row, column), dtype, {static_cast<double>(uniform(random)), imaginary});
        }
      }
    }
    memory_.emplace(host_.size());
    memory_->upload(host_.data());
  }

  void* data() const { return memory_->data() + first_ * item_; }
  /// An integer with its sign.
  Value value(int64_t i, int64_t row, int64_t column) {
    const void* const from = at(i, row, column);
    if (dtype_.code == kDLInt && dtype_.bits == 64) return static_cast<double>(get<int64_t>(from));
    const Value bits = decode(from, dtype_);
    if (dtype_.code != kDLInt) return bits;
    const double limit = std::ldexp(1.0, dtype_.bits - 1);
    return bits.real() >= limit ? bits - 2 * limit : bits;
  }
  void set(int64_t i, int64_t row, int64_t column, Value x) { encode(at(i, row, column), dtype_, x); }

  /// Is device memory, every byte of it, what the host's copy is? Zeros of both signs are one.
  bool matches() const {
    std::vector<unsigned char> now(host_.size());
    memory_->download(now.data());
    if (now == host_) return true;
    if (dtype_.code != kDLFloat && dtype_.code != kDLBfloat && dtype_.code != kDLComplex) return false;
    const size_t part = dtype_.bits / (dtype_.code == kDLComplex ? 16 : 8);
    const auto is_zero = [part](const unsigned char* x) {
      unsigned any = x[part - 1] & 0x7f;  // without the sign
      for (size_t i = 0; i + 1 < part; ++i) any |= x[i];
      return any == 0;
    };
    for (size_t at = 0; at + part <= now.size(); at += part) {
      if (std::memcmp(&now[at], &host_[at], part) == 0) continue;
      if (!is_zero(&now[at]) || !is_zero(&host_[at])) return false;
    }
    return true;
  }

  const MatrixStrides strides;
  const int64_t batch_stride;

 private:
  void* at(int64_t i, int64_t row, int64_t column) {
    return &host_[(first_ + i * batch_stride + row * strides.row + column * strides.column) * item_];
  }

  DLDataType dtype_;
  int64_t item_, first_ = 0;
  std::vector<unsigned char> host_;
  std::optional<DeviceMemory> memory_;
};

// ---- cases ----

enum Order { kRows, kColumns, kPadded, kStrided, kReversed, kOrders };
const char* const kOrderNames[] = {"rows", "columns", "rows+8", "strided", "-rows"};

MatrixStrides strides_of(int order, int64_t rows, int64_t columns) {
  switch (order) {
    case kRows:
      return {columns, 1};
    case kColumns:
      return {1, rows};
    case kPadded:
      return {columns + 8, 1};
    case kStrided:
      return {2 * columns + 3, 2};
    default:
      return {-columns, 1};
  }
}

struct Dtypes {
  DLDataType a, b, out;
};

struct Case {
  Dtypes dtypes;
  int64_t m, n, k;
  int a = kRows, b = kRows, c = kRows;
  int64_t batch = 1;
  bool scales = false, adds = false, in_place = false, aux = false;
  int bias = 0;  // 1: a row, 2: a column
  Activation activation = Activation::none;
  bool conjugates_a = false, conjugates_b = false;
  bool in_parts = false;  // few outputs and a long k, which is divided
};

std::string text(const Case& x) {
  std::string s = dtype_name(x.dtypes.a) + " @ " + dtype_name(x.dtypes.b) + " -> " + dtype_name(x.dtypes.out) + ", " +
                  std::to_string(x.batch) + " x " + std::to_string(x.m) + "x" + std::to_string(x.n) + "x" +
                  std::to_string(x.k) + ", " + kOrderNames[x.a] + " " + kOrderNames[x.b] + " " + kOrderNames[x.c];
  if (x.scales) s += ", scaled";
  if (x.adds) s += x.in_place ? ", added in place" : ", added";
  if (x.bias) s += x.bias == 1 ? ", row bias" : ", column bias";
  if (x.activation != Activation::none) s += x.aux ? ", relu and aux" : ", relu";
  if (x.conjugates_a) s += ", a conjugated";
  if (x.conjugates_b) s += ", b conjugated";
  return s;
}

// ---- one product ----

/// The arrays of a case.
struct Arrays {
  Arrays(const Case& x, std::mt19937& random)
      : a(array(x, x.dtypes.a, x.m, x.k, x.a, random)),
        b(array(x, x.dtypes.b, x.k, x.n, x.b, random)),
        c(array(x, x.dtypes.out, x.m, x.n, x.c, random)),
        other(array(x, x.dtypes.out, x.m, x.n, x.c == kColumns ? kColumns : kPadded, random)),
        aux(array(x, x.dtypes.out, x.m, x.n, kStrided, random)),
        bias(x.dtypes.out, 1, x.bias == 2 ? x.m : 1, x.bias == 1 ? x.n : 1, {1, 1}, 0, low(x), high(x), random),
        addend(x.in_place ? c : other) {}

  Array a, b, c, other, aux, bias;
  Array& addend;

 private:
  static int low(const Case& x) {
    const Dtypes& t = x.dtypes;
    return t.a.code == kDLUInt || t.a.code == kDLBool || t.b.code == kDLUInt ? 0 : -1;
  }
  static int high(const Case& x) { return x.dtypes.a.code == kDLBool ? 1 : 2; }
  static Array array(const Case& x, DLDataType dtype, int64_t rows, int64_t columns, int order, std::mt19937& random) {
    const MatrixStrides s = strides_of(order, rows, columns);
    const int64_t span = 1 + std::abs(s.row) * (rows - 1) + std::abs(s.column) * (columns - 1);
    return {dtype, x.batch, rows, columns, s, (span + 7) / 8 * 8, low(x), high(x), random};
  }
};

double alpha_of(const Case& x) { return x.scales ? 2 : 1; }
double beta_of(const Case& x) { return x.scales ? 3 : 1; }

Gemm gemm_of(const Case& x, const Arrays& arrays) {
  Gemm gemm;
  gemm.dtype = x.dtypes.a;
  gemm.b_dtype = x.dtypes.b;
  gemm.out_dtype = x.dtypes.out;
  gemm.m = x.m;
  gemm.n = x.n;
  gemm.k = x.k;
  gemm.a = arrays.a.data();
  gemm.b = arrays.b.data();
  gemm.c = arrays.c.data();
  gemm.a_strides = arrays.a.strides;
  gemm.b_strides = arrays.b.strides;
  gemm.c_strides = arrays.c.strides;
  gemm.a_conjugated = x.conjugates_a;
  gemm.b_conjugated = x.conjugates_b;
  gemm.activation = x.activation;
  if (x.adds) {
    gemm.addend = arrays.addend.data();
    gemm.addend_strides = arrays.addend.strides;
  }
  if (x.bias) {
    gemm.bias = arrays.bias.data();
    gemm.bias_strides = {x.bias == 2 ? 1 : 0, x.bias == 1 ? 1 : 0};
  }
  if (x.aux) {
    gemm.aux = arrays.aux.data();
    gemm.aux_strides = arrays.aux.strides;
  }
  if (x.batch > 1) {
    gemm.batch_ndim = 1;
    gemm.batch[0] = {x.batch,
                     arrays.a.batch_stride,
                     arrays.b.batch_stride,
                     arrays.c.batch_stride,
                     x.adds ? arrays.addend.batch_stride : 0,
                     x.aux ? arrays.aux.batch_stride : 0};
  }
  if (x.scales) {
    ScalarValue alpha{}, beta{};
    encode(alpha.bytes, factor_dtype(x.dtypes.out), alpha_of(x));
    encode(beta.bytes, factor_dtype(x.dtypes.out), beta_of(x));
    set_factors(gemm, alpha, beta);
  }
  return gemm;
}

/// Puts into c and aux, on the host, what they are to become.
void compute(const Case& x, Arrays& arrays) {
  for (int64_t i = 0; i < x.batch; ++i) {
    for (int64_t row = 0; row < x.m; ++row) {
      for (int64_t column = 0; column < x.n; ++column) {
        Value sum = 0;
        for (int64_t p = 0; p < x.k; ++p) {
          const Value left = arrays.a.value(i, row, p), right = arrays.b.value(i, p, column);
          sum += (x.conjugates_a ? std::conj(left) : left) * (x.conjugates_b ? std::conj(right) : right);
        }
        sum *= alpha_of(x);
        if (x.adds) sum += beta_of(x) * arrays.addend.value(i, row, column);
        if (x.bias) sum += arrays.bias.value(0, x.bias == 2 ? row : 0, x.bias == 1 ? column : 0);
        if (x.aux) arrays.aux.set(i, row, column, sum);
        if (x.activation == Activation::relu && sum.real() < 0) sum = 0;
        arrays.c.set(i, row, column, sum);
      }
    }
  }
}

constexpr DLDataType dtype(DLDataTypeCode code, int bits) {
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1};
}
constexpr DLDataType kHalf = dtype(kDLFloat, 16), kComplex64 = dtype(kDLComplex, 64),
                     kComplex128 = dtype(kDLComplex, 128), kE4M3 = dtype(kDLFloat8_e4m3fn, 8),
                     kE5M2 = dtype(kDLFloat8_e5m2, 8), kInt8 = dtype(kDLInt, 8), kInt16 = dtype(kDLInt, 16),
                     kInt32 = dtype(kDLInt, 32), kInt64 = dtype(kDLInt, 64), kUint8 = dtype(kDLUInt, 8),
                     kUint16 = dtype(kDLUInt, 16), kUint32 = dtype(kDLUInt, 32), kUint64 = dtype(kDLUInt, 64),
                     kBool = dtype(kDLBool, 8);

const Dtypes kAll[] = {
    {kBool, kBool, kBool},
    {kInt8, kInt8, kInt8},
    {kUint8, kUint8, kUint8},
    {kInt16, kInt16, kInt16},
    {kUint16, kUint16, kUint16},
    {kInt32, kInt32, kInt32},
    {kUint32, kUint32, kUint32},
    {kInt64, kInt64, kInt64},
    {kUint64, kUint64, kUint64},
    {kHalf, kHalf, kHalf},
    {kBfloat16, kBfloat16, kBfloat16},
    {kFloat32, kFloat32, kFloat32},
    {kFloat64, kFloat64, kFloat64},
    {kComplex64, kComplex64, kComplex64},
    {kComplex128, kComplex128, kComplex128},
    {kInt8, kInt8, kInt32},
    {kInt8, kUint8, kInt16},
    {kBool, kInt8, kInt8},
    {kInt16, kUint16, kInt32},
    {kHalf, kHalf, kFloat32},
    {kBfloat16, kBfloat16, kFloat32},
    {kHalf, kBfloat16, kFloat32},
    {kE4M3, kE4M3, kBfloat16},
    {kE5M2, kE4M3, kHalf},
    {kE4M3, kE5M2, kFloat32},
    {kE5M2, kE5M2, kFloat32},
};

bool has_cublas_product(const Dtypes& t) {
  const bool is_float = t.a.code == kDLFloat || t.a.code == kDLBfloat || t.a.code == kDLComplex;
  return is_float && t.a == t.b;
}
bool has_terms(const Dtypes& t) { return t.out.code != kDLBool; }
bool has_activation(const Dtypes& t) { return t.out.code == kDLFloat || t.out.code == kDLBfloat; }
/// Does cuBLASLt add a bias, and apply relu?
bool has_epilogue(const Dtypes& t) { return has_cublas_product(t) && t.out.bits <= 32 && t.a.code != kDLComplex; }

// ---- the tests: of each dtype, by each backend ----

using Parameter = std::tuple<Dtypes, MatmulBackend>;

void PrintTo(const Dtypes& t, std::ostream* out) {
  *out << dtype_name(t.a) << " @ " << dtype_name(t.b) << " -> " << dtype_name(t.out);
}

std::string name(const ::testing::TestParamInfo<Parameter>& info) {
  const auto& [t, backend] = info.param;
  return dtype_name(t.a) + "_" + dtype_name(t.b) + "_to_" + dtype_name(t.out) +
         (backend == MatmulBackend::tiled ? "_tiled" : "_cublas");
}

class Forms : public DeviceTest, public ::testing::WithParamInterface<Parameter> {
 protected:
  const Dtypes t = std::get<Dtypes>(GetParam());

  void SetUp() override {
    if (is_cublas_) interop::tests::require_cublas();
  }
  void TearDown() override {
    DeviceTest::TearDown();
    if (computed_ == 0 && !IsSkipped() && !HasFailure()) GTEST_SKIP() << "cuBLASLt has no such product";
  }

  /// Computes and compares one case, unless cuBLASLt says that it has no such product. `is_blas`: must it have it?
  void check(const Case& x, bool is_blas = false) {
    SCOPED_TRACE(text(x));
    bool is_served = false;
    EXPECT_NO_THROW(is_served = compute_and_compare(x));
    if (is_cublas_ && is_blas) {
      EXPECT_TRUE(is_served);
    }
    computed_ += is_served;
  }

 private:
  bool compute_and_compare(const Case& x) {
    Arrays arrays(x, random_);
    const Gemm gemm = gemm_of(x, arrays);
    const MatmulOptions options{std::get<MatmulBackend>(GetParam())};
    MatmulPlan plan;
    try {
      plan = plan_matmul(gemm, options);
    } catch (const ValueError& error) {
      if (is_cublas_ && std::strstr(error.what(), "cannot take this product")) return false;
      throw;
    }
    EXPECT_LE(plan.workspace_bytes, largest_workspace(gemm, options));
    if (x.in_parts && !is_cublas_) {
      EXPECT_TRUE(is_in_parts(gemm, plan)) << describe(gemm, plan);
    }
    void* const workspace = plan.workspace_bytes ? allocate(plan.workspace_bytes, own_stream()) : nullptr;
    if (workspace) check_cuda(cudaMemsetAsync(workspace, 0xFF, plan.workspace_bytes, own_stream()), "cudaMemsetAsync");
    launch_matmul(gemm, plan, workspace, own_stream());
    if (workspace) release(workspace, 0, own_stream());
    synchronize(own_stream());
    compute(x, arrays);
    // Every byte: the elements, and what lies between them.
    const bool right = arrays.c.matches();
    EXPECT_TRUE(right && (!x.aux || arrays.aux.matches())) << (right ? "aux" : "c") << " is wrong";
    return true;
  }
  static bool is_in_parts(const Gemm& gemm, const MatmulPlan& plan) {
    const std::string algorithm = describe(gemm, plan);
    const bool is_divided = algorithm.find(", split-k ") != std::string::npos;
    return plan.workspace_bytes > 0 && (is_divided || algorithm.find("packed first") != std::string::npos);
  }

  const bool is_cublas_ = std::get<MatmulBackend>(GetParam()) == MatmulBackend::cublas;
  std::mt19937 random_{20261128};
  int computed_ = 0;
};

/// All dtypes that `is_one` is true of, by both backends.
template <typename Predicate>
auto of_dtypes(Predicate is_one) {
  std::vector<Dtypes> list;
  for (const Dtypes& t : kAll) {
    if (is_one(t)) list.push_back(t);
  }
  return ::testing::Combine(::testing::ValuesIn(list), ::testing::Values(MatmulBackend::tiled, MatmulBackend::cublas));
}

struct Products : Forms {};
INSTANTIATE_TEST_SUITE_P(, Products, of_dtypes([](const Dtypes&) { return true; }), name);

// k is short: the sums of small integers are to be exact in bfloat16.
TEST_P(Products, OfEveryLayout) {
  for (int a = 0; a < kOrders; ++a) {
    for (int b = 0; b < kOrders; ++b) {
      const int c = (a * 3 + b) % kOrders;
      const bool is_blas = a <= kPadded && b <= kPadded && c <= kPadded;
      check({t, 37, 45, 19, a, b, c}, has_cublas_product(t) && is_blas);
    }
  }
}

TEST_P(Products, OfManySizesAndABatch) {
  for (const auto& s : {std::array<int64_t, 3>{1, 1, 1}, {1, 70, 30}, {70, 1, 30}, {130, 131, 33}, {256, 192, 40}}) {
    check({t, s[0], s[1], s[2]}, has_cublas_product(t));
    check({t, s[0], s[1], s[2], kColumns, kRows, kColumns, 3}, has_cublas_product(t));
  }
}

struct IntegerProducts : Forms {};
INSTANTIATE_TEST_SUITE_P(, IntegerProducts,
                         of_dtypes([](const Dtypes& t) { return t.a.code == kDLInt || t.a.code == kDLUInt; }), name);

TEST_P(IntegerProducts, WrapAround) { check({t, 20, 20, 700}); }

struct ComplexProducts : Forms {};
INSTANTIATE_TEST_SUITE_P(, ComplexProducts, of_dtypes([](const Dtypes& t) { return t.a.code == kDLComplex; }), name);

TEST_P(ComplexProducts, OfConjugates) {
  for (int a = 0; a < kOrders; ++a) {
    for (int b = 0; b < kOrders; ++b) {
      for (int which = 1; which < 4; ++which) {
        Case x{t, 40, 30, 20, a, b, (a + b) % kOrders};
        x.conjugates_a = which & 1;
        x.conjugates_b = which & 2;
        check(x);
      }
    }
  }
}

// ---- what a product is put through ----

struct Terms : Forms {
  /// A product for each order of c, alone and in a batch, to be changed.
  std::vector<Case> cases() const {
    std::vector<Case> list;
    for (const int c : {kRows, kColumns, kStrided}) {
      for (const int64_t batch : {1, 2}) list.push_back({t, 64, 80, 16, kRows, kRows, c, batch});
    }
    return list;
  }
  bool is_blas(const Case& x) const { return has_cublas_product(t) && x.c != kStrided; }
  /// The bias that cuBLASLt adds: one value for each row of what it takes for columns.
  static int bias_along(const Case& x) { return x.c == kColumns ? 2 : 1; }
};
INSTANTIATE_TEST_SUITE_P(, Terms, of_dtypes(has_terms), name);

TEST_P(Terms, AreFactorsAndAnAddend) {
  for (Case x : cases()) {
    x.scales = true;
    check(x, is_blas(x));
    x.adds = true;
    check(x, is_blas(x));
    x.scales = false;
    x.in_place = true;
    check(x, is_blas(x));
  }
}

TEST_P(Terms, AreABias) {
  for (Case x : cases()) {
    x.bias = bias_along(x);
    check(x, is_blas(x) && has_epilogue(t));
    x.bias = 3 - x.bias;
    check(x);
  }
}

TEST_P(Terms, AreABiasAndAnAddendInPlace) {
  for (Case x : cases()) {
    x.adds = x.in_place = true;
    x.bias = bias_along(x);
    check(x);
  }
}

struct Activations : Terms {};
INSTANTIATE_TEST_SUITE_P(, Activations, of_dtypes(has_activation), name);

TEST_P(Activations, FollowABias) {
  for (Case x : cases()) {
    x.bias = bias_along(x);
    x.activation = Activation::relu;
    check(x, is_blas(x) && has_epilogue(t));
  }
}

TEST_P(Activations, FollowAllTermsAndAux) {
  for (Case x : cases()) {
    x.bias = bias_along(x);
    x.activation = Activation::relu;
    x.aux = x.scales = x.adds = true;
    check(x);
  }
}

// ---- k in parts, most of which leave a rest ----

/// Few outputs and a long k.
Case long_case(const Dtypes& t, int64_t k) {
  Case x{t, 20, 18, k, kRows, k == 2051 ? kColumns : kRows, k == 4099 ? kColumns : kRows};
  x.in_parts = true;
  return x;
}

/// A batch of them, conjugated where they are complex.
Case long_batch(const Dtypes& t, bool conjugates_b) {
  Case x = long_case(t, 2051);
  x.batch = 2;
  x.conjugates_a = t.a.code == kDLComplex;
  x.conjugates_b = conjugates_b && x.conjugates_a;
  return x;
}

TEST_P(Products, OfALongKAreDivided) {
  for (const int64_t k : {2048, 2051, 4099}) check(long_case(t, k));
  check(long_batch(t, false));
}

TEST_P(Terms, FollowADividedK) {
  Case x = long_batch(t, true);
  x.scales = x.adds = true;
  x.bias = 2;
  check(x);
}

TEST_P(Activations, FollowADividedK) {
  Case x = long_batch(t, true);
  x.scales = x.adds = x.aux = true;
  x.bias = 2;
  x.activation = Activation::relu;
  check(x);
}

}  // namespace
