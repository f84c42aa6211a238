// The functions that only expressions have, on one element, like those of functors.cuh. 16-bit floats are computed in
// float and rounded once.
#pragma once

#include "cuda/elementwise/functors.cuh"

namespace interop::device {

/// Is an element true, that is, not zero?
struct Truth {
  template <typename T>
  INTEROP_DEVICE bool operator()(T x) const {
    if constexpr (Facts<T>::is_complex) {
      return x.re != 0 || x.im != 0;
    } else {
      return Arithmetic<T>::load(x) != 0;
    }
  }
};

/// Converts the value of a step to the type in which the next step is computed.
template <typename To, typename From>
INTEROP_DEVICE To as(From x) {
  if constexpr (Facts<To>::is_bool) {
    return Truth{}(x);
  } else {
    return Convert<To, From>::from(x);
  }
}

// ---- functions of floats ----

// These are inlined, as a kernel has few of them: calls would compute the elements of a vector one after the other.
#define INTEROP_UNARY(Name, of_float, of_double)                            \
  struct Name {                                                             \
    INTEROP_DEVICE static float compute(float x) { return of_float(x); }    \
    INTEROP_DEVICE static double compute(double x) { return of_double(x); } \
    template <typename T>                                                   \
    INTEROP_DEVICE T operator()(T x) const {                                \
      return Arithmetic<T>::store(compute(Arithmetic<T>::load(x)));         \
    }                                                                       \
  }
#define INTEROP_BINARY(Name, of_float, of_double)                                           \
  struct Name {                                                                             \
    INTEROP_DEVICE static float compute(float x, float y) { return of_float(x, y); }        \
    INTEROP_DEVICE static double compute(double x, double y) { return of_double(x, y); }    \
    template <typename T>                                                                   \
    INTEROP_DEVICE T operator()(T x, T y) const {                                           \
      return Arithmetic<T>::store(compute(Arithmetic<T>::load(x), Arithmetic<T>::load(y))); \
    }                                                                                       \
  }
INTEROP_UNARY(Sqrt, sqrtf, sqrt);
INTEROP_UNARY(Exp, expf, exp);
INTEROP_UNARY(Expm1, expm1f, expm1);
INTEROP_UNARY(Log, logf, log);
INTEROP_UNARY(Log1p, log1pf, log1p);
INTEROP_UNARY(Log2, log2f, log2);
INTEROP_UNARY(Log10, log10f, log10);
INTEROP_UNARY(Sin, sinf, sin);
INTEROP_UNARY(Cos, cosf, cos);
INTEROP_UNARY(Tan, tanf, tan);
INTEROP_UNARY(Asin, asinf, asin);
INTEROP_UNARY(Acos, acosf, acos);
INTEROP_UNARY(Atan, atanf, atan);
INTEROP_UNARY(Sinh, sinhf, sinh);
INTEROP_UNARY(Cosh, coshf, cosh);
INTEROP_UNARY(Tanh, tanhf, tanh);
INTEROP_UNARY(Asinh, asinhf, asinh);
INTEROP_UNARY(Acosh, acoshf, acosh);
INTEROP_UNARY(Atanh, atanhf, atanh);
INTEROP_BINARY(Atan2, atan2f, atan2);
INTEROP_BINARY(Hypot, hypotf, hypot);
#undef INTEROP_UNARY
#undef INTEROP_BINARY

struct Copysign {
  template <typename T>
  INTEROP_DEVICE T operator()(T x, T y) const {
    return Arithmetic<T>::store(with_sign(Arithmetic<T>::load(x), Arithmetic<T>::load(y)));
  }
};

// ---- rounding to integers, which leaves integers as they are ----

#define INTEROP_ROUNDING(Name, of_float, of_double)                         \
  struct Name {                                                             \
    INTEROP_DEVICE static float compute(float x) { return of_float(x); }    \
    INTEROP_DEVICE static double compute(double x) { return of_double(x); } \
    template <typename T>                                                   \
    INTEROP_DEVICE T operator()(T x) const {                                \
      if constexpr (Facts<T>::is_integer) {                                 \
        return x;                                                           \
      } else {                                                              \
        return Arithmetic<T>::store(compute(Arithmetic<T>::load(x)));       \
      }                                                                     \
    }                                                                       \
  }
INTEROP_ROUNDING(Floor, floorf, floor);
INTEROP_ROUNDING(Ceil, ceilf, ceil);
INTEROP_ROUNDING(Trunc, truncf, trunc);
INTEROP_ROUNDING(RoundEven, rintf, rint);
#undef INTEROP_ROUNDING

// ---- arithmetic ----

struct Square {
  template <typename T>
  INTEROP_DEVICE T operator()(T x) const {
    return Multiply{}(x, x);
  }
};

struct Sign {
  template <typename T>
  INTEROP_DEVICE T operator()(T x) const {
    const auto value = Arithmetic<T>::load(x);
    if constexpr (Facts<T>::is_integer) {
      return static_cast<T>((value > 0) - (value < 0));
    } else {
      // NaN stays; zeros are +0, as NumPy's.
      return value != value ? x : Arithmetic<T>::store(static_cast<decltype(+value)>((value > 0) - (value < 0)));
    }
  }
};

/// The parts of a complex number; another number is its own real part and conjugate.
struct Same {
  template <typename T>
  INTEROP_DEVICE T operator()(T x) const {
    return x;
  }
};
struct Real {
  template <typename T>
  INTEROP_DEVICE T operator()(T x) const {
    return x;
  }
  template <typename F>
  INTEROP_DEVICE F operator()(Complex<F> x) const {
    return x.re;
  }
};
struct Imag {
  template <typename F>
  INTEROP_DEVICE F operator()(Complex<F> x) const {
    return x.im;
  }
};
struct Conj {
  template <typename T>
  INTEROP_DEVICE T operator()(T x) const {
    return x;
  }
  template <typename F>
  INTEROP_DEVICE Complex<F> operator()(Complex<F> x) const {
    return {x.re, -x.im};
  }
};

// ---- tests ----

INTEROP_DEVICE bool is_nan(float x) { return x != x; }
INTEROP_DEVICE bool is_nan(double x) { return x != x; }
INTEROP_DEVICE bool is_infinite(float x) { return fabsf(x) == __int_as_float(0x7f800000); }
INTEROP_DEVICE bool is_infinite(double x) { return fabs(x) == __longlong_as_double(0x7ff0000000000000ll); }

struct IsNan {
  template <typename T>
  INTEROP_DEVICE bool operator()(T x) const {
    if constexpr (Facts<T>::is_complex) {
      return is_nan(x.re) || is_nan(x.im);
    } else if constexpr (Facts<T>::is_integer || Facts<T>::is_bool) {
      return false;
    } else {
      return is_nan(Arithmetic<T>::load(x));
    }
  }
};
struct IsInf {
  template <typename T>
  INTEROP_DEVICE bool operator()(T x) const {
    if constexpr (Facts<T>::is_complex) {
      return is_infinite(x.re) || is_infinite(x.im);
    } else if constexpr (Facts<T>::is_integer || Facts<T>::is_bool) {
      return false;
    } else {
      return is_infinite(Arithmetic<T>::load(x));
    }
  }
};
struct IsFinite {
  template <typename T>
  INTEROP_DEVICE bool operator()(T x) const {
    return !IsNan{}(x) && !IsInf{}(x);
  }
};
struct SignBit {
  template <typename T>
  INTEROP_DEVICE bool operator()(T x) const {
    const auto value = Arithmetic<T>::load(x);
    if constexpr (Facts<T>::is_integer) {
      return value < 0;
    } else {
      return with_sign(static_cast<decltype(+value)>(1), value) < 0;
    }
  }
};

// ---- logic, and bits ----

struct LogicalAnd {
  INTEROP_DEVICE bool operator()(bool x, bool y) const { return x && y; }
};
struct LogicalOr {
  INTEROP_DEVICE bool operator()(bool x, bool y) const { return x || y; }
};
struct LogicalXor {
  INTEROP_DEVICE bool operator()(bool x, bool y) const { return x != y; }
};
struct LogicalNot {
  INTEROP_DEVICE bool operator()(bool x) const { return !x; }
};
struct BitwiseAnd {
  template <typename T>
  INTEROP_DEVICE T operator()(T x, T y) const {
    return static_cast<T>(x & y);
  }
};
struct BitwiseOr {
  template <typename T>
  INTEROP_DEVICE T operator()(T x, T y) const {
    return static_cast<T>(x | y);
  }
};
struct BitwiseXor {
  template <typename T>
  INTEROP_DEVICE T operator()(T x, T y) const {
    return static_cast<T>(x ^ y);
  }
};
struct BitwiseInvert {
  template <typename T>
  INTEROP_DEVICE T operator()(T x) const {
    if constexpr (Facts<T>::is_bool) {
      return !x;
    } else {
      return static_cast<T>(~x);
    }
  }
};

/// NumPy's shifts: a shift by all bits or more, or by a negative count, leaves only the sign.
struct LeftShift {
  template <typename T>
  INTEROP_DEVICE T operator()(T x, T count) const {
    if (static_cast<Wrapping<T>>(count) >= 8 * sizeof(T)) return 0;
    return static_cast<T>(static_cast<Wrapping<T>>(x) << count);
  }
};
struct RightShift {
  template <typename T>
  INTEROP_DEVICE T operator()(T x, T count) const {
    if (static_cast<Wrapping<T>>(count) >= 8 * sizeof(T)) return x < 0 ? static_cast<T>(-1) : static_cast<T>(0);
    return static_cast<T>(x >> count);
  }
};

struct Where {
  template <typename T>
  INTEROP_DEVICE T operator()(bool condition, T x, T y) const {
    return condition ? x : y;
  }
};

}  // namespace interop::device
