/// Tests of matrix products in every dtype, with factors, an addend, a bias, an activation and aux, without Python.
///
///   matmul_forms_test [--cublas PATH] [--no-cublas]
///
/// Every element is a small integer, so that every sum is exact in every dtype and any order, and is compared for
/// equality. Prints "N passed, N failed" and exits with 1 if any failed. Run it under compute-sanitizer, too: arrays
/// are allocated to their last element and no further.
#include <interop/cuda/driver.h>
#include <interop/cuda/matmul.h>
#include <interop/error.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <array>
#include <complex>
#include <memory>
#include <utility>

#include "check.h"

using namespace interop;
using namespace interop::cuda;
using namespace interop::testing;

namespace {

using Value = std::complex<double>;

bool g_cublas = true;
std::mt19937 g_random(20261128);

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

/// An array of small integers in device memory: (batch, rows, columns), strides in elements.
class Array {
 public:
  Array(DLDataType dtype, int64_t batch, int64_t rows, int64_t columns, MatrixStrides strides, int64_t batch_stride,
        int low, int high)
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
          const double imaginary = dtype.code == kDLComplex ? uniform(g_random) : 0;
          encode(at(i, row, column), dtype, {static_cast<double>(uniform(g_random)), imaginary});
        }
      }
    }
    MUST(cudaMalloc(&memory_, host_.size()));
    MUST(cudaMemcpy(memory_, host_.data(), host_.size(), cudaMemcpyHostToDevice));
    MUST(cudaDeviceSynchronize());
  }
  ~Array() { cudaFree(memory_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  void* data() const { return static_cast<char*>(memory_) + first_ * item_; }
  void* at(int64_t i, int64_t row, int64_t column) {
    return &host_[(first_ + i * batch_stride + row * strides.row + column * strides.column) * item_];
  }
  Value value(int64_t i, int64_t row, int64_t column) { return decode(at(i, row, column), dtype_); }
  /// An integer with its sign.
  Value signed_value(int64_t i, int64_t row, int64_t column) {
    const Value bits = value(i, row, column);
    if (dtype_.code != kDLInt || dtype_.bits == 64)
      return dtype_.code == kDLInt ? Value(get_int64(i, row, column)) : bits;
    const double limit = std::ldexp(1.0, dtype_.bits - 1);
    return bits.real() >= limit ? bits - 2 * limit : bits;
  }
  void set(int64_t i, int64_t row, int64_t column, Value x) { encode(at(i, row, column), dtype_, x); }
  /// Is device memory, every byte of it, what the host's copy is? Zeros of both signs are one.
  bool matches() const {
    std::vector<unsigned char> now(host_.size());
    MUST(cudaMemcpy(now.data(), memory_, now.size(), cudaMemcpyDeviceToHost));
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

  MatrixStrides strides;
  int64_t batch_stride;

 private:
  double get_int64(int64_t i, int64_t row, int64_t column) {
    return static_cast<double>(get<int64_t>(at(i, row, column)));
  }
  DLDataType dtype_;
  int64_t item_, first_ = 0;
  std::vector<unsigned char> host_;
  void* memory_ = nullptr;
};

// ---- one case ----

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

std::string text(const Case& x, MatmulBackend backend) {
  std::string s = backend == MatmulBackend::tiled ? "tiled " : "cublas ";
  s += dtype_name(x.dtypes.a) + " @ " + dtype_name(x.dtypes.b) + " -> " + dtype_name(x.dtypes.out) + ", " +
       std::to_string(x.batch) + " x " + std::to_string(x.m) + "x" + std::to_string(x.n) + "x" + std::to_string(x.k) +
       ", " + kOrderNames[x.a] + " " + kOrderNames[x.b] + " " + kOrderNames[x.c];
  if (x.scales) s += ", scaled";
  if (x.adds) s += x.in_place ? ", added in place" : ", added";
  if (x.bias) s += x.bias == 1 ? ", row bias" : ", column bias";
  if (x.activation != Activation::none) s += x.aux ? ", relu and aux" : ", relu";
  if (x.conjugates_a) s += ", a conjugated";
  if (x.conjugates_b) s += ", b conjugated";
  return s;
}

/// Runs one case; false where cuBLASLt says that it has no such product.
bool check_case(const Case& x, MatmulBackend backend) {
  const Dtypes& t = x.dtypes;
  const bool is_unsigned = t.a.code == kDLUInt || t.a.code == kDLBool || t.b.code == kDLUInt;
  const int low = is_unsigned ? 0 : -1, high = t.a.code == kDLBool ? 1 : 2;
  const auto array = [&](DLDataType dtype, int64_t rows, int64_t columns, int order) {
    const MatrixStrides s = strides_of(order, rows, columns);
    const int64_t span = 1 + std::abs(s.row) * (rows - 1) + std::abs(s.column) * (columns - 1);
    return std::make_unique<Array>(dtype, x.batch, rows, columns, s, (span + 7) / 8 * 8, low, high);
  };
  auto a = array(t.a, x.m, x.k, x.a), b = array(t.b, x.k, x.n, x.b), c = array(t.out, x.m, x.n, x.c);
  auto addend = array(t.out, x.m, x.n, x.c == kColumns ? kColumns : kPadded);
  auto aux = array(t.out, x.m, x.n, kStrided);
  Array bias(t.out, 1, x.bias == 2 ? x.m : 1, x.bias == 1 ? x.n : 1, {1, 1}, 0, low, high);

  Gemm gemm;
  gemm.dtype = t.a;
  gemm.b_dtype = t.b;
  gemm.out_dtype = t.out;
  gemm.m = x.m;
  gemm.n = x.n;
  gemm.k = x.k;
  gemm.a = a->data();
  gemm.b = b->data();
  gemm.c = c->data();
  gemm.a_strides = a->strides;
  gemm.b_strides = b->strides;
  gemm.c_strides = c->strides;
  gemm.a_conjugated = x.conjugates_a;
  gemm.b_conjugated = x.conjugates_b;
  Array& added = x.in_place ? *c : *addend;
  if (x.adds) {
    gemm.addend = added.data();
    gemm.addend_strides = added.strides;
  }
  if (x.bias) {
    gemm.bias = bias.data();
    gemm.bias_strides = {x.bias == 2 ? 1 : 0, x.bias == 1 ? 1 : 0};
  }
  if (x.aux) {
    gemm.aux = aux->data();
    gemm.aux_strides = aux->strides;
  }
  gemm.activation = x.activation;
  if (x.batch > 1) {
    gemm.batch_ndim = 1;
    gemm.batch[0] = {x.batch,
                     a->batch_stride,
                     b->batch_stride,
                     c->batch_stride,
                     x.adds ? added.batch_stride : 0,
                     x.aux ? aux->batch_stride : 0};
  }
  const double alpha = x.scales ? 2 : 1, beta = x.scales ? 3 : 1;
  if (x.scales) {
    ScalarValue first{}, second{};
    encode(first.bytes, factor_dtype(t.out), alpha);
    encode(second.bytes, factor_dtype(t.out), beta);
    set_factors(gemm, first, second);
  }

  try {
    const MatmulPlan plan = plan_matmul(gemm, {backend});
    expect(plan.workspace_bytes <= largest_workspace(gemm, {backend}), text(x, backend) + ": its workspace");
    if (x.in_parts && backend == MatmulBackend::tiled) {
      const std::string algorithm = describe(gemm, plan);
      const bool is_divided = algorithm.find(", split-k ") != std::string::npos;
      const bool is_packed = algorithm.find("packed first") != std::string::npos;
      expect(plan.workspace_bytes > 0 && (is_divided || is_packed),
             text(x, backend) + ": k is divided, not " + algorithm);
    }
    void* workspace = plan.workspace_bytes ? allocate(plan.workspace_bytes, own_stream()) : nullptr;
    if (workspace) MUST(cudaMemsetAsync(workspace, 0xFF, plan.workspace_bytes, own_stream()));
    launch_matmul(gemm, plan, workspace, own_stream());
    if (workspace) release(workspace, 0, own_stream());
    synchronize(own_stream());
  } catch (const ValueError& error) {
    if (backend == MatmulBackend::cublas && std::strstr(error.what(), "cannot take this product")) return false;
    expect(false, text(x, backend) + ": " + error.what());
    return true;
  } catch (const std::exception& error) {
    expect(false, text(x, backend) + ": " + error.what());
    return true;
  }

  for (int64_t i = 0; i < x.batch; ++i) {
    for (int64_t row = 0; row < x.m; ++row) {
      for (int64_t column = 0; column < x.n; ++column) {
        Value sum = 0;
        for (int64_t p = 0; p < x.k; ++p) {
          const Value left = a->signed_value(i, row, p), right = b->signed_value(i, p, column);
          sum += (x.conjugates_a ? std::conj(left) : left) * (x.conjugates_b ? std::conj(right) : right);
        }
        sum *= alpha;
        if (x.adds) sum += beta * added.signed_value(i, row, column);
        if (x.bias) sum += bias.signed_value(0, x.bias == 2 ? row : 0, x.bias == 1 ? column : 0);
        if (x.aux) aux->set(i, row, column, sum);
        if (x.activation == Activation::relu && sum.real() < 0) sum = 0;
        c->set(i, row, column, sum);
      }
    }
  }
  // Every byte: the elements, and what lies between them.
  const bool right = c->matches();
  expect(right && (!x.aux || aux->matches()), text(x, backend) + (right ? ": aux is wrong" : ": wrong"));
  return true;
}

/// By our kernel, and by cuBLASLt; `must` it have such a product?
void check_both(const Case& x, bool must = false) {
  check_case(x, MatmulBackend::tiled);
  if (!g_cublas) return;
  const bool served = check_case(x, MatmulBackend::cublas);
  if (must) expect(served, text(x, MatmulBackend::cublas) + ": not served");
}

// ---- the tests ----

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

bool is_cublas(const Dtypes& t) {
  const bool is_float = t.a.code == kDLFloat || t.a.code == kDLBfloat || t.a.code == kDLComplex;
  return is_float && t.a == t.b;
}

void test_dtypes() {
  // k is short: the sums of small integers are to be exact in bfloat16.
  for (const Dtypes& t : kAll) {
    for (int a = 0; a < kOrders; ++a) {
      for (int b = 0; b < kOrders; ++b) {
        const int c = (a * 3 + b) % kOrders;
        const bool blas = a <= kPadded && b <= kPadded && c <= kPadded;
        check_both({t, 37, 45, 19, a, b, c}, is_cublas(t) && blas);
      }
    }
    for (const auto& s : {std::array<int64_t, 3>{1, 1, 1}, {1, 70, 30}, {70, 1, 30}, {130, 131, 33}, {256, 192, 40}}) {
      check_both({t, s[0], s[1], s[2]}, is_cublas(t));
      check_both({t, s[0], s[1], s[2], kColumns, kRows, kColumns, 3}, is_cublas(t));
    }
  }
  // Integers wrap.
  for (const Dtypes& t : kAll) {
    if (t.a.code != kDLInt && t.a.code != kDLUInt) continue;
    check_both({t, 20, 20, 700});
  }
}

void test_finishes() {
  for (const Dtypes& t : kAll) {
    if (t.out.code == kDLBool) continue;
    const bool has_activation = t.out.code == kDLFloat || t.out.code == kDLBfloat;
    const bool has_epilogue = is_cublas(t) && t.out.bits <= 32 && t.a.code != kDLComplex;
    for (const int c : {kRows, kColumns, kStrided}) {
      for (const int64_t batch : {1, 2}) {
        Case x{t, 64, 80, 16, kRows, kRows, c, batch};
        const bool blas = is_cublas(t) && c != kStrided;
        x.scales = true;
        check_both(x, blas);
        x.adds = true;
        check_both(x, blas);
        x.scales = false;
        x.in_place = true;
        check_both(x, blas);
        x.bias = c == kColumns ? 2 : 1;
        check_both(x);
        x.adds = x.in_place = false;
        check_both(x, blas && has_epilogue);
        x.bias = 3 - x.bias;
        check_both(x);
        if (!has_activation) continue;
        x.bias = 3 - x.bias;
        x.activation = Activation::relu;
        check_both(x, blas && has_epilogue);
        x.aux = x.scales = x.adds = true;
        check_both(x);
      }
    }
  }
}

void test_conjugates() {
  for (const DLDataType t : {kComplex64, kComplex128}) {
    for (int a = 0; a < kOrders; ++a) {
      for (int b = 0; b < kOrders; ++b) {
        for (int which = 1; which < 4; ++which) {
          Case x{{t, t, t}, 40, 30, 20, a, b, (a + b) % kOrders};
          x.conjugates_a = which & 1;
          x.conjugates_b = which & 2;
          check_both(x);
        }
      }
    }
  }
}

/// k is divided into parts, and most of these leave a rest.
void test_parts() {
  for (const Dtypes& t : kAll) {
    for (const int64_t k : {2048, 2051, 4099}) {
      Case x{t, 20, 18, k, kRows, k == 2051 ? kColumns : kRows, k == 4099 ? kColumns : kRows};
      x.in_parts = true;
      check_both(x);
      if (k != 2051) continue;
      x.batch = 2;
      x.conjugates_a = t.a.code == kDLComplex;
      check_both(x);
      x.conjugates_b = x.conjugates_a;
      if (t.out.code == kDLBool) continue;
      x.scales = x.adds = true;
      x.bias = 2;
      check_both(x);
      if (t.out.code != kDLFloat && t.out.code != kDLBfloat) continue;
      x.activation = Activation::relu;
      x.aux = true;
      check_both(x);
    }
  }
}

/// A factor of zero: the operands are not read, and k is 0.
void test_zero_factors() {
  Gemm gemm;
  gemm.out_dtype = kFloat32;
  gemm.k = 8;
  float x = 0;
  gemm.addend = &x;
  ScalarValue zero{}, one{};
  encode(one.bytes, kFloat32, 1);
  set_factors(gemm, zero, one);
  expect(gemm.k == 0 && gemm.addend, "alpha of zero");
  gemm.k = 8;
  set_factors(gemm, one, zero);
  expect(gemm.k == 8 && !gemm.addend, "beta of zero");
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--cublas") && i + 1 < argc)
      set_cublas_paths(&argv[++i], 1);
    else if (!std::strcmp(argv[i], "--no-cublas"))
      g_cublas = false;
  }
  try {
    require_driver();
    MUST(cudaFree(nullptr));  // makes the primary context current
    std::printf("cuBLASLt: %s\n", cublas_status().c_str());
    test_zero_factors();
    test_dtypes();
    test_finishes();
    test_conjugates();
    test_parts();
    MUST(cudaDeviceSynchronize());
  } catch (const std::exception& error) {
    expect(false, std::string("stopped by ") + error.what());
  }
  std::printf("%d passed, %d failed\n", g_passed, g_failed);
  return g_failed ? 1 : 0;
}
