// How the elementwise kernels read and write memory: vectors of any dtype, steps and alignment. Device code alone, for
// NVRTC too: it includes nothing but our own headers, which do the same.
#pragma once

#include "cuda/elementwise/args.h"
#include "cuda/elementwise/functors.cuh"
#include "cuda/elementwise/words.cuh"

namespace interop::cuda::elementwise {
namespace {

using namespace interop::device;

// ---- dtypes in memory ----

/// A bool in memory is a byte that may hold more than 0 and 1.
template <typename T>
struct MemoryOf {
  using Type = T;
};
template <>
struct MemoryOf<bool> {
  using Type = unsigned char;
};
template <typename T>
using Memory = typename MemoryOf<T>::Type;

template <typename To, typename From>
INTEROP_DEVICE To convert(Memory<From> x) {
  if constexpr (Facts<From>::is_bool) {
    return Convert<To, bool>::from(x != 0);
  } else {
    return Convert<To, From>::from(x);
  }
}

// ---- reading and writing vectors ----

constexpr int kVectorBytes = 16;

/// Elements smaller than a word lie in words, if they fill some. As elements, the compiler would keep each in a
/// register of its own wherever two ways of reading meet.
template <typename T, int N>
constexpr bool kInWords = sizeof(T) < 4 && N * sizeof(T) % 4 == 0;

template <typename T, int N, bool in_words = kInWords<T, N>>
struct alignas(N * sizeof(T) < kVectorBytes ? N * sizeof(T) : kVectorBytes) Vector {
  T at[N];
};
template <typename T, int N>
struct alignas(N * sizeof(T) < kVectorBytes ? N * sizeof(T) : kVectorBytes) Vector<T, N, true> {
  union {
    unsigned words[N * sizeof(T) / 4];
    T at[N];
  };
};

/// 16 bytes from any address, out of the two aligned vectors that they lie in.
INTEROP_DEVICE uint4 read_across(const uint4* low, unsigned offset) {
  const uint4 x = low[0], y = low[1];
  const bool by2 = offset & 8, by1 = offset & 4;
  const unsigned p0 = by2 ? x.z : x.x, p1 = by2 ? x.w : x.y, p2 = by2 ? y.x : x.z, p3 = by2 ? y.y : x.w,
                 p4 = by2 ? y.z : y.x, p5 = by2 ? y.w : y.y;
  const unsigned q0 = by1 ? p1 : p0, q1 = by1 ? p2 : p1, q2 = by1 ? p3 : p2, q3 = by1 ? p4 : p3, q4 = by1 ? p5 : p4;
  const unsigned bits = (offset & 3) * 8;
  return {__funnelshift_r(q0, q1, bits), __funnelshift_r(q1, q2, bits), __funnelshift_r(q2, q3, bits),
          __funnelshift_r(q3, q4, bits)};
}

/// An object with the size of an element, for code that only moves it.
template <int Bytes>
struct Raw {
  uint4 bytes;
};
template <>
struct Raw<1> {
  unsigned char bytes;
};
template <>
struct Raw<2> {
  unsigned short bytes;
};
template <>
struct Raw<4> {
  unsigned bytes;
};
template <>
struct Raw<8> {
  uint2 bytes;
};

template <typename M>
INTEROP_DEVICE unsigned bits_of(M element) {
  return reinterpret_cast<const Raw<sizeof(M)>*>(&element)->bytes;
}

/// Sets an element of a vector of zeros.
template <typename M, int N>
INTEROP_DEVICE void put(Vector<M, N>& vector, int i, M element) {
  if constexpr (kInWords<M, N>) {
    constexpr int kOfWord = 4 / sizeof(M);
    vector.words[i / kOfWord] |= bits_of(element) << 8 * sizeof(M) * (i % kOfWord);
  } else {
    vector.at[i] = element;
  }
}
template <typename M, int N>
INTEROP_DEVICE M taken(const Vector<M, N>& vector, int i) {
  if constexpr (kInWords<M, N>) {
    constexpr int kOfWord = 4 / sizeof(M);
    using Bits = Raw<sizeof(M)>;
    const Bits bits{static_cast<decltype(Bits::bytes)>(vector.words[i / kOfWord] >> 8 * sizeof(M) * (i % kOfWord))};
    return *reinterpret_cast<const M*>(&bits);
  } else {
    return vector.at[i];
  }
}
template <typename M, int N>
INTEROP_DEVICE Vector<M, N> filled(M element) {
  Vector<M, N> vector{};
#pragma unroll
  for (int i = 0; i < N; ++i) put(vector, i, element);
  return vector;
}

/// Which of the N places from `at` are in a row of `length`: [begin, end).
struct Inside {
  int begin, end;
};
template <int N>
INTEROP_DEVICE Inside inside(int64_t at, int64_t length) {
  return {at < 0 ? static_cast<int>(-at) : 0, at + N > length ? static_cast<int>(length - at) : N};
}

constexpr int kCalledElements = 8;  // of a call; more would take more registers than a called function has

/// Reads strided arrays and the ends of rows, element by element. All dtypes of a size share one copy of the code.
template <int Bytes, int N>
INTEROP_CALLED Vector<Raw<Bytes>, N> read_steps(const char* from, int64_t step, int begin, int end) {
  Vector<Raw<Bytes>, N> vector{};
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (i >= begin && i < end) put(vector, i, *reinterpret_cast<const Raw<Bytes>*>(from + i * step));
  }
  return vector;
}

template <int Bytes, int N>
INTEROP_CALLED void write_steps(char* to, int64_t step, int begin, int end, Vector<Raw<Bytes>, N> vector) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (i >= begin && i < end) *reinterpret_cast<Raw<Bytes>*>(to + i * step) = taken(vector, i);
  }
}

/// The N elements of a row from place `at`; those outside of it are zeros. One element for all is only the first of
/// them, until `settle`: what waits for a load is done after all loads.
template <typename M, int N>
INTEROP_DEVICE Vector<M, N> read_vector(Access access, int64_t step, const char* row, int64_t at, int64_t length) {
  using V = Vector<M, N>;
  if (access == Access::splat) {
    Vector<M, N> vector{};
    put(vector, 0, *reinterpret_cast<const M*>(row));
    return vector;
  }
  const char* from = row + at * step;
  if (access == Access::unit && at >= 0 && at + N <= length) {
    const unsigned offset = static_cast<unsigned>(reinterpret_cast<uintptr_t>(from)) % alignof(V);
    if (offset == 0) return *reinterpret_cast<const V*>(from);
    if constexpr (sizeof(V) == kVectorBytes) {
      const char* low = from - offset;
      if (low >= row && low + 2 * kVectorBytes <= row + length * step) {
        const uint4 words = read_across(reinterpret_cast<const uint4*>(low), offset);
        return *reinterpret_cast<const V*>(&words);
      }
    }
  }
  const Inside in = inside<N>(at, length);
  constexpr int kPart = N < kCalledElements ? N : kCalledElements;
  V vector;
#pragma unroll
  for (int i = 0; i < N; i += kPart) {
    reinterpret_cast<Vector<Raw<sizeof(M)>, kPart>*>(&vector)[i / kPart] =
        read_steps<sizeof(M), kPart>(from + i * step, step, in.begin - i, in.end - i);
  }
  return vector;
}

template <typename M, int N>
INTEROP_DEVICE void settle(Access access, Vector<M, N>& vector) {
  if (access == Access::splat) vector = filled<M, N>(taken(vector, 0));
}

/// The same as T from elements that are From in memory.
template <typename T, typename From, int N>
INTEROP_DEVICE Vector<T, N> converted(const Vector<Memory<From>, N>& read) {
  if constexpr (kAlike<T, From> && !Facts<T>::is_bool) {
    return *reinterpret_cast<const Vector<T, N>*>(&read);
  } else {
    Vector<T, N> vector{};
    if constexpr (kAlike<T, From> && N % 4 == 0) {  // words of bools
#pragma unroll
      for (int i = 0; i < N / 4; ++i) vector.words[i] = truths_of_bytes(read.words[i]);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) put(vector, i, convert<T, From>(taken(read, i)));
    }
    return vector;
  }
}

template <typename O, int N>
INTEROP_DEVICE void write_vector(bool neighbours, int64_t step, char* row, int64_t at, int64_t length,
                                 const Vector<O, N>& vector) {
  char* to = row + at * step;
  if (neighbours && at >= 0 && at + N <= length) {
    *reinterpret_cast<Vector<O, N>*>(to) = vector;
    return;
  }
  const Inside in = inside<N>(at, length);
  constexpr int kPart = N < kCalledElements ? N : kCalledElements;
#pragma unroll
  for (int i = 0; i < N; i += kPart) {
    write_steps<sizeof(O), kPart>(to + i * step, step, in.begin - i, in.end - i,
                                  reinterpret_cast<const Vector<Raw<sizeof(O)>, kPart>*>(&vector)[i / kPart]);
  }
}

// ---- the same by the arguments of a walk ----

INTEROP_DEVICE bool is_value(const Flat::Array& array) { return !array.data; }
INTEROP_DEVICE bool is_value(const Rows::Array& array) { return array.access == Access::value; }

// Where N elements lie. In a row: from place `at` on; those outside of it are zeros, and are not written. In a `whole`
// one, all are inside, and aligned.
struct InRow {
  int64_t at, length;
  bool whole;
};
/// N neighbours of a flat array, all of which exist.
struct Whole {
  int64_t at;
};
/// Elements of a flat array that are `Step` apart, as far as they exist.
template <int Step>
struct Spread {
  int64_t at, length;
};

/// The elements at a place, of the row that lies `offset` bytes from the array's beginning.
template <typename M, int N>
INTEROP_DEVICE Vector<M, N> read_vector(const Rows::Array& array, int64_t offset, InRow place) {
  const char* const row = array.data + offset;
  if (place.whole && array.access == Access::unit) {
    return *reinterpret_cast<const Vector<M, N>*>(row + place.at * static_cast<int64_t>(sizeof(M)));
  }
  return read_vector<M, N>(array.access, array.step, row, place.at, place.length);
}
template <typename M, int N>
INTEROP_DEVICE Vector<M, N> read_vector(const Flat::Array& array, int64_t, Whole place) {
  return *reinterpret_cast<const Vector<M, N>*>(array.data + place.at * static_cast<int64_t>(sizeof(M)));
}
template <typename M, int N, int Step>
INTEROP_DEVICE Vector<M, N> read_vector(const Flat::Array& array, int64_t, Spread<Step> place) {
  Vector<M, N> vector{};
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int64_t at = place.at + i * Step;
    if (at < place.length) put(vector, i, reinterpret_cast<const M*>(array.data)[at]);
  }
  return vector;
}

template <typename O, int N>
INTEROP_DEVICE void write_vector(const Flat::Array& array, Whole place, const Vector<O, N>& vector) {
  *reinterpret_cast<Vector<O, N>*>(array.data + place.at * static_cast<int64_t>(sizeof(O))) = vector;
}
template <typename O, int N, int Step>
INTEROP_DEVICE void write_vector(const Flat::Array& array, Spread<Step> place, const Vector<O, N>& vector) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int64_t at = place.at + i * Step;
    if (at < place.length) reinterpret_cast<O*>(array.data)[at] = taken(vector, i);
  }
}

}  // namespace
}  // namespace interop::cuda::elementwise
