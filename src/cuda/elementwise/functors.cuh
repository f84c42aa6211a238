// The elementwise operations on one element. Device code alone, for NVRTC too.
//
// A functor takes elements of the storage type T and returns one. 16-bit floats are computed in float and rounded once.
// Integers wrap. What is undefined in C++ is defined here: an integer divided by zero is 0, `//` and `%` round down as
// in Python, negative integer powers are 0 but for the bases 1 and -1.
#pragma once

#include "cuda/elementwise/arithmetic.cuh"

namespace interop::device {

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
    } else if constexpr (sizeof(T) == 2) {
      return A::store(quotient_of(a, b));
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
