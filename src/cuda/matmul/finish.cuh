/// Device code that all kernels of matrix products share: loads and stores of elements, and the epilogue.
#pragma once

#include <interop/gemm.h>

#include <cstdint>
#include <type_traits>

#include "cuda/elementwise/functors.cuh"
#include "cuda/matmul/tiled/tiled.h"

namespace interop::cuda::tiled {
namespace {

using device::Complex;

// ---- arithmetic ----

template <typename T>
struct IsComplex : std::false_type {};
template <typename T>
struct IsComplex<Complex<T>> : std::true_type {};

__device__ __forceinline__ float multiply_add(float a, float b, float sum) { return fma(a, b, sum); }
__device__ __forceinline__ double multiply_add(double a, double b, double sum) { return fma(a, b, sum); }
__device__ __forceinline__ uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t sum) { return a * b + sum; }
__device__ __forceinline__ uint64_t multiply_add(uint64_t a, uint64_t b, uint64_t sum) { return a * b + sum; }
template <typename T>
__device__ __forceinline__ Complex<T> multiply_add(Complex<T> a, Complex<T> b, Complex<T> sum) {
  return {fma(-a.im, b.im, fma(a.re, b.re, sum.re)), fma(a.im, b.re, fma(a.re, b.im, sum.im))};
}

__device__ __forceinline__ float add(float x, float y) { return x + y; }
__device__ __forceinline__ double add(double x, double y) { return x + y; }
__device__ __forceinline__ uint32_t add(uint32_t x, uint32_t y) { return x + y; }
__device__ __forceinline__ uint64_t add(uint64_t x, uint64_t y) { return x + y; }
template <typename T>
__device__ __forceinline__ Complex<T> add(Complex<T> x, Complex<T> y) {
  return {x.re + y.re, x.im + y.im};
}
template <typename T>
__device__ __forceinline__ T multiply(T x, T y) {
  return x * y;
}
template <typename T>
__device__ __forceinline__ Complex<T> multiply(Complex<T> x, Complex<T> y) {
  return {fma(-x.im, y.im, x.re * y.re), fma(x.im, y.re, x.re * y.im)};
}

// ---- elements in memory ----

/// Converts an element in memory to the arithmetic's type. All elements of an operand have the same format.
__device__ __forceinline__ float widen(uint16_t bits, Format format, float) {
  return format == Format::float16 ? device::to_float(device::Half{bits}) : device::to_float(device::BFloat16{bits});
}
__device__ __forceinline__ float widen(uint8_t bits, Format format, float) {
  const unsigned wide = bits;
  // Both convert to float16 first. e5m2 is its upper byte. e4m3fn's exponent has a bit less, and a bias that is 8 less.
  if (format == Format::float8_e5m2) return device::to_float(device::Half{static_cast<unsigned short>(wide << 8)});
  const auto half = static_cast<unsigned short>((wide & 0x80) << 8 | (wide & 0x7f) << 7);
  return (wide & 0x7f) == 0x7f ? __uint_as_float(0x7fc00000u) : 256 * device::to_float(device::Half{half});
}
__device__ __forceinline__ uint32_t widen(uint16_t bits, Format format, uint32_t) {
  return format == Format::int16 ? static_cast<uint32_t>(static_cast<int16_t>(bits)) : bits;
}
__device__ __forceinline__ uint32_t widen(uint8_t bits, Format format, uint32_t) {
  if (format == Format::boolean) return bits != 0;
  return format == Format::int8 ? static_cast<uint32_t>(static_cast<int8_t>(bits)) : bits;
}

template <typename T>
__device__ __forceinline__ T load_as(const char* from, Format) {
  return *reinterpret_cast<const T*>(from);
}
template <>
__device__ __forceinline__ float load_as(const char* from, Format format) {
  if (format == Format::plain) return *reinterpret_cast<const float*>(from);
  return widen(*reinterpret_cast<const uint16_t*>(from), format, 0.0f);
}
template <>
__device__ __forceinline__ uint32_t load_as(const char* from, Format format) {
  if (format == Format::plain) return *reinterpret_cast<const uint32_t*>(from);
  if (format == Format::int16 || format == Format::uint16) {
    return widen(*reinterpret_cast<const uint16_t*>(from), format, 0u);
  }
  return widen(*reinterpret_cast<const uint8_t*>(from), format, 0u);
}

__device__ __forceinline__ bool is_16_bits(Format format) {
  return format == Format::float16 || format == Format::bfloat16;
}

template <typename T>
__device__ __forceinline__ void store_as(char* to, Format, T value) {
  *reinterpret_cast<T*>(to) = value;
}
template <>
__device__ __forceinline__ void store_as(char* to, Format format, float value) {
  if (format == Format::plain) {
    *reinterpret_cast<float*>(to) = value;
  } else if (format == Format::float16) {
    *reinterpret_cast<device::Half*>(to) = device::Round<device::Half>::from(value);
  } else {
    *reinterpret_cast<device::BFloat16*>(to) = device::Round<device::BFloat16>::from(value);
  }
}
template <>
__device__ __forceinline__ void store_as(char* to, Format format, uint32_t value) {
  if (format == Format::plain) {
    *reinterpret_cast<uint32_t*>(to) = value;
  } else if (format == Format::int16 || format == Format::uint16) {
    *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(value);
  } else {
    *reinterpret_cast<uint8_t*>(to) = static_cast<uint8_t>(format == Format::boolean ? value != 0 : value);
  }
}

// ---- the epilogue ----

/// Constants of gelu, each as the sum of two numbers of T: high, low.
template <typename T>
struct GeluConstants;
template <>
struct GeluConstants<float> {
  static constexpr float kRoot = 0x1.6a09e6p-1f, kRootLow = 0x1.9fcef4p-27f;       // sqrt(1/2)
  static constexpr float kLinear = 0x1.988454p+0f, kLinearLow = -0x1.857936p-25f;  // 2 sqrt(2/pi)
  static constexpr float kCubic = 0x1.2444f2p-4f, kCubicLow = 0x1.49b16ap-29f;     // 0.044715 times that
};
template <>
struct GeluConstants<double> {
  static constexpr double kRoot = 0x1.6a09e667f3bcdp-1, kRootLow = -0x1.bdd3413b26456p-55;
  static constexpr double kLinear = 0x1.9884533d43651p+0, kLinearLow = -0x1.cbc0d30ebfd15p-54;
  static constexpr double kCubic = 0x1.2444f2a4d8b4bp-4, kCubicLow = -0x1.6c843a29d1c7p-61;
};

// The result is within a few units in the last place, even where it is small. exp or erfc of a rounded argument would
// not be: fma finds the argument's rounding error, and a first-order term makes up for it. A product is written as
// fma(a, b, 0) where the compiler must not contract it.

/// x Phi(x).
template <typename T>
__device__ __forceinline__ T gelu(T x) {
  using Constants = GeluConstants<T>;
  const T root = Constants::kRoot, root_low = Constants::kRootLow;
  const T z = fma(x, -root, T(0));
  T twice = erfc(z);         // 2 Phi(x)
  if (z > 0 && z < T(30)) {  // beyond, erfc is 0
    const T low = fma(x, -root, -z) - x * root_low;
    twice = fma(-twice, low * (z + sqrt(fma(z, z, T(1.5)))), twice);  // about the slope of -log(erfc)
  }
  return T(0.5) * x * twice;
}

/// x / (1 + exp(-t)), where t is 2 sqrt(2/pi) (x + 0.044715 x^3). It equals x (1 + tanh(t/2)) / 2, whose sum cancels.
template <typename T>
__device__ __forceinline__ T gelu_tanh(T x) {
  using Constants = GeluConstants<T>;
  const T cubic = Constants::kCubic, cubic_low = Constants::kCubicLow;
  const T linear = Constants::kLinear, linear_low = Constants::kLinearLow;
  const T y = x < 0 ? (x < T(-40) ? T(40) : -x) : x > T(40) ? T(40) : x;  // exp(-t) is 0 there
  const T square = fma(y, y, T(0)), square_low = fma(y, y, -square);
  const T term = fma(cubic, square, T(0));
  const T factor = linear + term, back = factor - linear;
  const T factor_low = (linear - (factor - back)) + (term - back) + fma(cubic, square, -term) +
                       fma(cubic, square_low, fma(cubic_low, square, linear_low));
  const T t = fma(y, factor, T(0)), t_low = fma(y, factor, -t) + y * factor_low;
  const T power = exp(-t), fixed = fma(-power, t_low, power);
  return (x < 0 ? x * fixed : x) / (1 + fixed);
}

/// gelu and gelu_tanh for float32 sums that are stored in 16 bits: right to about 17 bits, in a quarter of the
/// instructions.
///
/// Phi(-y) is nearly exp(-y^2 / 2) times a polynomial in t = 1 / (1 + y sqrt(1/8)). The polynomial is a least-squares
/// fit, weighted so that the largest error relative to Phi is 1.2e-6 for y up to 13.6.
__device__ __forceinline__ float narrow_gelu(float x) {
  constexpr float kHalfRoot = 0x1.6a09e6p-2f, kExponent = 0x1.715476p-1f;  // sqrt(1/8); log2(e) / 2
  constexpr float kPolynomial[] = {0x1.211efp-3f,  0x1.1c0f1ap-3f, 0x1.213f0cp-3f, 0x1.2166bcp-6f,
                                   0x1.9244a2p-3f, -0x1.6ff1p-3f,  0x1.6c487ap-5f};
  const float y = fabsf(x), t = __fdividef(1, fmaf(kHalfRoot, y, 1));
  float sum = kPolynomial[6];
#pragma unroll
  for (int i = 5; i >= 0; --i) sum = fmaf(sum, t, kPolynomial[i]);
  const float beyond = exp2f(y * y * -kExponent) * (t * sum);  // Phi(-y)
  return x * (x < 0 ? beyond : 1 - beyond);
}
__device__ __forceinline__ float narrow_gelu_tanh(float x) {
  constexpr float kLinear = 0x1.26aec2p+1f, kCubic = 0x1.a5a7dp-4f;  // those of gelu_tanh, times log2(e)
  const float y = fabsf(x), power = exp2f(-y * fmaf(kCubic, y * y, kLinear));
  return __fdividef(x < 0 ? x * power : x, 1 + power);
}

/// Applies the activation, if there is one, to all of `x`. `is_narrow`: the result has 16 bits. There is one branch for
/// all values: a branch for each took a tenth of a product's time.
template <typename T, int N>
__device__ __forceinline__ void activate(T (&x)[N], int activation, bool is_narrow) {
  const auto apply = [&](auto function) {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = function(x[i]);
  };
  if (activation == static_cast<int>(Activation::none)) return;
  if (activation == static_cast<int>(Activation::relu))
    return apply([](T v) { return v < 0 ? T(0) : v; });  // NaN stays
  const bool is_exact = activation == static_cast<int>(Activation::gelu);
  if constexpr (std::is_same<T, float>::value) {
    if (is_narrow && is_exact) return apply([](T v) { return narrow_gelu(v); });
    if (is_narrow) return apply([](T v) { return narrow_gelu_tanh(v); });
  }
  if (is_exact) return apply([](T v) { return gelu(v); });
  apply([](T v) { return gelu_tanh(v); });
}

/// The offset of matrix number `matrix` of a batch in an array with these strides.
__device__ __forceinline__ int64_t matrix_offset(int64_t matrix, int batch_ndim,
                                                 const int64_t (&sizes)[kKernelBatchDims],
                                                 const int64_t (&strides)[kKernelBatchDims]) {
  int64_t offset = 0;
  for (int dim = batch_ndim - 1; dim >= 0; --dim) {
    int64_t at = matrix;
    if (dim > 0) {
      matrix /= sizes[dim];
      at -= matrix * sizes[dim];
    }
    offset += at * strides[dim];
  }
  return offset;
}

/// Where one output is in each array of the result's shape; null for an absent array.
struct OutputPlaces {
  char* c;
  const char* addend;
  const char* bias;
  char* aux;
};

/// Finishes one sum and stores it. Not inlined, so that all kernels of an arithmetic share one copy.
template <typename T>
INTEROP_CALLED void finish_one(const FinishArgs& how, T value, OutputPlaces at) {
  if constexpr (IsComplex<T>::value) {
    if (how.conjugates) value.im = -value.im;
  } else if constexpr (std::is_same<T, float>::value) {
    if (how.factors[0]) value *= *how.factors[0];
    if (how.factors[1]) value *= *how.factors[1];
  }
  if (how.scales) value = multiply(*reinterpret_cast<const T*>(how.alpha), value);
  if (at.addend) {
    const T added = load_as<T>(at.addend, how.format);
    value = how.scales ? multiply_add(*reinterpret_cast<const T*>(how.beta), added, value) : add(value, added);
  }
  if (at.bias) value = add(value, load_as<T>(at.bias, how.format));
  if (at.aux) store_as<T>(at.aux, how.format, value);
  if constexpr (std::is_floating_point<T>::value) {
    T one[] = {value};
    activate(one, how.activation, is_16_bits(how.format));
    value = one[0];
  }
  store_as<T>(at.c, how.format, value);
}

}  // namespace
}  // namespace interop::cuda::tiled
