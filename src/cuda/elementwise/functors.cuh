// The elementwise operations on one element, and the dtypes that have no C++ type. Device code alone, which includes
// nothing: NVRTC compiles this text as it stands.
//
// A functor takes elements of the storage type T and returns one. 16-bit floats are computed in float and rounded once.
// Integers wrap. What is undefined in C++ is defined here: an integer divided by zero is 0, `//` and `%` round down as
// in Python, negative integer powers are 0 but for the bases 1 and -1.
#pragma once

namespace interop::device {

#define INTEROP_DEVICE __device__ __forceinline__
#define INTEROP_CALLED static __device__ __noinline__  // long code, of which one copy is enough

// ---- dtypes ----

struct Half {
  unsigned short bits;
};
struct BFloat16 {
  unsigned short bits;
};
template <typename T>
struct alignas(2 * sizeof(T)) Complex {
  T re, im;
};

INTEROP_DEVICE float to_float(Half x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
INTEROP_DEVICE float to_float(BFloat16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }

template <typename T>
struct Round;
template <>
struct Round<Half> {
  INTEROP_DEVICE static Half from(float x) {
    Half y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
  }
};
template <>
struct Round<BFloat16> {
  // To the nearest, ties to even.
  INTEROP_DEVICE static BFloat16 from(float x) {
#if __CUDA_ARCH__ >= 800
    BFloat16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
#else  // there is no instruction for it
    const unsigned bits = __float_as_uint(x);
    const unsigned rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return {static_cast<unsigned short>(x != x ? 0x7fffu : rounded)};  // the NaN of the instruction
#endif
  }
};

/// The type in which an element is computed, and the conversions to it and back.
template <typename T>
struct Arithmetic {
  using Type = T;
  INTEROP_DEVICE static T load(T x) { return x; }
  INTEROP_DEVICE static T store(T x) { return x; }
};
template <>
struct Arithmetic<Half> {
  using Type = float;
  INTEROP_DEVICE static float load(Half x) { return to_float(x); }
  INTEROP_DEVICE static Half store(float x) { return Round<Half>::from(x); }
};
template <>
struct Arithmetic<BFloat16> {
  using Type = float;
  INTEROP_DEVICE static float load(BFloat16 x) { return to_float(x); }
  INTEROP_DEVICE static BFloat16 store(float x) { return Round<BFloat16>::from(x); }
};

// Facts of types, as NVRTC has no <type_traits>.
template <typename T>
struct Facts {
  static constexpr bool is_integer = true, is_complex = false, is_bool = false;
  static constexpr bool is_signed = static_cast<T>(-1) < static_cast<T>(0);
};
template <>
struct Facts<bool> {
  static constexpr bool is_integer = false, is_complex = false, is_bool = true, is_signed = false;
};
struct FloatFacts {
  static constexpr bool is_integer = false, is_complex = false, is_bool = false, is_signed = true;
};
template <>
struct Facts<Half> : FloatFacts {};
template <>
struct Facts<BFloat16> : FloatFacts {};
template <>
struct Facts<float> : FloatFacts {};
template <>
struct Facts<double> : FloatFacts {};
template <typename T>
struct Facts<Complex<T>> {
  static constexpr bool is_integer = false, is_complex = true, is_bool = false, is_signed = true;
};

/// Converts as an assignment does: integers wrap, floats round. Complex converts to complex only; only bool, to bool.
template <typename To, typename From>
struct Convert {
  INTEROP_DEVICE static To from(From x) { return static_cast<To>(x); }
};
template <typename T>
struct Convert<T, T> {
  INTEROP_DEVICE static T from(T x) { return x; }
};
template <typename From>
struct Convert<Half, From> {
  INTEROP_DEVICE static Half from(From x) { return Round<Half>::from(static_cast<float>(x)); }
};
template <typename From>
struct Convert<BFloat16, From> {
  INTEROP_DEVICE static BFloat16 from(From x) { return Round<BFloat16>::from(static_cast<float>(x)); }
};
template <typename To>
struct Convert<To, Half> {
  INTEROP_DEVICE static To from(Half x) { return static_cast<To>(to_float(x)); }
};
template <typename To>
struct Convert<To, BFloat16> {
  INTEROP_DEVICE static To from(BFloat16 x) { return static_cast<To>(to_float(x)); }
};
template <>
struct Convert<Half, Half> {
  INTEROP_DEVICE static Half from(Half x) { return x; }
};
template <>
struct Convert<BFloat16, BFloat16> {
  INTEROP_DEVICE static BFloat16 from(BFloat16 x) { return x; }
};
template <>
struct Convert<Half, BFloat16> {
  INTEROP_DEVICE static Half from(BFloat16 x) { return Round<Half>::from(to_float(x)); }
};
template <>
struct Convert<BFloat16, Half> {
  INTEROP_DEVICE static BFloat16 from(Half x) { return Round<BFloat16>::from(to_float(x)); }
};
template <typename T, typename From>
struct Convert<Complex<T>, From> {
  INTEROP_DEVICE static Complex<T> from(From x) { return {Convert<T, From>::from(x), T(0)}; }
};
template <typename T, typename From>
struct Convert<Complex<T>, Complex<From>> {
  INTEROP_DEVICE static Complex<T> from(Complex<From> x) { return {static_cast<T>(x.re), static_cast<T>(x.im)}; }
};
template <typename T>
struct Convert<Complex<T>, Complex<T>> {
  INTEROP_DEVICE static Complex<T> from(Complex<T> x) { return x; }
};
template <typename T>
struct Convert<Complex<T>, Half> {
  INTEROP_DEVICE static Complex<T> from(Half x) { return {static_cast<T>(to_float(x)), T(0)}; }
};
template <typename T>
struct Convert<Complex<T>, BFloat16> {
  INTEROP_DEVICE static Complex<T> from(BFloat16 x) { return {static_cast<T>(to_float(x)), T(0)}; }
};

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

template <typename T>
INTEROP_CALLED T integer_floor_divide(T a, T b) {
  if (b == 0) return 0;
  if constexpr (Facts<T>::is_signed) {
    if (b == -1) return static_cast<T>(Wrapping<T>(0) - static_cast<Wrapping<T>>(a));  // the least one wraps
    const T quotient = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
  } else {
    return a / b;
  }
}

template <typename T>
INTEROP_CALLED T integer_remainder(T a, T b) {
  if (b == 0) return 0;
  if constexpr (Facts<T>::is_signed) {
    if (b == -1) return 0;
    const T rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  } else {
    return a % b;
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
INTEROP_CALLED float power(float x, float y) { return powf(x, y); }
INTEROP_CALLED double power(double x, double y) { return pow(x, y); }
INTEROP_CALLED float length(float x, float y) { return hypotf(x, y); }
INTEROP_CALLED double length(double x, double y) { return hypot(x, y); }
INTEROP_DEVICE float magnitude(float x) { return fabsf(x); }
INTEROP_DEVICE double magnitude(double x) { return fabs(x); }

/// Python's and NumPy's remainder: it has the divisor's sign, even if it is zero.
template <typename F>
INTEROP_CALLED F float_remainder(F a, F b) {
  const F rest = remainder_toward_zero(a, b);
  if (b == 0) return rest;
  if (rest == 0) return with_sign(F(0), b);
  return (b < 0) != (rest < 0) ? rest + b : rest;
}

/// NumPy's floor division: the quotient that belongs to the remainder, not the floor of the rounded quotient.
template <typename F>
INTEROP_CALLED F float_floor_divide(F a, F b) {
  if (b == 0) return a / b;
  const F rest = remainder_toward_zero(a, b);
  F quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return with_sign(F(0), a / b);
  const F down = round_down(quotient);
  return quotient - down > F(0.5) ? down + 1 : down;
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

// ---- the operations ----

struct Copy {
  template <typename T>
  INTEROP_DEVICE T operator()(T a, T) const {
    return a;
  }
};

struct Add {
  template <typename T>
  INTEROP_DEVICE T operator()(T a, T b) const {
    using A = Arithmetic<T>;
    if constexpr (Facts<T>::is_bool) {
      return a || b;
    } else if constexpr (Facts<T>::is_complex) {
      return {a.re + b.re, a.im + b.im};
    } else if constexpr (Facts<T>::is_integer) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
    } else {
      return A::store(A::load(a) + A::load(b));
    }
  }
};

struct Subtract {
  template <typename T>
  INTEROP_DEVICE T operator()(T a, T b) const {
    using A = Arithmetic<T>;
    if constexpr (Facts<T>::is_complex) {
      return {a.re - b.re, a.im - b.im};
    } else if constexpr (Facts<T>::is_integer) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(b));
    } else {
      return A::store(A::load(a) - A::load(b));
    }
  }
};

struct Multiply {
  template <typename T>
  INTEROP_DEVICE T operator()(T a, T b) const {
    using A = Arithmetic<T>;
    if constexpr (Facts<T>::is_bool) {
      return a && b;
    } else if constexpr (Facts<T>::is_complex) {
      return complex_multiply(a, b);
    } else if constexpr (Facts<T>::is_integer) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    } else {
      return A::store(A::load(a) * A::load(b));
    }
  }
};

struct Divide {
  template <typename T>
  INTEROP_DEVICE T operator()(T a, T b) const {
    using A = Arithmetic<T>;
    if constexpr (Facts<T>::is_complex) {
      return complex_divide(a, b);
    } else {
      return A::store(A::load(a) / A::load(b));
    }
  }
};

/// With `replaces_zero`, the result is `where_zero` where the divisor is zero.
template <typename T>
struct DivideOr {
  bool replaces_zero;
  T where_zero;
  INTEROP_DEVICE T operator()(T a, T b) const {
    if constexpr (Facts<T>::is_complex) {
      return replaces_zero && b.re == 0 && b.im == 0 ? where_zero : Divide{}(a, b);
    } else {
      return replaces_zero && Arithmetic<T>::load(b) == 0 ? where_zero : Divide{}(a, b);
    }
  }
};

struct Minimum {
  template <typename T>
  INTEROP_DEVICE T operator()(T a, T b) const {
    const auto x = Arithmetic<T>::load(a), y = Arithmetic<T>::load(b);
    return x <= y || x != x ? a : b;  // NaN if either is
  }
};

struct Maximum {
  template <typename T>
  INTEROP_DEVICE T operator()(T a, T b) const {
    const auto x = Arithmetic<T>::load(a), y = Arithmetic<T>::load(b);
    return x >= y || x != x ? a : b;
  }
};

struct Negative {
  template <typename T>
  INTEROP_DEVICE T operator()(T a, T) const {
    using A = Arithmetic<T>;
    if constexpr (Facts<T>::is_complex) {
      return {-a.re, -a.im};
    } else if constexpr (Facts<T>::is_integer) {
      return static_cast<T>(Wrapping<T>(0) - static_cast<Wrapping<T>>(a));
    } else {
      return A::store(-A::load(a));
    }
  }
};

struct Abs {
  template <typename T>
  INTEROP_DEVICE T operator()(T a, T b) const {
    using A = Arithmetic<T>;
    if constexpr (!Facts<T>::is_signed) {
      return a;
    } else if constexpr (Facts<T>::is_integer) {
      return a < 0 ? Negative{}(a, b) : a;
    } else {
      return A::store(magnitude(A::load(a)));
    }
  }
  template <typename F>
  INTEROP_DEVICE F operator()(Complex<F> a, Complex<F>) const {
    return length(a.re, a.im);
  }
};

struct FloorDivide {
  template <typename T>
  INTEROP_DEVICE T operator()(T a, T b) const {
    using A = Arithmetic<T>;
    if constexpr (Facts<T>::is_integer) {
      return integer_floor_divide(a, b);
    } else {
      return A::store(float_floor_divide(A::load(a), A::load(b)));
    }
  }
};

struct Remainder {
  template <typename T>
  INTEROP_DEVICE T operator()(T a, T b) const {
    using A = Arithmetic<T>;
    if constexpr (Facts<T>::is_integer) {
      return integer_remainder(a, b);
    } else {
      return A::store(float_remainder(A::load(a), A::load(b)));
    }
  }
};

struct Pow {
  template <typename T>
  INTEROP_DEVICE T operator()(T a, T b) const {
    using A = Arithmetic<T>;
    if constexpr (Facts<T>::is_complex) {
      return complex_pow(a, b);
    } else if constexpr (Facts<T>::is_integer) {
      return integer_pow(a, b);
    } else {
      return A::store(power(A::load(a), A::load(b)));
    }
  }
};

struct Equal {
  template <typename T>
  INTEROP_DEVICE bool operator()(T a, T b) const {
    if constexpr (Facts<T>::is_complex) {
      return a.re == b.re && a.im == b.im;
    } else {
      return Arithmetic<T>::load(a) == Arithmetic<T>::load(b);
    }
  }
};

struct NotEqual {
  template <typename T>
  INTEROP_DEVICE bool operator()(T a, T b) const {
    return !Equal{}(a, b);
  }
};

struct Less {
  template <typename T>
  INTEROP_DEVICE bool operator()(T a, T b) const {
    return Arithmetic<T>::load(a) < Arithmetic<T>::load(b);
  }
};

struct LessEqual {
  template <typename T>
  INTEROP_DEVICE bool operator()(T a, T b) const {
    return Arithmetic<T>::load(a) <= Arithmetic<T>::load(b);
  }
};

struct Greater {
  template <typename T>
  INTEROP_DEVICE bool operator()(T a, T b) const {
    return Less{}(b, a);
  }
};

struct GreaterEqual {
  template <typename T>
  INTEROP_DEVICE bool operator()(T a, T b) const {
    return LessEqual{}(b, a);
  }
};

/// A comparison in uint64 of operands that may have been signed before they were converted, by their bits.
template <typename Compare>
struct WithSigns {
  bool a_signed, b_signed;
  INTEROP_DEVICE bool operator()(unsigned long long a, unsigned long long b) const {
    const bool a_negative = a_signed && static_cast<long long>(a) < 0;
    const bool b_negative = b_signed && static_cast<long long>(b) < 0;
    return a_negative == b_negative ? Compare{}(a, b) : Compare{}(b_negative, a_negative);
  }
};

}  // namespace interop::device
