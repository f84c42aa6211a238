// The kernels' passes over elements, for any number of arrays. A kernel says which walk it takes, how it reads its
// inputs, and what it computes of a vector of each:
//
//     struct Reader {
//       using Kept = ...;  // an element as it is kept until it is computed with
//       template <int N, class Array, class Place>
//       INTEROP_DEVICE static Vector<Kept, N> read(const Array&, const ValueArgs*, int64_t offset, Place);
//       // to.read_lines<R>(array, ...), with the reader R that serves the array best.
//       template <class To, class... Args>
//       INTEROP_DEVICE static void read_lines(To& to, const Tiles::Array& array, const Args&...);
//     };
//     struct Function {
//       using Out = ...;
//       template <int N>
//       INTEROP_DEVICE void apply(const ValueArgs*, Out (&out)[N], const typename Readers::Kept (&... inputs)[N])
//       const;
//     };
//
// Device code alone, for NVRTC too.
#pragma once

#include "cuda/elementwise/args.h"
#include "cuda/elementwise/memory.cuh"

namespace interop::cuda::elementwise {
namespace {

// ---- expressions: what NVRTC compiles at run time ----

/// An element of T, out of the arguments.
template <typename T>
INTEROP_DEVICE T value_of(const ValueArgs& value) {
  return convert<T, T>(*reinterpret_cast<const Memory<T>*>(value.bytes));
}

/// Reads an array whose elements are T in memory.
template <typename T>
struct Of {
  using Kept = Memory<T>;
  template <int N, class Array, class Place>
  INTEROP_DEVICE static Vector<Kept, N> read(const Array& array, const ValueArgs*, int64_t offset, Place place) {
    return read_vector<Kept, N>(array, offset, place);
  }
  template <class To, class... Args>
  INTEROP_DEVICE static void read_lines(To& to, const Tiles::Array& array, const Args&... args) {
    to.template read_lines<Of>(array, args...);
  }
};

/// A function of single elements, which interop/_expressions/source.py writes:
///
///     struct Expression {
///       using Out = float;
///       INTEROP_DEVICE static Out compute(const ValueArgs* values, float x, Half y) { ... }
///     };
template <typename E, typename... Inputs>
struct ByElement {
  using Out = typename E::Out;
  template <int N>
  INTEROP_DEVICE void apply(const ValueArgs* values, Out (&out)[N], const Memory<Inputs> (&... inputs)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = E::compute(values, convert<Inputs, Inputs>(inputs[i])...);
  }
};

// ---- where a row lies ----

/// The offsets of a row in the output and the inputs, from its place in the outer dimensions.
template <class Array, int Count>
INTEROP_DEVICE void find_row(const Rows::Loop& loop, const Array* arrays, unsigned row, int64_t (&offsets)[Count]) {
#pragma unroll
  for (int k = 0; k < Count; ++k) offsets[k] = 0;
#pragma unroll
  for (int d = 0; d < kOuterDims; ++d) {
    if (d == loop.outer_ndim) break;
    const unsigned quotient = divide_by(row, loop.outer_sizes[d]);
    const int64_t at = row - quotient * loop.outer_sizes[d].value;
    row = quotient;
#pragma unroll
    for (int k = 0; k < Count; ++k) offsets[k] += at * arrays[k].outer[d];
  }
}

// ---- vectors ----

/// A vector of each input. `arrays` and `offsets` are those of the first of them.
template <int N, typename... Readers>
struct Vectors {
  template <class Array, class Place>
  INTEROP_DEVICE void read(const Array*, const ValueArgs*, const int64_t*, Place) {}
  INTEROP_DEVICE void settle(const Rows::Array*) {}
  template <typename F, typename... Before>
  INTEROP_DEVICE void apply(const F& function, const ValueArgs* values, typename F::Out (&out)[N],
                            const Before&... before) const {
    function.apply(values, out, before.at...);
  }
};
template <int N, typename Reader, typename... Rest>
struct Vectors<N, Reader, Rest...> {
  Vector<typename Reader::Kept, N> first;
  Vectors<N, Rest...> rest;

  template <class Array, class Place>
  INTEROP_DEVICE void read(const Array* arrays, const ValueArgs* values, const int64_t* offsets, Place place) {
    first = Reader::template read<N>(*arrays, values, *offsets, place);
    rest.read(arrays + 1, values, offsets + 1, place);
  }
  INTEROP_DEVICE void settle(const Rows::Array* arrays) {
    elementwise::settle(arrays->access, first);
    rest.settle(arrays + 1);
  }
  template <typename F, typename... Before>
  INTEROP_DEVICE void apply(const F& function, const ValueArgs* values, typename F::Out (&out)[N],
                            const Before&... before) const {
    rest.apply(function, values, out, before..., first);
  }
};

INTEROP_DEVICE constexpr int smaller(int x, int y) { return x < y ? x : y; }
INTEROP_DEVICE constexpr int smallest(int x) { return x; }
template <typename... Rest>
INTEROP_DEVICE constexpr int smallest(int x, int y, Rest... rest) {
  return smallest(smaller(x, y), rest...);
}

// run_flat: out = function(inputs...), of arrays of one dimension. `arrays[0]` is the output.
//   in/out  compact; from an address where a vector may lie, unless no vector is `whole`; the output may be an input
//   launch  block 256, a vector of N elements a thread, as many blocks as that takes; no shared memory. More vectors a
//           thread move memory more slowly: by 4 % at two of them, 13 % at four, of 16-bit elements (H200)
//   traffic each element once, each dtype as it is in memory. Memory-bound, unless the function is long: judge it in
//           GB/s. Of a small array the time goes to the arguments and the instructions, line by line of their caches:
//           so there are few, and one way through them
template <int N, typename... Readers, typename F>
INTEROP_DEVICE void run_flat(const Flat::Loop& loop, const Flat::Array* arrays, const ValueArgs* values,
                             const F& function) {
  constexpr int64_t offsets[1 + sizeof...(Readers)] = {};
  // At the end, small elements go by whole vectors, too, but for the last one.
  constexpr bool kSmall =
      smallest(static_cast<int>(sizeof(typename F::Out)), static_cast<int>(sizeof(typename Readers::Kept))...) < 4;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * N);
  const Whole whole{first + static_cast<int64_t>(threadIdx.x) * N};
  const Spread<kSmall ? 1 : kThreads> spread{kSmall ? whole.at : first + threadIdx.x, loop.length};
  const bool is_whole = (kSmall ? whole.at + N : first + kThreads * N) <= loop.whole;
  Vectors<N, Readers...> inputs;
  if (is_whole) {
    inputs.read(arrays + 1, values, offsets, whole);
  } else {
    inputs.read(arrays + 1, values, offsets, spread);
  }
  Vector<typename F::Out, N> out;
  inputs.apply(function, values, out.at);
  if (is_whole) {
    write_vector(arrays[0], whole, out);
  } else {
    write_vector(arrays[0], spread, out);
  }
}

// run_vectors: the same, vector by vector of the output's rows.
//   in/out  of any strides and alignment; the output may be an input itself
//   launch  block 256, Unroll vectors of N elements a thread, as many blocks as that takes; no shared memory
//   traffic as above; a broadcast row comes from the caches
// The vectors of a row begin where the output is aligned, so that all stores but those at the ends are whole vectors;
// an input that is not aligned there is read as two vectors and shifted. E.g. x[1:] + y into a new float32 array: y and
// the output by 16 bytes, x by two loads of which the second is the next thread's first. The place in the outer
// dimensions is found once a vector, by 32-bit multiplications. Where all rows consist of aligned vectors, which the
// launcher knows, none of this is asked again. Inputs are not read through the read-only path
// (__restrict__), as one of them may be the output.
template <int N, int Unroll, typename... Readers, typename F>
INTEROP_DEVICE void run_vectors(const Rows::Loop& loop, const Rows::Array* arrays, const ValueArgs* values,
                                const F& function) {
  using O = typename F::Out;
  Vectors<N, Readers...> inputs[Unroll];
  char* rows[Unroll];
  int64_t places[Unroll];
#pragma unroll
  for (int u = 0; u < Unroll; ++u) {
    const unsigned vector = (blockIdx.x * Unroll + u) * kThreads + threadIdx.x;
    places[u] = loop.length;
    if (vector >= loop.count) continue;
    const unsigned row = loop.outer_ndim == 0 ? 0 : divide_by(vector, loop.row_pieces);
    int64_t offsets[1 + sizeof...(Readers)];
    find_row(loop, arrays, row, offsets);
    rows[u] = arrays[0].data + offsets[0];
    const unsigned before =  // elements from the last aligned place to the row
        loop.vector_stores && !loop.whole ? static_cast<unsigned>(reinterpret_cast<uintptr_t>(rows[u]) / sizeof(O)) % N
                                          : 0;
    places[u] = static_cast<int64_t>(vector - row * loop.row_pieces.value) * N - before;
    if (places[u] >= loop.length) continue;
    inputs[u].read(arrays + 1, values, offsets + 1, InRow{places[u], loop.length, loop.whole != 0});
  }
#pragma unroll
  for (int u = 0; u < Unroll; ++u) {
    if (places[u] >= loop.length) continue;
    inputs[u].settle(arrays + 1);
    Vector<O, N> out;
    inputs[u].apply(function, values, out.at);
    if (loop.whole) {
      *reinterpret_cast<Vector<O, N>*>(rows[u] + places[u] * static_cast<int64_t>(sizeof(O))) = out;
    } else {
      write_vector(loop.vector_stores, arrays[0].step, rows[u], places[u], loop.length, out);
    }
  }
}

// ---- tiles ----

INTEROP_DEVICE constexpr int largest(int x) { return x; }
template <typename... Rest>
INTEROP_DEVICE constexpr int largest(int x, int y, Rest... rest) {
  return largest(x > y ? x : y, rest...);
}

/// The vectors of a thread in a tile: where its first one lies along the lines, and which lines it has. It has `Lines`
/// side by side, then others; the same for all inputs, as their elements meet in one thread.
template <int Tile, int N, int Lines>
struct TileThread {
  static constexpr int kAcross = Tile / N;                  // vectors along a side
  static constexpr int kSteps = Tile * kAcross / kThreads;  // vectors of a thread
  static_assert(kSteps % Lines == 0, "a thread has whole words");
  const int across = static_cast<int>(threadIdx.x) % kAcross * N, down = static_cast<int>(threadIdx.x) / kAcross;
  int64_t first, cross_first;  // the corner of the tile

  INTEROP_DEVICE int line(int s) const { return (s / Lines * (kThreads / kAcross) + down) * Lines + s % Lines; }
};

/// Elements of a word of shared memory, which holds neighbours along the output.
template <int Tile, int N, typename M>
constexpr int kPackOf =
    smaller(sizeof(M) < 4 ? 4 / static_cast<int>(sizeof(M)) : 1, smaller(N, Tile*(Tile / N) / kThreads));

/// Are the elements of a tile turned word by word? Then a vector has 16 bytes of small elements.
template <int Tile, int N, typename M>
constexpr bool kSmallTile =
    sizeof(M) <= 2 && N * sizeof(M) == kVectorBytes && Tile / N == 8 && kPackOf<Tile, N, M> * sizeof(M) == 4;

/// Transposes 4 bytes of 4 words, or 2 halves of 2: columns[i] has element i of each row.
template <int Bytes>
INTEROP_DEVICE void turn_small(const unsigned (&rows)[4 / Bytes], unsigned (&columns)[4 / Bytes]) {
  if constexpr (Bytes == 2) {
    columns[0] = __byte_perm(rows[0], rows[1], 0x5410);
    columns[1] = __byte_perm(rows[0], rows[1], 0x7632);
  } else {
    const unsigned low01 = __byte_perm(rows[0], rows[1], 0x5140), high01 = __byte_perm(rows[0], rows[1], 0x7362);
    const unsigned low23 = __byte_perm(rows[2], rows[3], 0x5140), high23 = __byte_perm(rows[2], rows[3], 0x7362);
    columns[0] = __byte_perm(low01, low23, 0x5410);
    columns[1] = __byte_perm(low01, low23, 0x7632);
    columns[2] = __byte_perm(high01, high23, 0x5410);
    columns[3] = __byte_perm(high01, high23, 0x7632);
  }
}

/// Transposes a tile of small elements through shared memory. A word of it has an element of each of kPack lines; a row
/// of it, those of all lines. A warp writes 4 words of 8 rows at a time, and reads a vector of 4 words of each of 8
/// places in 4 rows: vectors are exchanged within a row by its number, so that no bank is met twice.
template <int Tile, int N, int Bytes, class Thread>
INTEROP_DEVICE void turn_words(const Thread& thread, unsigned* tile, uint4* vectors) {
  constexpr int kPack = 4 / Bytes, kRow = Tile / kPack;  // in words
  unsigned* const words = reinterpret_cast<unsigned*>(vectors);
#pragma unroll
  for (int s = 0; s < Thread::kSteps; s += kPack) {
    const int at = thread.line(s) / kPack;
    const int place = (at / 4 ^ thread.across / N) * 4 + at % 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      unsigned rows[kPack], columns[kPack];
#pragma unroll
      for (int p = 0; p < kPack; ++p) rows[p] = words[(s + p) * 4 + j];
      turn_small<Bytes>(rows, columns);
#pragma unroll
      for (int i = 0; i < kPack; ++i) tile[(thread.across + j * kPack + i) * kRow + place] = columns[i];
    }
  }
  __syncthreads();  // what one thread reads, others have written
#pragma unroll
  for (int s = 0; s < Thread::kSteps; ++s) {
    const int row = thread.line(s);
    vectors[s] = reinterpret_cast<const uint4*>(tile)[row * (kRow / 4) + (thread.across / N ^ row / N)];
  }
}

/// The lines of a tile: what an input is read along, the last dimension or the other one.
struct Lines {
  int64_t first, end, step;
};

/// The elements of a thread of a tile, of each input.
template <class Thread, int Tile, int N, typename... Readers>
struct TileVectors {
  INTEROP_DEVICE void read(const Tiles::Loop&, const Tiles::Array*, const ValueArgs*, const int64_t*, const Thread&) {}
  INTEROP_DEVICE void turn(const Tiles::Array*, const Thread&, unsigned char*) {}
  INTEROP_DEVICE void settle(const Tiles::Array*) {}
  template <typename F, typename... Before>
  INTEROP_DEVICE void apply(const F& function, const ValueArgs* values, typename F::Out (&out)[N], int,
                            const Before&... before) const {
    function.apply(values, out, before.at...);
  }
};
template <class Thread, int Tile, int N, typename Reader, typename... Rest>
struct TileVectors<Thread, Tile, N, Reader, Rest...> {
  using M = typename Reader::Kept;
  static constexpr int kPack = kPackOf<Tile, N, M>;
  using Word = Vector<M, kPack>;
  static constexpr int kPitch = Tile / kPack + 1;
  Vector<M, N> first[Thread::kSteps];
  TileVectors<Thread, Tile, N, Rest...> rest;

  INTEROP_DEVICE void read(const Tiles::Loop& loop, const Tiles::Array* array, const ValueArgs* values,
                           const int64_t* offset, const Thread& thread) {
    const bool tiled = !is_value(*array) && array->tiled;
    Tiles::Array along = *array;
    along.data += *offset;
    if (tiled) {
      along.step = array->cross_step;
      along.access = array->cross_access;
    }
    const Lines lines{tiled ? thread.first : thread.cross_first, tiled ? loop.length : loop.cross_length,
                      tiled ? array->step : array->cross_step};
    const InRow place{(tiled ? thread.cross_first : thread.first) + thread.across,
                      tiled ? loop.cross_length : loop.length, false};
    Reader::read_lines(*this, along, values, lines, place, thread);
    rest.read(loop, array + 1, values, offset + 1, thread);
  }
  template <typename R>
  INTEROP_DEVICE void read_lines(const Tiles::Array& array, const ValueArgs* values, const Lines& lines,
                                 const InRow& place, const Thread& thread) {
#pragma unroll
    for (int s = 0; s < Thread::kSteps; ++s) {
      const int64_t line = lines.first + thread.line(s);
      first[s] = {};
      if (line < lines.end && place.at < place.length) {
        first[s] = R::template read<N>(array, values, line * lines.step, place);
      }
    }
  }
  /// Transposes an input that was read along its own dimension, through shared memory that the inputs use in turn.
  INTEROP_DEVICE void turn(const Tiles::Array* array, const Thread& thread, unsigned char* memory) {
    if (!is_value(*array) && array->tiled) {  // the same in all threads
      __syncthreads();                        // the input before has been read
      if constexpr (kSmallTile<Tile, N, M>) {
        turn_words<Tile, N, sizeof(M)>(thread, reinterpret_cast<unsigned*>(memory), reinterpret_cast<uint4*>(first));
      } else {
        turn_elements(thread, reinterpret_cast<Word*>(memory));
      }
    }
    rest.turn(array + 1, thread, memory);
  }
  INTEROP_DEVICE void turn_elements(const Thread& thread, Word* tile) {
#pragma unroll
    for (int s = 0; s < Thread::kSteps; s += kPack) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        Word word;
#pragma unroll
        for (int p = 0; p < kPack; ++p) word.at[p] = first[s + p].at[i];
        tile[(thread.across + i) * kPitch + thread.line(s) / kPack] = word;
      }
    }
    __syncthreads();  // what one thread reads, others have written
#pragma unroll
    for (int s = 0; s < Thread::kSteps; ++s) {
#pragma unroll
      for (int i = 0; i < N; i += kPack) {
        const Word word = tile[thread.line(s) * kPitch + (thread.across + i) / kPack];
#pragma unroll
        for (int p = 0; p < kPack; ++p) first[s].at[i + p] = word.at[p];
      }
    }
  }
  INTEROP_DEVICE void settle(const Tiles::Array* array) {
#pragma unroll
    for (int s = 0; s < Thread::kSteps; ++s) elementwise::settle(array->access, first[s]);
    rest.settle(array + 1);
  }
  /// The function of vector `s`.
  template <typename F, typename... Before>
  INTEROP_DEVICE void apply(const F& function, const ValueArgs* values, typename F::Out (&out)[N], int s,
                            const Before&... before) const {
    rest.apply(function, values, out, s, before..., first[s]);
  }
};

// run_tiles: the same, where an input lies compact along another dimension than the output.
//   in/out  as above. A tile is Tile elements along the output's last dimension and Tile along the other one
//   launch  block 256, one tile a block; shared memory for one tile of the widest input
//   traffic whole lines of every array, by vectors of up to 16 bytes: those inputs are read along their own dimension
//           into shared memory, and from there along the output's. A row of shared memory is one word longer than the
//           tile, so that a warp meets a bank at most twice;
//           small elements go there in words
template <int Tile, int N, typename... Readers, typename F>
INTEROP_DEVICE void run_tiles(const Tiles::Loop& loop, const Tiles::Array* arrays, const ValueArgs* values,
                              const F& function) {
  using O = typename F::Out;
  using Thread = TileThread<Tile, N, largest(1, kPackOf<Tile, N, typename Readers::Kept>...)>;
  // A row has one word more than its elements take: at most 4 elements.
  constexpr int kRow = Tile + 4;
  __shared__ alignas(
      16) unsigned char memory[Tile * kRow * largest(1, static_cast<int>(sizeof(typename Readers::Kept))...)];

  const unsigned band = divide_by(blockIdx.x, loop.row_pieces);
  const unsigned row = divide_by(band, loop.cross_pieces);
  Thread thread;
  thread.first = static_cast<int64_t>(blockIdx.x - band * loop.row_pieces.value) * Tile;
  thread.cross_first = static_cast<int64_t>(band - row * loop.cross_pieces.value) * Tile;
  int64_t offsets[1 + sizeof...(Readers)];
  find_row(loop, arrays, row, offsets);

  TileVectors<Thread, Tile, N, Readers...> vectors;
  vectors.read(loop, arrays + 1, values, offsets + 1, thread);
  vectors.turn(arrays + 1, thread, memory);
  if (thread.first + thread.across >= loop.length) return;
  vectors.settle(arrays + 1);
#pragma unroll
  for (int s = 0; s < Thread::kSteps; ++s) {
    const int64_t line = thread.cross_first + thread.line(s);
    if (line >= loop.cross_length) continue;
    Vector<O, N> out;
    vectors.apply(function, values, out.at, s);
    char* to = arrays[0].data + offsets[0] + line * arrays[0].cross_step;
    const bool aligned = reinterpret_cast<uintptr_t>(to) % alignof(Vector<O, N>) == 0;
    write_vector(loop.vector_stores && aligned, arrays[0].step, to, thread.first + thread.across, loop.length, out);
  }
}

}  // namespace
}  // namespace interop::cuda::elementwise
