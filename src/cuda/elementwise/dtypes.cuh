// The dtypes that have no C++ type, conversions, and facts of types. Device code alone, which includes nothing: NVRTC
// compiles this text as it stands.
#pragma once

namespace interop::device {

#define INTEROP_DEVICE __device__ __forceinline__
#define INTEROP_CALLED static __device__ __noinline__  // long code, of which one copy is enough

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

}  // namespace interop::device
