// The kernels of an expression, for any number of arrays of any dtypes. NVRTC compiles them at run time, with a functor
// `Expression` that interop/_expressions/source.py writes:
//
//     struct Expression {
//       using Out = float;
//       INTEROP_DEVICE static Out compute(const ValueArgs* values, float x, Half y) { ... }
//     };
#pragma once

#include "cuda/elementwise/expression_args.h"
#include "cuda/elementwise/memory.cuh"

namespace interop::cuda::elementwise {
namespace {

/// An element of T, out of the arguments.
template <typename T>
INTEROP_DEVICE T value_of(const ValueArgs& value) {
  return convert<T, T>(*reinterpret_cast<const Memory<T>*>(value.bytes));
}

/// The offsets of a row in the output and the inputs, from its place in the outer dimensions.
template <int Count>
INTEROP_DEVICE void find_row(const LoopArgs& loop, const ArrayArgs* arrays, unsigned row, int64_t (&offsets)[Count]) {
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

/// A vector of each input. `arrays` and `offsets` are those of the first of them.
template <int N, typename... Inputs>
struct Vectors {
  INTEROP_DEVICE void read(const ArrayArgs*, const int64_t*, int64_t, int64_t) {}
  template <typename E, typename... Before>
  INTEROP_DEVICE typename E::Out compute(const ValueArgs* values, int, Before... elements) const {
    return E::compute(values, elements...);
  }
};
template <int N, typename T, typename... Rest>
struct Vectors<N, T, Rest...> {
  Vector<Memory<T>, N> first;
  Vectors<N, Rest...> rest;

  INTEROP_DEVICE void read(const ArrayArgs* arrays, const int64_t* offsets, int64_t at, int64_t length) {
    first = read_vector<Memory<T>, N>(arrays->access, arrays->step, arrays->data + *offsets, at, length);
    rest.read(arrays + 1, offsets + 1, at, length);
  }
  /// The expression of the elements at place `i`.
  template <typename E, typename... Before>
  INTEROP_DEVICE typename E::Out compute(const ValueArgs* values, int i, Before... elements) const {
    return rest.template compute<E>(values, i, elements..., convert<T, T>(first.at[i]));
  }
};

// run_vectors: out = expression(inputs...), vector by vector of the output's rows. `arrays[0]` is the output.
//   in/out  of any strides and alignment; the output may be an input itself
//   launch  block 256, Unroll vectors of N elements a thread, as many blocks as that takes; no shared memory
//   traffic each element once, each dtype as it is in memory: memory-bound, unless the expression is long
// The vectors begin and are read as those of elementwise_kernel, which says why.
template <typename E, int N, int Unroll, typename... Inputs>
INTEROP_DEVICE void run_vectors(const LoopArgs& loop, const ArrayArgs* arrays, const ValueArgs* values) {
  using O = typename E::Out;
  Vectors<N, Inputs...> inputs[Unroll];
  char* rows[Unroll];
  int64_t places[Unroll];
#pragma unroll
  for (int u = 0; u < Unroll; ++u) {
    const unsigned vector = (blockIdx.x * Unroll + u) * kThreads + threadIdx.x;
    places[u] = loop.length;
    if (vector >= loop.count) continue;
    const unsigned row = loop.outer_ndim == 0 ? 0 : divide_by(vector, loop.row_pieces);
    int64_t offsets[1 + sizeof...(Inputs)];
    find_row(loop, arrays, row, offsets);
    rows[u] = arrays[0].data + offsets[0];
    const unsigned before =  // elements from the last aligned place to the row
        loop.vector_stores ? static_cast<unsigned>(reinterpret_cast<uintptr_t>(rows[u]) / sizeof(O)) % N : 0;
    places[u] = static_cast<int64_t>(vector - row * loop.row_pieces.value) * N - before;
    if (places[u] >= loop.length) continue;
    inputs[u].read(arrays + 1, offsets + 1, places[u], loop.length);
  }
#pragma unroll
  for (int u = 0; u < Unroll; ++u) {
    if (places[u] >= loop.length) continue;
    Vector<O, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.at[i] = inputs[u].template compute<E>(values, i);
    write_vector(loop.vector_stores, arrays[0].step, rows[u], places[u], loop.length, out);
  }
}

// ---- tiles ----

/// The vectors of a thread in a tile: where its first one lies along the lines, and which lines it has. What is not
/// said here is as in elementwise_tiled_kernel.
template <int Tile, int N>
struct TileThread {
  static constexpr int kAcross = Tile / N;                  // vectors along a side
  static constexpr int kSteps = Tile * kAcross / kThreads;  // vectors of a thread
  const int across = static_cast<int>(threadIdx.x) % kAcross * N, down = static_cast<int>(threadIdx.x) / kAcross;
  int64_t first, cross_first;  // the corner of the tile

  INTEROP_DEVICE static constexpr int smaller(int x, int y) { return x < y ? x : y; }
  /// Elements of a word of shared memory, of which a thread has as many lines side by side.
  template <typename M>
  INTEROP_DEVICE static constexpr int pack() {
    return smaller(sizeof(M) < 4 ? 4 / static_cast<int>(sizeof(M)) : 1, smaller(N, kSteps));
  }
  // The same for all inputs, as their elements meet in one thread.
  static constexpr int kLines = smaller(4, smaller(N, kSteps));
  INTEROP_DEVICE int line(int s) const { return (s / kLines * (kThreads / kAcross) + down) * kLines + s % kLines; }
};

INTEROP_DEVICE constexpr int largest(int x) { return x; }
template <typename... Rest>
INTEROP_DEVICE constexpr int largest(int x, int y, Rest... rest) {
  return largest(x > y ? x : y, rest...);
}

/// The elements of a thread of a tile, of each input.
template <int Tile, int N, typename... Inputs>
struct TileVectors {
  INTEROP_DEVICE void read(const LoopArgs&, const ArrayArgs*, const int64_t*, const TileThread<Tile, N>&) {}
  INTEROP_DEVICE void turn(const ArrayArgs*, const TileThread<Tile, N>&, unsigned char*) {}
  template <typename E, typename... Before>
  INTEROP_DEVICE typename E::Out compute(const ValueArgs* values, int, int, Before... elements) const {
    return E::compute(values, elements...);
  }
};
template <int Tile, int N, typename T, typename... Rest>
struct TileVectors<Tile, N, T, Rest...> {
  using M = Memory<T>;
  using Thread = TileThread<Tile, N>;
  static constexpr int kPack = Thread::template pack<M>();
  using Word = Vector<M, kPack>;
  static constexpr int kPitch = Tile / kPack + 1;
  Vector<M, N> first[Thread::kSteps];
  TileVectors<Tile, N, Rest...> rest;

  INTEROP_DEVICE void read(const LoopArgs& loop, const ArrayArgs* array, const int64_t* offset, const Thread& thread) {
    // A line is what the input is read along: the last dimension, or the other one.
    const bool tiled = array->tiled;
    const int64_t at = (tiled ? thread.cross_first : thread.first) + thread.across;
    const int64_t length = tiled ? loop.cross_length : loop.length, lines = tiled ? loop.length : loop.cross_length;
    const int64_t step = tiled ? array->cross_step : array->step, line_step = tiled ? array->step : array->cross_step;
    const int64_t line_first = tiled ? thread.first : thread.cross_first;
    const Access access = tiled ? array->cross_access : array->access;
#pragma unroll
    for (int s = 0; s < Thread::kSteps; ++s) {
      const int64_t line = line_first + thread.line(s);
      first[s] = {};
      if (line < lines && at < length) {
        first[s] = read_vector<M, N>(access, step, array->data + *offset + line * line_step, at, length);
      }
    }
    rest.read(loop, array + 1, offset + 1, thread);
  }
  /// Transposes an input that was read along its own dimension, through shared memory that the inputs use in turn.
  INTEROP_DEVICE void turn(const ArrayArgs* array, const Thread& thread, unsigned char* memory) {
    if (array->tiled) {  // the same in all threads
      Word* const tile = reinterpret_cast<Word*>(memory);
      __syncthreads();  // the input before has been read
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
    rest.turn(array + 1, thread, memory);
  }
  /// The expression of the elements at place `i` of vector `s`.
  template <typename E, typename... Before>
  INTEROP_DEVICE typename E::Out compute(const ValueArgs* values, int s, int i, Before... elements) const {
    return rest.template compute<E>(values, s, i, elements..., convert<T, T>(first[s].at[i]));
  }
};

// run_tiles: the same, where inputs lie compact along another dimension than the output.
//   launch  block 256, one tile of Tile x Tile elements a block; shared memory for one tile of the widest input
//   traffic whole lines of every array, by vectors, as in elementwise_tiled_kernel
template <typename E, int Tile, int N, typename... Inputs>
INTEROP_DEVICE void run_tiles(const LoopArgs& loop, const ArrayArgs* arrays, const ValueArgs* values) {
  using O = typename E::Out;
  // A row has one word more than its elements take: at most 4 elements.
  constexpr int kRow = Tile + 4;
  __shared__ alignas(16) unsigned char memory[Tile * kRow * largest(1, static_cast<int>(sizeof(Inputs))...)];

  const unsigned band = divide_by(blockIdx.x, loop.row_pieces);
  const unsigned row = divide_by(band, loop.cross_pieces);
  TileThread<Tile, N> thread;
  thread.first = static_cast<int64_t>(blockIdx.x - band * loop.row_pieces.value) * Tile;
  thread.cross_first = static_cast<int64_t>(band - row * loop.cross_pieces.value) * Tile;
  int64_t offsets[1 + sizeof...(Inputs)];
  find_row(loop, arrays, row, offsets);

  TileVectors<Tile, N, Inputs...> vectors;
  vectors.read(loop, arrays + 1, offsets + 1, thread);
  vectors.turn(arrays + 1, thread, memory);
  if (thread.first + thread.across >= loop.length) return;
#pragma unroll
  for (int s = 0; s < TileThread<Tile, N>::kSteps; ++s) {
    const int64_t line = thread.cross_first + thread.line(s);
    if (line >= loop.cross_length) continue;
    Vector<O, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.at[i] = vectors.template compute<E>(values, s, i);
    char* to = arrays[0].data + offsets[0] + line * arrays[0].cross_step;
    const bool aligned = reinterpret_cast<uintptr_t>(to) % alignof(Vector<O, N>) == 0;
    write_vector(loop.vector_stores && aligned, arrays[0].step, to, thread.first + thread.across, loop.length, out);
  }
}

}  // namespace
}  // namespace interop::cuda::elementwise
