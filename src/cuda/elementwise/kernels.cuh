// The elementwise kernels, for every dtype: included by the files that instantiate them.
#pragma once

#include <interop/elementwise.h>

#include "cuda/elementwise/elementwise.h"
#include "cuda/elementwise/functors.cuh"
#include "cuda/elementwise/passes.cuh"
#include "cuda/elementwise/words.cuh"

namespace interop::cuda::elementwise {
namespace {

using namespace interop::device;

// ---- dtypes in memory, by name ----

template <typename T>
INTEROP_DEVICE constexpr Stored stored_as();
#define INTEROP_STORED(name, ...)                            \
  template <>                                                \
  INTEROP_DEVICE constexpr Stored stored_as<__VA_ARGS__>() { \
    return Stored::name;                                     \
  }
INTEROP_STORED(b8, bool)
INTEROP_STORED(i8, signed char)
INTEROP_STORED(i16, short)
INTEROP_STORED(i32, int)
INTEROP_STORED(i64, long long)
INTEROP_STORED(u8, unsigned char)
INTEROP_STORED(u16, unsigned short)
INTEROP_STORED(u32, unsigned)
INTEROP_STORED(u64, unsigned long long)
INTEROP_STORED(f16, Half)
INTEROP_STORED(bf16, BFloat16)
INTEROP_STORED(f32, float)
INTEROP_STORED(f64, double)
INTEROP_STORED(c64, Complex<float>)
INTEROP_STORED(c128, Complex<double>)
#undef INTEROP_STORED

/// Does promotion ever ask to read From as To?
template <typename To, typename From>
constexpr bool kConverts =
    Facts<To>::is_bool        ? Facts<From>::is_bool
    : Facts<To>::is_complex   ? true
    : Facts<From>::is_complex ? false
                              : !Facts<To>::is_integer || Facts<From>::is_integer || Facts<From>::is_bool;

/// Calls `visit` with a value of the type that `stored` names, if it is one that converts to T.
template <typename T, typename Visit>
INTEROP_DEVICE void with_stored(Stored stored, Visit visit) {
  switch (stored) {
#define INTEROP_CASE(name, ...)                                           \
  case Stored::name:                                                      \
    using Type_##name = __VA_ARGS__;                                      \
    if constexpr (kConverts<T, Type_##name>) return visit(Type_##name{}); \
    break
    INTEROP_CASE(b8, bool);
    INTEROP_CASE(i8, signed char);
    INTEROP_CASE(i16, short);
    INTEROP_CASE(i32, int);
    INTEROP_CASE(i64, long long);
    INTEROP_CASE(u8, unsigned char);
    INTEROP_CASE(u16, unsigned short);
    INTEROP_CASE(u32, unsigned);
    INTEROP_CASE(u64, unsigned long long);
    INTEROP_CASE(f16, Half);
    INTEROP_CASE(bf16, BFloat16);
    INTEROP_CASE(f32, float);
    INTEROP_CASE(f64, double);
    INTEROP_CASE(c64, Complex<float>);
    INTEROP_CASE(c128, Complex<double>);
#undef INTEROP_CASE
  }
}

// ---- families: which operations a kernel has, and their results ----

template <typename T, int N, typename O, typename F>
INTEROP_DEVICE void map(F f, const T (&a)[N], const T (&b)[N], O (&out)[N]) {
  if constexpr (kHasWords<F, T> && N % 4 == 0) {
    map_words(f, a, b, out);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = f(a[i], b[i]);
  }
}

/// Is T of one of these kinds of dtypes?
template <typename T>
INTEROP_DEVICE constexpr bool is_of(const char* kinds) {
  using F = Facts<T>;
  const char kind = F::is_bool ? 'b' : F::is_complex ? 'c' : !F::is_integer ? 'f' : F::is_signed ? 'i' : 'u';
  for (; *kinds; ++kinds) {
    if (*kinds == kind) return true;
  }
  return false;
}

/// Do the kernels of a family have an operation as a functor without state, for T?
template <typename T>
INTEROP_DEVICE constexpr bool has(Family wanted, Family family, ElementwiseOp op, Gives gives, const char* accepts) {
  const bool is_other = op == ElementwiseOp::divide || (gives == Gives::part && Facts<T>::is_complex);
  return family == wanted && !is_other && is_of<T>(accepts);
}

// A case for each operation of a family that T has.
#define INTEROP_CASE(name, symbol, arity, functor, family, accepts, gives, ...)                  \
  case ElementwiseOp::name:                                                                      \
    if constexpr (has<T>(kFamily, Family::family, ElementwiseOp::name, Gives::gives, accepts)) { \
      return map(INTEROP_FUNCTOR(functor), a, b, out);                                           \
    }                                                                                            \
    break;

#define INTEROP_FUNCTOR(functor) \
  functor {}

template <typename T>
struct Simple {
  using Out = T;
  static constexpr Family kFamily = Family::simple;
  template <int N>
  INTEROP_DEVICE static void apply(const StepArgs& args, const ValueArgs* values, const T (&a)[N], const T (&b)[N],
                                   T (&out)[N]) {
    switch (static_cast<ElementwiseOp>(args.op)) {
      INTEROP_FUNCTIONS(INTEROP_CASE)
      case ElementwiseOp::copy:
        return map(Copy{}, a, b, out);
    }
    if constexpr (!Facts<T>::is_integer && !Facts<T>::is_bool) {
      map(DivideOr<T>{args.replaces_zero != 0, *reinterpret_cast<const T*>(values[kWhereZero].bytes)}, a, b, out);
    }
  }
};

template <typename T>
struct Divisions {
  using Out = T;
  static constexpr Family kFamily = Family::divisions;
  template <int N>
  INTEROP_DEVICE static void apply(const StepArgs& args, const ValueArgs*, const T (&a)[N], const T (&b)[N],
                                   T (&out)[N]) {
    switch (static_cast<ElementwiseOp>(args.op)) {
      INTEROP_FUNCTIONS(INTEROP_CASE)
      default:
        break;
    }
  }
};

template <typename T>
struct Comparisons {
  using Out = bool;
  static constexpr Family kFamily = Family::comparisons;
  template <int N>
  INTEROP_DEVICE static void apply(const StepArgs& args, const ValueArgs*, const T (&a)[N], const T (&b)[N],
                                   bool (&out)[N]) {
    if constexpr (Facts<T>::is_integer && !Facts<T>::is_signed && sizeof(T) == 8) {
      if (args.signs) return apply_with_signs(args, a, b, out);
    }
    switch (static_cast<ElementwiseOp>(args.op)) {
      INTEROP_FUNCTIONS(INTEROP_CASE)
      default:
        break;
    }
  }

 private:
  template <int N>
  INTEROP_DEVICE static void apply_with_signs(const StepArgs& args, const T (&a)[N], const T (&b)[N], bool (&out)[N]) {
    const bool a_signed = args.signs & 1, b_signed = args.signs & 2;
#undef INTEROP_FUNCTOR
#define INTEROP_FUNCTOR(functor) \
  WithSigns<functor> { a_signed, b_signed }
    switch (static_cast<ElementwiseOp>(args.op)) {
      INTEROP_FUNCTIONS(INTEROP_CASE)
      default:
        break;
    }
  }
};
#undef INTEROP_FUNCTOR
#undef INTEROP_CASE

template <typename T>
struct Parts {  // abs of complex numbers
  using Out = decltype(T::re);
  static constexpr Family kFamily = Family::parts;
  template <int N>
  INTEROP_DEVICE static void apply(const StepArgs&, const ValueArgs*, const T (&a)[N], const T (&b)[N], Out (&out)[N]) {
    map(Abs{}, a, b, out);
  }
};

/// The function of one kernel, which its arguments name.
template <typename T, typename Ops>
struct Step {
  using Out = typename Ops::Out;
  const StepArgs& args;
  template <int N>
  INTEROP_DEVICE void apply(const ValueArgs* values, Out (&out)[N], const Memory<T> (&a)[N],
                            const Memory<T> (&b)[N]) const {
    using Kept = const Vector<Memory<T>, N>*;
    const auto x = converted<T, T>(*reinterpret_cast<Kept>(&a)), y = converted<T, T>(*reinterpret_cast<Kept>(&b));
    Ops::apply(args, values, x.at, y.at, out);
  }
};

// ---- reading operands: arrays, or a value ----

/// The N elements of a row from place `at`, from any dtype that converts to T.
template <typename T, int N>
INTEROP_CALLED Vector<Memory<T>, N> read_converted(Stored stored, Access access, int64_t step, const char* row,
                                                   int64_t at, int64_t length) {
  Vector<T, N> vector{};
  with_stored<T>(stored, [&](auto type) {
    using From = decltype(type);
    auto read = read_vector<Memory<From>, N>(access, step, row, at, length);
    settle(access, read);
    vector = converted<T, From>(read);
  });
  return *reinterpret_cast<const Vector<Memory<T>, N>*>(&vector);
}

template <typename T>
constexpr int kVectorOf = kVectorBytes / sizeof(T);
template <typename T>
constexpr int kMixedVectorOf = kVectorOf<T> < 4 ? kVectorOf<T> : 4;

/// An operand that is a value.
template <typename T>
struct Value {
  template <int N, class Array, class Place>
  INTEROP_DEVICE static Vector<Memory<T>, N> read(const Array&, const ValueArgs* values, int64_t, Place) {
    return filled<Memory<T>, N>(*reinterpret_cast<const Memory<T>*>(values[0].bytes));
  }
};

/// An operand that is T in memory, compact along the last dimension.
template <typename T>
struct Compact {
  template <int N>
  INTEROP_DEVICE static Vector<Memory<T>, N> read(const Rows::Array& array, const ValueArgs*, int64_t offset,
                                                  InRow place) {
    const char* const row = array.data + offset;
    return read_vector<Memory<T>, N>(Access::unit, sizeof(T), row, place.at, place.length);
  }
};

/// An operand of any dtype that converts to T, by vectors that all kernels read alike: one copy of the code for all.
template <typename T>
struct Converted {
  template <int N>
  INTEROP_DEVICE static Vector<Memory<T>, N> read(const Rows::Array& array, const ValueArgs*, int64_t offset,
                                                  InRow place) {
    constexpr int kPart = kMixedVectorOf<T>;
    Vector<Memory<T>, N> vector{};
#pragma unroll
    for (int i = 0; i < N; i += kPart) {
      const auto part = read_converted<T, kPart>(array.stored, array.access, array.step, array.data + offset,
                                                 place.at + i, place.length);
#pragma unroll
      for (int j = 0; j < kPart; ++j) put(vector, i + j, taken(part, j));
    }
    return vector;
  }
};

/// A value, or what `Reader` reads.
template <typename T, typename Reader>
struct ValueOr {
  using Kept = Memory<T>;
  template <int N, class Array, class Place>
  INTEROP_DEVICE static Vector<Kept, N> read(const Array& array, const ValueArgs* values, int64_t offset, Place place) {
    if (is_value(array)) return Value<T>::template read<N>(array, values, offset, place);
    return Reader::template read<N>(array, values, offset, place);
  }
};

/// Any operand. The common ones have code of their own, so that little is skipped on the way through it.
template <typename T>
struct Any {
  using Kept = Memory<T>;
  template <class To, class... Args>
  INTEROP_DEVICE static void read_lines(To& to, const Tiles::Array& array, const Args&... args) {
    if (is_value(array)) return to.template read_lines<Value<T>>(array, args...);
    if (array.stored != stored_as<T>()) return to.template read_lines<Converted<T>>(array, args...);
    if (array.access == Access::unit) return to.template read_lines<Compact<T>>(array, args...);
    to.template read_lines<Of<T>>(array, args...);
  }
};

// ---- the kernels: out = op(a, b); the operation is a switch on the arguments, a few instructions beside 64 bytes ----

template <typename Array>
using OperandsArgs = Several<Array, 3>;
using StepValues = Several<ValueArgs, 2>;

template <typename T, typename Ops, int N>
__global__ void __launch_bounds__(kThreads)
    elementwise_flat_kernel(const __grid_constant__ Flat::Loop loop,
                            const __grid_constant__ OperandsArgs<Flat::Array> arrays,
                            const __grid_constant__ StepValues values, const __grid_constant__ StepArgs step) {
  using Reader = ValueOr<T, Of<T>>;
  run_flat<N, Reader, Reader>(loop, arrays.at, values.at, Step<T, Ops>{step});
}

/// Blocks that an SM is to hold at a time, as far as registers decide; 0 leaves it to the compiler. With 5 blocks for
/// 6, broadcast rows and misaligned arrays of float32 are read 5 to 7 % more slowly (H200, `interop bench
/// elementwise`).
template <typename T>
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ < 800
constexpr int kBlocksOf = 0;  // an SM of sm_75 has 1024 threads, and enough registers for them
#else
constexpr int kBlocksOf = sizeof(T) == 4  ? 6
                          : sizeof(T) < 4 ? 4
                                          : 0;
#endif

template <typename T, typename Ops, typename Operand, int N, int Unroll>
__global__ void __launch_bounds__(kThreads, kBlocksOf<T>)
    elementwise_kernel(const __grid_constant__ Rows::Loop loop,
                       const __grid_constant__ OperandsArgs<Rows::Array> arrays,
                       const __grid_constant__ StepValues values, const __grid_constant__ StepArgs step) {
  using Reader = ValueOr<T, Operand>;
  run_vectors<N, Unroll, Reader, Reader>(loop, arrays.at, values.at, Step<T, Ops>{step});
}

/// The same for tiles. Of 16-bit elements, 4 blocks for 5 cost 7 %, and 6 cost 2 %.
template <typename T, typename Ops>
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ < 800
constexpr int kTileBlocksOf = 0;
#else
constexpr int kTileBlocksOf = sizeof(T) > 8 || Ops::kFamily == Family::divisions ? 0
                              : sizeof(T) == 2                                   ? 5
                                                                                 : 4;
#endif

template <typename T, typename Ops, int Tile, int N>
__global__ void __launch_bounds__(kThreads, kTileBlocksOf<T, Ops>)
    elementwise_tiled_kernel(const __grid_constant__ Tiles::Loop loop,
                             const __grid_constant__ OperandsArgs<Tiles::Array> arrays,
                             const __grid_constant__ StepValues values, const __grid_constant__ StepArgs step) {
  run_tiles<Tile, N, Any<T>, Any<T>>(loop, arrays.at, values.at, Step<T, Ops>{step});
}

// ---- the instances of one dtype ----

/// Vectors that a thread has in flight at a time. More of them would take registers, and so lower the occupancy.
template <typename T>
constexpr int kUnrollOf = sizeof(T) > 2 ? 2 : 1;
template <typename T>
constexpr int kTileOf = sizeof(T) > 4   ? 32
                        : sizeof(T) > 1 ? 64
                                        : 128;

template <typename Symbol>
Kernel* kernel_of(Symbol* symbol) {
  return new Kernel(reinterpret_cast<const void*>(symbol));  // for the life of the process
}

template <typename T, template <typename> class Ops>
Kernel* mixed_kernel() {
  return kernel_of(&elementwise_kernel<T, Ops<T>, Converted<T>, kMixedVectorOf<T>, 1>);
}

template <typename T, template <typename> class Ops>
Kernel* same_kernel() {
  return kernel_of(&elementwise_kernel<T, Ops<T>, Of<T>, kVectorOf<T>, kUnrollOf<T>>);
}

template <typename T, template <typename> class Ops>
Kernel* flat_kernel() {
  return kernel_of(&elementwise_flat_kernel<T, Ops<T>, kVectorOf<T>>);
}

template <typename T, template <typename> class Ops>
Kernel* tiled_kernel() {
  return kernel_of(&elementwise_tiled_kernel<T, Ops<T>, kTileOf<T>, kVectorOf<T>>);
}

template <typename T>
const KernelSet& kernel_set() {
  static const KernelSet set = [] {
    KernelSet made{kVectorOf<T>, kUnrollOf<T>, kMixedVectorOf<T>, kTileOf<T>, {}, {}, {}, {}};
    made.mixed[static_cast<int>(Family::simple)] = mixed_kernel<T, Simple>();
    made.mixed[static_cast<int>(Family::comparisons)] = mixed_kernel<T, Comparisons>();
    made.tiled[static_cast<int>(Family::simple)] = tiled_kernel<T, Simple>();
    made.tiled[static_cast<int>(Family::comparisons)] = tiled_kernel<T, Comparisons>();
    made.flat[static_cast<int>(Family::simple)] = flat_kernel<T, Simple>();
    made.flat[static_cast<int>(Family::comparisons)] = flat_kernel<T, Comparisons>();
    made.same[static_cast<int>(Family::simple)] = same_kernel<T, Simple>();
    made.same[static_cast<int>(Family::comparisons)] = same_kernel<T, Comparisons>();
    if constexpr (!Facts<T>::is_bool) {
      made.mixed[static_cast<int>(Family::divisions)] = mixed_kernel<T, Divisions>();
      made.tiled[static_cast<int>(Family::divisions)] = tiled_kernel<T, Divisions>();
      if constexpr (!Facts<T>::is_complex) {  // others are bound by their arithmetic
        made.flat[static_cast<int>(Family::divisions)] = flat_kernel<T, Divisions>();
      }
      if constexpr (Facts<T>::is_complex) {
        made.mixed[static_cast<int>(Family::parts)] = mixed_kernel<T, Parts>();
        made.tiled[static_cast<int>(Family::parts)] = tiled_kernel<T, Parts>();
      }
    }
    return made;
  }();
  return set;
}

}  // namespace
}  // namespace interop::cuda::elementwise
