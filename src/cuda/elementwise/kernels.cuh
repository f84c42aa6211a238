// The elementwise kernels, for every dtype: included by the files that instantiate them.
#pragma once

#include <interop/elementwise.h>

#include "cuda/elementwise/elementwise.h"
#include "cuda/elementwise/functors.cuh"
#include "cuda/elementwise/memory.cuh"

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
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = f(a[i], b[i]);
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
  INTEROP_DEVICE static void apply(const Args& args, const T (&a)[N], const T (&b)[N], T (&out)[N]) {
    switch (static_cast<ElementwiseOp>(args.op)) {
      INTEROP_FUNCTIONS(INTEROP_CASE)
      case ElementwiseOp::copy:
        return map(Copy{}, a, b, out);
    }
    if constexpr (!Facts<T>::is_integer && !Facts<T>::is_bool) {
      map(DivideOr<T>{args.replaces_zero != 0, *reinterpret_cast<const T*>(args.where_zero.bytes)}, a, b, out);
    }
  }
};

template <typename T>
struct Divisions {
  using Out = T;
  static constexpr Family kFamily = Family::divisions;
  template <int N>
  INTEROP_DEVICE static void apply(const Args& args, const T (&a)[N], const T (&b)[N], T (&out)[N]) {
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
  INTEROP_DEVICE static void apply(const Args& args, const T (&a)[N], const T (&b)[N], bool (&out)[N]) {
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
  INTEROP_DEVICE static void apply_with_signs(const Args& args, const T (&a)[N], const T (&b)[N], bool (&out)[N]) {
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
  INTEROP_DEVICE static void apply(const Args&, const T (&a)[N], const T (&b)[N], Out (&out)[N]) {
    map(Abs{}, a, b, out);
  }
};

// ---- reading and writing vectors ----

/// `read_as` from any dtype that converts to T.
template <typename T, int N>
INTEROP_CALLED Vector<T, N> read_converted(Stored stored, Access access, int64_t step, const char* row, int64_t at,
                                           int64_t length) {
  Vector<T, N> vector{};
  with_stored<T>(stored, [&](auto type) { vector = read_as<T, decltype(type), N>(access, step, row, at, length); });
  return vector;
}

template <bool Mixed, typename T, int N>
INTEROP_DEVICE Vector<T, N> read(const InputArgs& input, int64_t row_offset, int64_t at, int64_t length) {
  if (input.access == Access::value) {
    Vector<T, N> vector;
#pragma unroll
    for (int i = 0; i < N; ++i) vector.at[i] = *reinterpret_cast<const T*>(input.value.bytes);
    return vector;
  }
  const char* row = input.data + row_offset;
  if constexpr (Mixed) {
    return read_converted<T, N>(input.stored, input.access, input.step, row, at, length);
  } else {
    return read_as<T, T, N>(input.access, input.step, row, at, length);
  }
}

template <typename O, int N>
INTEROP_DEVICE void write(const Args& args, bool vector_stores, char* row, int64_t at, const Vector<O, N>& vector) {
  write_vector(vector_stores, args.out_step, row, at, args.length, vector);
}

// ---- where a row lies ----

/// The offset of a row in each array, from its place in the outer dimensions.
struct Offsets {
  int64_t a = 0, b = 0, out = 0;
};

INTEROP_DEVICE Offsets offsets_of(const Args& args, unsigned row) {
  Offsets offsets;
#pragma unroll
  for (int d = 0; d < kOuterDims; ++d) {
    if (d == args.outer_ndim) break;
    const unsigned quotient = divide_by(row, args.outer_sizes[d]);
    const int64_t at = row - quotient * args.outer_sizes[d].value;
    row = quotient;
    offsets.a += at * args.inputs[0].outer[d];
    offsets.b += at * args.inputs[1].outer[d];
    offsets.out += at * args.out_outer[d];
  }
  return offsets;
}

// ---- the kernels ----

template <typename T>
constexpr int kVectorOf = kVectorBytes / sizeof(T);
template <typename T>
constexpr int kMixedVectorOf = kVectorOf<T> < 4 ? kVectorOf<T> : 4;
/// Vectors that a thread has in flight at a time. More of them would take registers, and so lower the occupancy.
template <typename T>
constexpr int kUnrollOf = sizeof(T) > 2 ? 2 : 1;

// elementwise_kernel: out = op(a, b), vector by vector of the output's rows.
//   in/out  a, b, out of any strides and alignment; out may be a or b itself
//   launch  block 256, kUnroll vectors of N elements a thread, as many blocks as that takes; no shared memory
//   traffic each element once; a broadcast row comes from the caches. Memory-bound: judge it in GB/s
//   maths   the operation is a switch on the arguments, taken once a thread: a few instructions beside 64 bytes
// The vectors of a row begin where the output is aligned, so that all stores but those at the ends are whole vectors;
// an input that is not aligned there is read as two vectors and shifted. E.g. x[1:] + y into a new float32 array: y and
// the output by 16 bytes, x by two loads of which the second is the next thread's first. The place in the outer
// dimensions is found once a vector, by 32-bit multiplications. Inputs are not read through the read-only path
// (__restrict__), as one of them may be the output.
template <typename T, typename Ops, bool Mixed, int N>
__global__ void __launch_bounds__(kThreads) elementwise_kernel(const __grid_constant__ Args args) {
  using O = typename Ops::Out;
  constexpr int kUnroll = Mixed ? 1 : kUnrollOf<T>;
  Vector<T, N> a[kUnroll], b[kUnroll];
  char* rows[kUnroll];
  int64_t places[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const unsigned vector = (blockIdx.x * kUnroll + u) * kThreads + threadIdx.x;
    places[u] = args.length;
    if (vector >= args.count) continue;
    const unsigned row = args.outer_ndim == 0 ? 0 : divide_by(vector, args.row_pieces);
    const Offsets offsets = offsets_of(args, row);
    rows[u] = args.out + offsets.out;
    const unsigned before =  // elements from the last aligned place to the row
        args.vector_stores ? static_cast<unsigned>(reinterpret_cast<uintptr_t>(rows[u]) / sizeof(O)) % N : 0;
    places[u] = static_cast<int64_t>(vector - row * args.row_pieces.value) * N - before;
    if (places[u] >= args.length) continue;
    a[u] = read<Mixed, T, N>(args.inputs[0], offsets.a, places[u], args.length);
    b[u] = read<Mixed, T, N>(args.inputs[1], offsets.b, places[u], args.length);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (places[u] >= args.length) continue;
    Vector<O, N> out;
    Ops::apply(args, a[u].at, b[u].at, out.at);
    write(args, args.vector_stores, rows[u], places[u], out);
  }
}

// elementwise_tiled_kernel: the same, where an input lies compact along another dimension than the output.
//   in/out  as above. A tile is Tile elements along the output's last dimension and Tile along the other one
//   launch  block 256, one tile a block; shared memory for two tiles of T, at most 34 KB
//   traffic whole lines of every operand, by vectors of up to 16 bytes: those inputs are read along their own dimension
//           into shared memory, and from there along the output's. Words of shared memory hold neighbours along the
//           output; a row of it is one word longer than the tile, so that a warp meets a bank at most twice
template <typename T, typename Ops, int Tile, int N>
__global__ void __launch_bounds__(kThreads) elementwise_tiled_kernel(const __grid_constant__ Args args) {
  using O = typename Ops::Out;
  constexpr int kAcross = Tile / N;                         // vectors along a side
  constexpr int kSteps = Tile * kAcross / kThreads;         // vectors of a thread
  constexpr int kPack = sizeof(T) < 4 ? 4 / sizeof(T) : 1;  // elements of a word
  static_assert(kSteps % kPack == 0, "a thread has whole words");
  using Word = Vector<T, kPack>;
  constexpr int kPitch = Tile / kPack + 1;
  __shared__ alignas(16) unsigned char memory[2 * Tile * kPitch * sizeof(Word)];
  Word* const tiles[2] = {reinterpret_cast<Word*>(memory), reinterpret_cast<Word*>(memory) + Tile * kPitch};

  const unsigned band = divide_by(blockIdx.x, args.row_pieces);
  const unsigned row = divide_by(band, args.cross_pieces);
  const int64_t first = static_cast<int64_t>(blockIdx.x - band * args.row_pieces.value) * Tile;
  const int64_t cross_first = static_cast<int64_t>(band - row * args.cross_pieces.value) * Tile;
  const Offsets offsets = offsets_of(args, row);
  const int across = static_cast<int>(threadIdx.x) % kAcross * N, down = static_cast<int>(threadIdx.x) / kAcross;
  const auto line_of = [=](int s) {  // a thread has kPack lines side by side, then others
    return (s / kPack * (kThreads / kAcross) + down) * kPack + s % kPack;
  };

  Vector<T, N> vectors[2][kSteps];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const InputArgs& input = args.inputs[k];
    if (input.access == Access::value) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) vectors[k][s] = read<false, T, N>(input, 0, 0, 0);
      continue;
    }
    // A line is what the input is read along: the last dimension, or the other one.
    const bool own_dtype = input.stored == stored_as<T>();
    const char* data = input.data + (k == 0 ? offsets.a : offsets.b);
    const int64_t at = (input.tiled ? cross_first : first) + across;
    const int64_t length = input.tiled ? args.cross_length : args.length;
    const int64_t step = input.tiled ? input.cross_step : input.step;
    const Access access = input.tiled ? input.cross_access : input.access;
    const int64_t line_step = input.tiled ? input.step : input.cross_step;
    const int64_t line_first = input.tiled ? first : cross_first;
    const int64_t lines = input.tiled ? args.length : args.cross_length;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int64_t line = line_first + line_of(s);
      if (line >= lines || at >= length) {
        vectors[k][s] = {};
      } else if (own_dtype) {
        vectors[k][s] = read_as<T, T, N>(access, step, data + line * line_step, at, length);
      } else {
        constexpr int kPart = kMixedVectorOf<T>;  // as elementwise_kernel has it: one copy of the code for both
#pragma unroll
        for (int i = 0; i < N; i += kPart) {
          const char* from = data + line * line_step;
          const auto part = read_converted<T, kPart>(input.stored, access, step, from, at + i, length);
#pragma unroll
          for (int j = 0; j < kPart; ++j) vectors[k][s].at[i + j] = part.at[j];
        }
      }
    }
    if (input.tiled) {
#pragma unroll
      for (int s = 0; s < kSteps; s += kPack) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          Word word;
#pragma unroll
          for (int p = 0; p < kPack; ++p) word.at[p] = vectors[k][s + p].at[i];
          tiles[k][(across + i) * kPitch + line_of(s) / kPack] = word;
        }
      }
    }
  }
  __syncthreads();  // what one thread reads of a tile, others have written
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    if (args.inputs[k].access == Access::value || !args.inputs[k].tiled) continue;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int i = 0; i < N; i += kPack) {
        const Word word = tiles[k][line_of(s) * kPitch + (across + i) / kPack];
#pragma unroll
        for (int p = 0; p < kPack; ++p) vectors[k][s].at[i + p] = word.at[p];
      }
    }
  }
  if (first + across >= args.length) return;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int64_t line = cross_first + line_of(s);
    if (line >= args.cross_length) break;
    Vector<O, N> out;
    Ops::apply(args, vectors[0][s].at, vectors[1][s].at, out.at);
    char* to = args.out + offsets.out + line * args.out_cross_step;
    const bool aligned = reinterpret_cast<uintptr_t>(to) % alignof(Vector<O, N>) == 0;
    write(args, args.vector_stores && aligned, to, first + across, out);
  }
}

// ---- the instances of one dtype ----

template <typename T>
constexpr int kTileOf = sizeof(T) > 4 ? 32 : 64;
template <typename T>
constexpr int kTileVectorOf = sizeof(T) > 1 ? kVectorOf<T> : 4;  // of bytes: as many as make whole words

template <typename Symbol>
Kernel* kernel_of(Symbol* symbol) {
  return new Kernel(reinterpret_cast<const void*>(symbol));  // for the life of the process
}

template <typename T, template <typename> class Ops>
Kernel* mixed_kernel() {
  return kernel_of(&elementwise_kernel<T, Ops<T>, true, kMixedVectorOf<T>>);
}

template <typename T, template <typename> class Ops>
Kernel* same_kernel() {
  return kernel_of(&elementwise_kernel<T, Ops<T>, false, kVectorOf<T>>);
}

template <typename T, template <typename> class Ops>
Kernel* tiled_kernel() {
  return kernel_of(&elementwise_tiled_kernel<T, Ops<T>, kTileOf<T>, kTileVectorOf<T>>);
}

template <typename T>
const KernelSet& kernel_set() {
  static const KernelSet set = [] {
    KernelSet made{kVectorOf<T>, kUnrollOf<T>, kMixedVectorOf<T>, kTileOf<T>, {}, {}, {}};
    made.mixed[static_cast<int>(Family::simple)] = mixed_kernel<T, Simple>();
    made.mixed[static_cast<int>(Family::comparisons)] = mixed_kernel<T, Comparisons>();
    made.tiled[static_cast<int>(Family::simple)] = tiled_kernel<T, Simple>();
    made.tiled[static_cast<int>(Family::comparisons)] = tiled_kernel<T, Comparisons>();
    made.same[static_cast<int>(Family::simple)] = same_kernel<T, Simple>();
    made.same[static_cast<int>(Family::comparisons)] = same_kernel<T, Comparisons>();
    if constexpr (!Facts<T>::is_bool) {
      made.mixed[static_cast<int>(Family::divisions)] = mixed_kernel<T, Divisions>();
      made.tiled[static_cast<int>(Family::divisions)] = tiled_kernel<T, Divisions>();
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
