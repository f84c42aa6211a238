// Arithmetic of which C++ has no operator with the rules of functors.cuh. Device code alone, for NVRTC too.
#pragma once

#include "cuda/elementwise/dtypes.cuh"

namespace interop::device {

// ---- integers ----

/// The unsigned type in which signed arithmetic wraps.
template <int Bytes>
struct UnsignedOf {
  using Type = unsigned;
};
template <>
struct UnsignedOf<8> {
  using Type = unsigned long long;
};
template <typename T>
using Wrapping = typename UnsignedOf<sizeof(T)>::Type;

INTEROP_DEVICE float approximate_reciprocal(float x) {  // to 1 unit in the last place; of what is very small, infinite
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: an integer that is added to it is in its lowest bits

/// An integer of 8 or 16 bits; by its bits, as conversions take longer.
template <typename T>
INTEROP_DEVICE float small_to_float(T x) {
  constexpr unsigned offset = Facts<T>::is_signed ? 1u << (8 * sizeof(T) - 1) : 0;
  constexpr unsigned mask = sizeof(T) == 1 ? 0xffu : 0xffffu;
  return __uint_as_float(((static_cast<unsigned>(x) ^ offset) & mask) | 0x4b000000u) -
         static_cast<float>(0x800000u + offset);
}

/// The quotient of integers of 8 or 16 bits, rounded down, plus kRounder; infinite where b is 0. A half more, away from
/// the next integer, leaves room for the error of the reciprocal.
template <typename T>
INTEROP_DEVICE float small_quotient(float a, float b) {
  const float half = Facts<T>::is_signed ? copysignf(0.5f, b) : 0.5f;
  return __fmaf_rd(__fadd_rn(a, half), approximate_reciprocal(b), kRounder);
}

/// a / b toward zero; 0 where b is 0.
template <typename T>
INTEROP_DEVICE T truncated_quotient(T a, T b) {
  bool special = b == 0;
  if constexpr (Facts<T>::is_signed) special |= b == static_cast<T>(-1);
  const T quotient = a / (special ? static_cast<T>(1) : b);
  if constexpr (Facts<T>::is_signed) {  // the least one wraps
    return b == 0 ? 0 : special ? static_cast<T>(Wrapping<T>(0) - static_cast<Wrapping<T>>(a)) : quotient;
  } else {
    return b == 0 ? 0 : quotient;
  }
}

/// What is left of a; where b is 0, that is a.
template <typename T>
INTEROP_DEVICE T rest_of(T a, T b, T quotient) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(quotient) * static_cast<Wrapping<T>>(b));
}

template <typename T>
INTEROP_DEVICE T integer_floor_divide(T a, T b) {
  if constexpr (sizeof(T) <= 2) {
    return static_cast<T>(__float_as_uint(small_quotient<T>(small_to_float(a), small_to_float(b))));
  } else {
    const T quotient = truncated_quotient(a, b), rest = rest_of(a, b, quotient);
    return Facts<T>::is_signed && b != 0 && rest != 0 && (rest < 0) != (b < 0) ? quotient - 1 : quotient;
  }
}

template <typename T>
INTEROP_DEVICE T integer_remainder(T a, T b) {
  if (b == 0) return 0;
  if constexpr (sizeof(T) <= 2) {
    const float x = small_to_float(a), y = small_to_float(b);
    const float rest = __fmaf_rn(-__fadd_rn(small_quotient<T>(x, y), -kRounder), y, x);
    return static_cast<T>(__float_as_uint(__fadd_rn(rest, kRounder)));
  } else {
    const T rest = rest_of(a, b, truncated_quotient(a, b));
    return Facts<T>::is_signed && rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }
}

template <typename T>
INTEROP_CALLED T integer_pow(T base, T exponent) {
  if constexpr (Facts<T>::is_signed) {
    if (exponent < 0) return base == 1 ? 1 : base == -1 ? ((exponent & 1) ? -1 : 1) : 0;
  }
  Wrapping<T> result = 1, square = static_cast<Wrapping<T>>(base);
  for (Wrapping<T> left = static_cast<Wrapping<T>>(exponent); left != 0; left >>= 1) {
    if (left & 1) result *= square;
    square *= square;
  }
  return static_cast<T>(result);
}

// ---- floats ----

INTEROP_DEVICE float remainder_toward_zero(float a, float b) { return fmodf(a, b); }
INTEROP_DEVICE double remainder_toward_zero(double a, double b) { return fmod(a, b); }
INTEROP_DEVICE float round_down(float x) { return floorf(x); }
INTEROP_DEVICE double round_down(double x) { return floor(x); }
INTEROP_DEVICE float with_sign(float x, float y) { return copysignf(x, y); }
INTEROP_DEVICE double with_sign(double x, double y) { return copysign(x, y); }
INTEROP_CALLED float power_of_all(float x, float y) { return powf(x, y); }
INTEROP_DEVICE double power(double x, double y) { return pow(x, y); }
INTEROP_CALLED float length(float x, float y) { return hypotf(x, y); }
INTEROP_CALLED double length(double x, double y) { return hypot(x, y); }
INTEROP_DEVICE float magnitude(float x) { return fabsf(x); }
INTEROP_DEVICE double magnitude(double x) { return fabs(x); }

/// The integer nearest to a / b, or one beside it where two are as near, and a - b times that, which is exact.
template <typename F>
struct Nearest {
  F ratio, quotient, rest;
  bool known;  // else a or b is too far out for that
};
INTEROP_DEVICE Nearest<float> nearest_quotient(float a, float b) {
  const float ratio = __fmul_rn(a, approximate_reciprocal(b));
  const float quotient = __fadd_rn(__fadd_rn(ratio, kRounder), -kRounder);
  return {ratio, quotient, __fmaf_rn(-quotient, b, a),
          fabsf(ratio) < 0x1p21f && fabsf(b) > 0x1p-100f && fabsf(b) < 0x1p100f};
}
INTEROP_DEVICE Nearest<double> nearest_quotient(double a, double b) {
  constexpr double rounder = 6755399441055744.0;  // 1.5 * 2^52
  double reciprocal;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(reciprocal) : "d"(b));
#pragma unroll
  for (int i = 0; i < 2; ++i) reciprocal = __fma_rn(__fma_rn(-b, reciprocal, 1.0), reciprocal, reciprocal);
  const double ratio = __dmul_rn(a, reciprocal);
  const double quotient = __dadd_rn(__dadd_rn(ratio, rounder), -rounder);
  return {ratio, quotient, __fma_rn(-quotient, b, a), fabs(ratio) < 0x1p40 && fabs(b) > 0x1p-900 && fabs(b) < 0x1p900};
}

template <typename F>
INTEROP_DEVICE F floored_rest(F rest, F b) {
  if (rest == 0) return with_sign(F(0), b);
  return (b < 0) != (rest < 0) ? rest + b : rest;
}
template <typename F>
INTEROP_CALLED F float_remainder_of_all(F a, F b) {
  const F rest = remainder_toward_zero(a, b);
  return b == 0 ? rest : floored_rest(rest, b);
}
template <typename F>
INTEROP_CALLED F float_floor_divide_of_all(F a, F b) {
  if (b == 0) return a / b;
  const F rest = remainder_toward_zero(a, b);
  F quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return with_sign(F(0), a / b);
  const F down = round_down(quotient);
  return quotient - down > F(0.5) ? down + 1 : down;
}

/// x ** y as 2 ** (y * log2(x)), to 2 units in the last place.
//   x = 2^e m with m between sqrt(1/2) and sqrt(2); u = 2 (m - 1) / (m + 1) and u_low, what u is short of that
//   log2(x) = e + log2(e) u + u^3 (c0 + c1 u^2 + ...), as a sum of two floats, as y may be some hundreds
//   2^z = 2^n 2^g with n an integer and g between -1/2 and 1/2, a polynomial
// The coefficients are those whose worst error between these bounds is least: 1e-11 and 3e-9, relative.
INTEROP_DEVICE float power(float x, float y) {
  constexpr float kLog = 1.44269504f, kLogLow = 1.92596303e-8f;  // log2(e)
  const int bits = __float_as_int(x), exponent = (bits - 0x3f3504f3) & 0xff800000;
  const float m = __int_as_float(bits - exponent), e = __fmul_rn(static_cast<float>(exponent), 0x1p-23f);
  const float a = __fadd_rn(m, -1.0f), reciprocal = approximate_reciprocal(__fadd_rn(m, 1.0f));
  const float u = __fmul_rn(__fadd_rn(a, a), reciprocal), left = __fadd_rn(a, -u);
  const float u_low = __fmul_rn(reciprocal, __fmaf_rn(-a, u, __fadd_rn(left, left))), v = __fmul_rn(u, u);
  float c = __fmaf_rn(v, 0.00065720896f, 0.0032181817f);
  c = __fmul_rn(v, __fmaf_rn(v, __fmaf_rn(v, c, 0.018033713f), 0.12022459f));
  const float head = __fmaf_rn(u, kLog, e);
  float tail = __fmaf_rn(u, kLog, __fadd_rn(e, -head));
  tail = __fmaf_rn(u, kLogLow, __fmaf_rn(u_low, kLog, tail));
  tail = __fmaf_rn(u, c, __fmaf_rn(u_low, __fmul_rn(c, 3.0f), tail));
  const float log = __fadd_rn(head, tail), log_low = __fadd_rn(tail, -__fadd_rn(log, -head));
  const float z = __fmul_rn(y, log), z_low = __fmaf_rn(y, log_low, __fmaf_rn(y, log, -z));
  const float shifted = __fadd_rn(z, kRounder);
  const float g = __fadd_rn(__fadd_rn(z, -__fadd_rn(shifted, -kRounder)), z_low);
  float power = __fmaf_rn(g, 0.00015328586f, 0.0013390984f);
  power = __fmaf_rn(g, __fmaf_rn(g, __fmaf_rn(g, power, 0.0096185012f), 0.055503596f), 0.24022648f);
  power = __fmaf_rn(g, __fmaf_rn(g, power, 0.69314718f), 1.0f);
  const bool known = static_cast<unsigned>(bits) - 0x00800000u < 0x7f000000u && fabsf(z) < 125.0f;
  if (!known) return power_of_all(x, y);  // x is not positive and normal, or the result may not be
  return __int_as_float(__float_as_int(power) + (__float_as_int(shifted) << 23));
}

/// Python's and NumPy's remainder: it has the divisor's sign, even if it is zero.
template <typename F>
INTEROP_DEVICE F float_remainder(F a, F b) {
  const Nearest<F> nearest = nearest_quotient(a, b);
  return nearest.known ? floored_rest(nearest.rest, b) : float_remainder_of_all(a, b);
}

/// NumPy's floor division: the quotient that belongs to the remainder, not the floor of the rounded quotient.
template <typename F>
INTEROP_DEVICE F float_floor_divide(F a, F b) {
  const Nearest<F> nearest = nearest_quotient(a, b);
  if (!nearest.known) return float_floor_divide_of_all(a, b);
  const bool is_above = nearest.rest != 0 && (nearest.rest < 0) != (b < 0);
  return with_sign(is_above ? nearest.quotient - 1 : nearest.quotient, nearest.ratio);
}

// A quotient of 16-bit floats: that of float, rounded. Its float may be wrong in the last place, as it is nearer to a
// number of 16 bits than to the middle of two, by more than that, or it is exact.
INTEROP_DEVICE float quotient_of(Half a, Half b) {
  const float x = to_float(a), y = to_float(b), reciprocal = approximate_reciprocal(y);
  const float ratio = __fmul_rn(x, reciprocal);
  const float better = __fmaf_rn(__fmaf_rn(-ratio, y, x), reciprocal, ratio);
  return better != better ? ratio : with_sign(better, ratio);  // NaN of infinities, and of a divisor that is zero
}
INTEROP_DEVICE float quotient_of(BFloat16 a, BFloat16 b) {
  const float x = to_float(a), y = to_float(b), ratio = __fmul_rn(x, approximate_reciprocal(y));
  const bool known = fabsf(y) > 0x1p-100f && fabsf(y) < 0x1p100f && fabsf(ratio) > 0x1p-100f && fabsf(ratio) < 0x1p100f;
  return known ? ratio : x / y;
}

// ---- complex numbers ----

/// Smith's algorithm, which overflows only where the result does.
template <typename F>
INTEROP_CALLED Complex<F> complex_divide(Complex<F> a, Complex<F> b) {
  const F re = magnitude(b.re), im = magnitude(b.im);
  if (re >= im) {
    if (re == 0 && im == 0) return {a.re / re, a.im / re};
    const F ratio = b.im / b.re, scale = F(1) / (b.re + b.im * ratio);
    return {(a.re + a.im * ratio) * scale, (a.im - a.re * ratio) * scale};
  }
  const F ratio = b.re / b.im, scale = F(1) / (b.im + b.re * ratio);
  return {(a.re * ratio + a.im) * scale, (a.im * ratio - a.re) * scale};
}

template <typename F>
INTEROP_DEVICE Complex<F> complex_multiply(Complex<F> a, Complex<F> b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

/// By polar coordinates, in double: one body for both complex dtypes.
INTEROP_CALLED Complex<double> complex_pow_polar(Complex<double> a, Complex<double> b) {
  const double log_length = log(hypot(a.re, a.im)), angle = atan2(a.im, a.re);
  const double scale = exp(b.re * log_length - b.im * angle);
  double sine, cosine;
  sincos(b.im * log_length + b.re * angle, &sine, &cosine);
  return {scale * cosine, scale * sine};
}

/// A power by repeated multiplication; the exponent is not 0, and between -100 and 100. Exponents 1, 2 and 3 do not
/// begin with a product by 1. The products and their order are NumPy's, and so are the signs of zeros and the results
/// for infinities.
template <typename F>
INTEROP_CALLED Complex<F> complex_integral_pow(Complex<F> a, int exponent) {
  if (exponent == 1) return a;
  if (exponent == 2) return complex_multiply(a, a);
  if (exponent == 3) return complex_multiply(a, complex_multiply(a, a));
  Complex<F> result{1, 0};
  for (unsigned left = exponent < 0 ? -exponent : exponent;;) {
    if (left & 1) result = complex_multiply(result, a);
    if ((left >>= 1) == 0) break;
    a = complex_multiply(a, a);
  }
  return exponent < 0 ? complex_divide(Complex<F>{1, 0}, result) : result;
}

template <typename F>
INTEROP_CALLED Complex<F> complex_pow(Complex<F> a, Complex<F> b) {
  if (b.re == 0 && b.im == 0) return {1, 0};
  if (a.re == 0 && a.im == 0) {
    const F nan = static_cast<F>(__int_as_float(0x7fc00000));
    return b.re > 0 ? Complex<F>{0, 0} : Complex<F>{nan, nan};
  }
  if (b.im == 0 && b.re > -100 && b.re < 100) {
    const int exponent = static_cast<int>(b.re);
    if (static_cast<F>(exponent) == b.re) return complex_integral_pow(a, exponent);
  }
  const Complex<double> power = complex_pow_polar({a.re, a.im}, {b.re, b.im});
  return {static_cast<F>(power.re), static_cast<F>(power.im)};
}

}  // namespace interop::device
