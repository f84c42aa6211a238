/// A matrix product of any dtypes, with all that it may be put through: its arrays in device memory, and what they are
/// to become, computed on the host.
///
/// Every element is a small integer, so that every sum is exact in every dtype and any order, and is compared for
/// equality. Arrays are allocated to their last element and no further, which compute-sanitizer shows.
#pragma once

#include <interop/cuda/matmul.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cmath>
#include <complex>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device_memory.h"

namespace interop::tests {

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
inline void encode(void* to, DLDataType dtype, Value value) {
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
inline Value decode(const void* from, DLDataType dtype) {
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
inline const char* const kOrderNames[] = {"rows", "columns", "rows+8", "strided", "-rows"};

inline MatrixStrides strides_of(int order, int64_t rows, int64_t columns) {
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

/// For GoogleTest.
inline void PrintTo(const Dtypes& t, std::ostream* out) {
  *out << dtype_name(t.a) << " @ " << dtype_name(t.b) << " -> " << dtype_name(t.out);
}

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

inline std::string text(const Case& x) {
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

inline double alpha_of(const Case& x) { return x.scales ? 2 : 1; }
inline double beta_of(const Case& x) { return x.scales ? 3 : 1; }

inline Gemm gemm_of(const Case& x, const Arrays& arrays) {
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
inline void compute(const Case& x, Arrays& arrays) {
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

}  // namespace interop::tests
