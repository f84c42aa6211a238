// Operations on several small elements at a time, in words of 4 bytes: the results of functors.cuh, bit for bit. One by
// one, elements of 8 and 16 bits take longer to unpack and pack than memory takes to move them.
#pragma once

#include "cuda/elementwise/functors.cuh"

namespace interop::device {

template <int Bytes>
constexpr unsigned kTops = Bytes == 1 ? 0x80808080u : 0x80008000u;  // the highest bit of each element
template <int Bytes>
constexpr unsigned kOnes = Bytes == 1 ? 0x01010101u : 0x00010001u;

/// The highest bit of each element, in all its bits.
template <int Bytes>
INTEROP_DEVICE unsigned spread_tops(unsigned x) {
  unsigned mask;
  if constexpr (Bytes == 1) {
    asm("prmt.b32 %0, %1, 0, 0xba98;" : "=r"(mask) : "r"(x));
  } else {
    asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(mask) : "r"(x));
  }
  return mask;
}

INTEROP_DEVICE unsigned select_bits(unsigned mask, unsigned x, unsigned y) { return (x & mask) | (y & ~mask); }

/// Is an element not zero? In its highest bit; the others are anything.
template <int Bytes>
INTEROP_DEVICE unsigned tops_of_nonzero(unsigned x) {
  constexpr unsigned low = ~kTops<Bytes>;
  return ((x & low) + low) | x;
}

/// The highest bit of each element as 0 or 1.
template <int Bytes>
INTEROP_DEVICE unsigned truths_of_tops(unsigned x) {
  return (x >> (8 * Bytes - 1)) & kOnes<Bytes>;
}

/// Four bools, 0 or 1 each, of four bytes that may hold more.
INTEROP_DEVICE unsigned truths_of_bytes(unsigned x) { return truths_of_tops<1>(tops_of_nonzero<1>(x)); }

/// Small integers in a word. A comparison gives 0 or 1 in each.
template <typename T>
struct Word {
  static constexpr int kBytes = sizeof(T);
  static constexpr unsigned kTop = kTops<kBytes>;
  static constexpr bool kSigned = Facts<T>::is_signed;

  INTEROP_DEVICE static unsigned compute(Copy, unsigned a, unsigned) { return a; }
  // The highest bits are added by themselves, so that nothing is carried out of an element.
  INTEROP_DEVICE static unsigned compute(Add, unsigned a, unsigned b) {
    return ((a & ~kTop) + (b & ~kTop)) ^ ((a ^ b) & kTop);
  }
  INTEROP_DEVICE static unsigned compute(Subtract, unsigned a, unsigned b) {
    return ((a | kTop) - (b & ~kTop)) ^ ((a ^ ~b) & kTop);
  }
  // A product's low bits come from the bits below them alone: each element is multiplied where it stands.
  INTEROP_DEVICE static unsigned compute(Multiply, unsigned a, unsigned b) {
    if constexpr (kBytes == 2) return __byte_perm(a * b, (a >> 16) * (b >> 16), 0x5410);
    const unsigned even = __byte_perm(a * b, (a >> 16) * (b >> 16), 0x0400);
    const unsigned odd = __byte_perm((a >> 8) * (b >> 8), (a >> 24) * (b >> 24), 0x0400);
    return __byte_perm(even, odd, 0x6240);
  }
  INTEROP_DEVICE static unsigned compute(Minimum, unsigned a, unsigned b) {
    return select_bits(spread_tops<kBytes>(tops_of_at_least(a, b)), b, a);
  }
  INTEROP_DEVICE static unsigned compute(Maximum, unsigned a, unsigned b) {
    return select_bits(spread_tops<kBytes>(tops_of_at_least(a, b)), a, b);
  }
  INTEROP_DEVICE static unsigned compute(Negative, unsigned a, unsigned) { return compute(Subtract{}, 0, a); }
  INTEROP_DEVICE static unsigned compute(Abs, unsigned a, unsigned) {
    if constexpr (!kSigned) return a;
    const unsigned mask = spread_tops<kBytes>(a);
    return (a ^ mask) + (mask & kOnes<kBytes>);
  }
  INTEROP_DEVICE static unsigned compute(Equal, unsigned a, unsigned b) {
    return truths_of_tops<kBytes>(~tops_of_nonzero<kBytes>(a ^ b));
  }
  INTEROP_DEVICE static unsigned compute(NotEqual, unsigned a, unsigned b) {
    return truths_of_tops<kBytes>(tops_of_nonzero<kBytes>(a ^ b));
  }
  INTEROP_DEVICE static unsigned compute(Less, unsigned a, unsigned b) {
    return truths_of_tops<kBytes>(~tops_of_at_least(a, b));
  }
  INTEROP_DEVICE static unsigned compute(LessEqual, unsigned a, unsigned b) {
    return truths_of_tops<kBytes>(tops_of_at_least(b, a));
  }

 private:
  /// Is a >= b? In the highest bit of each element; the others are anything.
  INTEROP_DEVICE static unsigned tops_of_at_least(unsigned a, unsigned b) {
    const unsigned low = (a | kTop) - (b & ~kTop);  // the highest bit: of the other bits, are those of a at least b's?
    return (kSigned ? ~a & b : a & ~b) | (~(a ^ b) & low);
  }
};

/// Bools in a word, 0 or 1 each.
template <>
struct Word<bool> {
  static constexpr unsigned kOne = kOnes<1>;
  INTEROP_DEVICE static unsigned compute(Copy, unsigned a, unsigned) { return a; }
  INTEROP_DEVICE static unsigned compute(Abs, unsigned a, unsigned) { return a; }
  INTEROP_DEVICE static unsigned compute(Add, unsigned a, unsigned b) { return a | b; }
  INTEROP_DEVICE static unsigned compute(Multiply, unsigned a, unsigned b) { return a & b; }
  INTEROP_DEVICE static unsigned compute(Minimum, unsigned a, unsigned b) { return a & b; }
  INTEROP_DEVICE static unsigned compute(Maximum, unsigned a, unsigned b) { return a | b; }
  INTEROP_DEVICE static unsigned compute(Equal, unsigned a, unsigned b) { return a ^ b ^ kOne; }
  INTEROP_DEVICE static unsigned compute(NotEqual, unsigned a, unsigned b) { return a ^ b; }
  INTEROP_DEVICE static unsigned compute(Less, unsigned a, unsigned b) { return ~a & b; }
  INTEROP_DEVICE static unsigned compute(LessEqual, unsigned a, unsigned b) { return (a ^ kOne) | b; }
};

// Two 16-bit floats in a word. A sum, a difference or a product that is rounded to float and then to 16 bits is the one
// that is rounded once, as a float has more than twice the bits of either; and each NaN is the same one.
#define INTEROP_WORD(Functor, instruction)                                  \
  INTEROP_DEVICE static unsigned compute(Functor, unsigned a, unsigned b) { \
    unsigned both;                                                          \
    asm(instruction " %0, %1, %2;" : "=r"(both) : "r"(a), "r"(b));          \
    return both;                                                            \
  }
template <>
struct Word<Half> {
  INTEROP_WORD(Add, "add.rn.f16x2")
  INTEROP_WORD(Subtract, "sub.rn.f16x2")
  INTEROP_WORD(Multiply, "mul.rn.f16x2")
};
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
template <>
struct Word<BFloat16> {
  INTEROP_WORD(Add, "add.rn.bf16x2")
  INTEROP_WORD(Subtract, "sub.rn.bf16x2")
  INTEROP_WORD(Multiply, "mul.rn.bf16x2")
};
constexpr bool kHasBFloat16Words = true;
#else
constexpr bool kHasBFloat16Words = false;  // before, they are multiply-adds, whose zeros may have another sign
#endif
#undef INTEROP_WORD

template <typename X, typename Y>
constexpr bool kAlike = false;
template <typename X>
constexpr bool kAlike<X, X> = true;

/// Has F a form for words of T?
template <typename F, typename T>
constexpr bool kHasWords =
    (kAlike<T, Half> || (kAlike<T, BFloat16> && kHasBFloat16Words))
        ? kAlike<F, Add> || kAlike<F, Subtract> || kAlike<F, Multiply>
        : sizeof(T) <= 2 && (Facts<T>::is_integer || Facts<T>::is_bool) &&
              (kAlike<F, Copy> || kAlike<F, Add> || kAlike<F, Subtract> || kAlike<F, Multiply> || kAlike<F, Minimum> ||
               kAlike<F, Maximum> || kAlike<F, Negative> || kAlike<F, Abs> || kAlike<F, Equal> || kAlike<F, NotEqual> ||
               kAlike<F, Less> || kAlike<F, LessEqual>);

/// out = f(a, b) of N elements, word by word.
template <typename T, int N, typename O, typename F>
INTEROP_DEVICE void map_words(F f, const T (&a)[N], const T (&b)[N], O (&out)[N]) {
  const unsigned* const x = reinterpret_cast<const unsigned*>(a);
  const unsigned* const y = reinterpret_cast<const unsigned*>(b);
  unsigned* const to = reinterpret_cast<unsigned*>(out);
  constexpr int kWords = N * sizeof(T) / 4;
  if constexpr (sizeof(T) == sizeof(O)) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) to[i] = Word<T>::compute(f, x[i], y[i]);
  } else {  // a comparison of 16-bit integers: of two words, the low byte of each element
#pragma unroll
    for (int i = 0; i < kWords; i += 2) {
      to[i / 2] = __byte_perm(Word<T>::compute(f, x[i], y[i]), Word<T>::compute(f, x[i + 1], y[i + 1]), 0x6420);
    }
  }
}

}  // namespace interop::device
