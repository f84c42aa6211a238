// The kernels of an expression, for any number of arrays of any dtypes. NVRTC compiles them at run time, with a functor
// `Expression` that interop/_expression_source.py writes:
//
//     struct Expression {
//       using Out = float;
//       INTEROP_DEVICE static Out compute(const ValueArgs* values, float x, Half y) { ... }
//     };
#pragma once

#include "cuda/elementwise_memory.cuh"
#include "cuda/expression_args.h"

namespace interop::cuda::elementwise {
namespace {

/// An element of T, out of the arguments.
template <typename T>
INTEROP_DEVICE T value_of(const ValueArgs& value) {
  return convert<T, T>(*reinterpret_cast<const Memory<T>*>(value.bytes));
}

/// What the place of a row in the outer dimensions adds to the pointers of the output and the inputs.
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

/// Where a block's tile lies, and how much of it is inside the loop.
struct TilePlace {
  int64_t first, cross_first;
  int length, cross_length;
};

INTEROP_DEVICE constexpr int largest(int x) { return x; }
template <typename... Rest>
INTEROP_DEVICE constexpr int largest(int x, int y, Rest... rest) {
  return largest(x > y ? x : y, rest...);
}

/// The elements of a thread of a tile, of each input.
template <int Tile, typename... Inputs>
struct TileElements {
  INTEROP_DEVICE void read(const ArrayArgs*, const int64_t*, const TilePlace&) {}
  INTEROP_DEVICE void turn(const ArrayArgs*, unsigned char*) {}
  template <typename E, typename... Before>
  INTEROP_DEVICE typename E::Out compute(const ValueArgs* values, int, Before... elements) const {
    return E::compute(values, elements...);
  }
};
template <int Tile, typename T, typename... Rest>
struct TileElements<Tile, T, Rest...> {
  using M = Memory<T>;
  static constexpr int kSteps = Tile * Tile / kThreads;
  static constexpr int kPitch = Tile + 1;  // no bank twice
  M first[kSteps];
  TileElements<Tile, Rest...> rest;

  INTEROP_DEVICE void read(const ArrayArgs* arrays, const int64_t* offsets, const TilePlace& place) {
    const char* corner =
        arrays->data + *offsets + place.first * arrays->step + place.cross_first * arrays->cross_step;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int at = i * kThreads + static_cast<int>(threadIdx.x);
      const int x = arrays->tiled ? at / Tile : at % Tile;  // along the last dimension
      const int y = arrays->tiled ? at % Tile : at / Tile;
      first[i] = M{};
      if (x < place.length && y < place.cross_length) {
        first[i] = *reinterpret_cast<const M*>(corner + x * arrays->step + y * arrays->cross_step);
      }
    }
    rest.read(arrays + 1, offsets + 1, place);
  }
  /// Turns round, in shared memory that the inputs use one after the other, what was read along its own dimension.
  INTEROP_DEVICE void turn(const ArrayArgs* arrays, unsigned char* memory) {
    if (arrays->tiled) {  // alike in all threads
      M* const tile = reinterpret_cast<M*>(memory);
      __syncthreads();  // the input before has been read
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int at = i * kThreads + static_cast<int>(threadIdx.x);
        tile[at % Tile * kPitch + at / Tile] = first[i];
      }
      __syncthreads();  // what one thread reads, others have written
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int at = i * kThreads + static_cast<int>(threadIdx.x);
        first[i] = tile[at / Tile * kPitch + at % Tile];
      }
    }
    rest.turn(arrays + 1, memory);
  }
  template <typename E, typename... Before>
  INTEROP_DEVICE typename E::Out compute(const ValueArgs* values, int i, Before... elements) const {
    return rest.template compute<E>(values, i, elements..., convert<T, T>(first[i]));
  }
};

// run_tiles: the same, where inputs lie compact along another dimension than the output.
//   launch  block 256, one tile of Tile x Tile elements a block; shared memory for one tile of the largest input
//   traffic whole lines of every array, as in elementwise_tiled_kernel
template <typename E, int Tile, typename... Inputs>
INTEROP_DEVICE void run_tiles(const LoopArgs& loop, const ArrayArgs* arrays, const ValueArgs* values) {
  using O = typename E::Out;
  constexpr int kSteps = Tile * Tile / kThreads;
  __shared__ alignas(16) unsigned char memory[Tile * (Tile + 1) * largest(1, static_cast<int>(sizeof(Inputs))...)];

  const unsigned band = divide_by(blockIdx.x, loop.row_pieces);
  const unsigned row = divide_by(band, loop.cross_pieces);
  TilePlace place;
  place.first = static_cast<int64_t>(blockIdx.x - band * loop.row_pieces.value) * Tile;
  place.cross_first = static_cast<int64_t>(band - row * loop.cross_pieces.value) * Tile;
  place.length = static_cast<int>(loop.length - place.first < Tile ? loop.length - place.first : Tile);
  place.cross_length =
      static_cast<int>(loop.cross_length - place.cross_first < Tile ? loop.cross_length - place.cross_first : Tile);
  int64_t offsets[1 + sizeof...(Inputs)];
  find_row(loop, arrays, row, offsets);

  TileElements<Tile, Inputs...> elements;
  elements.read(arrays + 1, offsets + 1, place);
  elements.turn(arrays + 1, memory);
  char* corner = arrays[0].data + offsets[0] + place.first * arrays[0].step + place.cross_first * arrays[0].cross_step;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int at = i * kThreads + static_cast<int>(threadIdx.x);
    const int x = at % Tile, y = at / Tile;
    if (x < place.length && y < place.cross_length) {
      *reinterpret_cast<O*>(corner + x * arrays[0].step + y * arrays[0].cross_step) =
          elements.template compute<E>(values, i);
    }
  }
}

}  // namespace
}  // namespace interop::cuda::elementwise
