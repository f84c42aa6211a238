/// How an elementwise loop is cut into launches. Private to src/cuda.
#pragma once

#include <interop/elementwise.h>

#include <algorithm>

#include "cuda/driver/kernel.h"
#include "cuda/elementwise/args.h"

namespace interop::cuda::elementwise {

constexpr int64_t kVectorBytes = 16;  // that a thread reads or writes at a time, at most

/// The alignment of a vector of so many elements.
inline int64_t vector_alignment(int64_t count, int64_t item) { return std::min(count * item, kVectorBytes); }

/// One launch: some rows, and a part of the last dimension.
struct Grid {
  char* data[kMaxInputs + 1];  ///< where each operand begins; that of the output is the first
  int64_t length;              ///< of the last dimension
  int64_t cross_length;        ///< of the other side of a tile
  int outer_ndim = 0;
  int outer_dims[kOuterDims];  ///< places in the loop, innermost first
  Divisor outer_sizes[kOuterDims];
  Divisor row_pieces, cross_pieces;
  int64_t count;  ///< pieces of the launch
};

/// The launches of a loop: pieces (vectors, or tiles) of the last dimension, and of `cross` unless that is -1.
/// Walks what one launch cannot hold: dimensions beyond kOuterDims, and more pieces than 32 bits count.
class Grids {
 public:
  /// `items`: the bytes of an element of each operand; `data`: where each begins, null for one without memory.
  Grids(const Loop& loop, const int64_t* items, char* const* data, int cross, int piece)
      : loop_(loop), items_(items), cross_(cross), last_(loop.ndim - 1), piece_(piece) {
    for (int i = 0; i < last_; ++i) {
      if (i != cross) outer_[outer_ndim_++] = i;
      outer_size_[i] = 0;
    }
    std::copy(data, data + loop.operand_count, grid_.data);
    grid_.length = last_ < 0 ? 1 : loop.sizes[last_];
    grid_.cross_length = cross < 0 ? 1 : loop.sizes[cross];
  }

  /// Bytes from one element of operand `k` to the next along the last dimension, and along the other side of a tile.
  int64_t step(int k) const { return last_ < 0 ? 0 : bytes_along(k, last_); }
  int64_t cross_step(int k) const { return cross_ < 0 ? 0 : bytes_along(k, cross_); }
  int64_t bytes_along(int k, int dim) const { return loop_.strides[k][dim] * items_[k]; }
  /// Are the elements of the output's rows neighbours?
  bool vector_stores() const { return last_ < 0 || loop_.strides[0][last_] == 1; }

  /// Do all rows of a launch that are not one element begin where a vector may lie?
  bool is_aligned(const Grid& grid) const {
    bool aligned = true;
    for (int k = 0; k < loop_.operand_count; ++k) {
      if (!grid.data[k] || (last_ >= 0 && loop_.strides[k][last_] == 0)) continue;
      int64_t all = static_cast<int64_t>(reinterpret_cast<uintptr_t>(grid.data[k]));
      for (int i = 0; i < outer_ndim_; ++i) all |= bytes_along(k, outer_[i]);
      aligned &= all % vector_alignment(piece_, items_[k]) == 0;
    }
    return aligned;
  }
  /// Does each array have the elements of a row side by side, or one for all, in whole vectors where these may lie?
  bool is_whole(const Grid& grid) const {
    bool whole = last_ >= 0 && grid.length % piece_ == 0 && vector_stores();
    for (int k = 1; k < loop_.operand_count && whole; ++k) {
      whole = !grid.data[k] || loop_.strides[k][last_] == 0 || loop_.strides[k][last_] == 1;
    }
    return whole && is_aligned(grid);
  }

  /// Calls `launch(grid)` for each launch.
  template <class Launch>
  void each(Launch&& launch) {
    // Of the outer dimensions, a launch takes the innermost ones.
    walk(0, std::max(0, outer_ndim_ - kOuterDims), launch);
  }

 private:
  static constexpr int64_t kMostPieces = (int64_t{1} << 31) - 1;  // a Divisor is exact up to this

  void advance(int dim, int64_t steps) {
    for (int k = 0; k < loop_.operand_count; ++k) {
      if (grid_.data[k]) grid_.data[k] += steps * bytes_along(k, dim);
    }
  }

  template <class Launch>
  void walk(int depth, int walked, Launch& launch) {
    if (depth == walked) return cut(walked, launch);
    const int dim = outer_[depth];
    const int64_t size = loop_.sizes[dim];
    for (int64_t i = 0; i < size; ++i) {
      walk(depth + 1, walked, launch);
      advance(dim, 1);
    }
    advance(dim, -size);
  }

  /// The most elements between the start of a row and the last place before it where the output is aligned for vectors.
  int64_t most_before() const {
    int64_t all = 0;
    for (int i = 0; i < outer_ndim_; ++i) all |= loop_.strides[0][outer_[i]];
    if (all % piece_ != 0) return piece_ - 1;  // a row may begin anywhere
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(grid_.data[0]) / static_cast<uintptr_t>(items_[0]) %
                                static_cast<uintptr_t>(piece_));
  }

  /// Launches the outer dimensions from `first` on, in halves if there are more pieces than a launch can count.
  template <class Launch>
  void cut(int first, Launch& launch) {
    const int64_t pieces = ceil_div(grid_.length + (cross_ < 0 && vector_stores() ? most_before() : 0), piece_);
    const int64_t cross_pieces = cross_ < 0 ? 1 : ceil_div(grid_.cross_length, piece_);
    grid_.outer_ndim = outer_ndim_ - first;
    double all = static_cast<double>(pieces) * static_cast<double>(cross_pieces);
    int64_t sizes[kOuterDims];
    int longest = -1;
    for (int d = 0; d < grid_.outer_ndim; ++d) {
      const int dim = outer_[outer_ndim_ - 1 - d];
      sizes[d] = outer_size_[dim] ? outer_size_[dim] : loop_.sizes[dim];
      all *= static_cast<double>(sizes[d]);
      if (longest < 0 || sizes[d] > sizes[longest]) longest = d;
    }
    if (all > static_cast<double>(kMostPieces)) {
      return halve(first, longest < 0 ? 1 : sizes[longest], longest, launch);
    }
    for (int d = 0; d < grid_.outer_ndim; ++d) {
      grid_.outer_dims[d] = outer_[outer_ndim_ - 1 - d];
      grid_.outer_sizes[d] = divisor_of(sizes[d]);
    }
    grid_.row_pieces = divisor_of(pieces);
    grid_.cross_pieces = divisor_of(cross_pieces);
    grid_.count = static_cast<int64_t>(all);
    launch(static_cast<const Grid&>(grid_));
  }

  template <class Launch>
  void halve(int first, int64_t outer_longest, int outer, Launch& launch) {
    // The longest of all dimensions is cut; halves of the last one begin at whole pieces.
    const int64_t rows = ceil_div(grid_.length, piece_);
    const int64_t bands = cross_ < 0 ? 1 : ceil_div(grid_.cross_length, piece_);
    if (outer_longest >= rows && outer_longest >= bands) {
      const int dim = outer_[outer_ndim_ - 1 - outer];
      const int64_t half = outer_longest / 2, before = outer_size_[dim];
      outer_size_[dim] = half;
      cut(first, launch);
      outer_size_[dim] = outer_longest - half;
      advance(dim, half);
      cut(first, launch);
      advance(dim, -half);
      outer_size_[dim] = before;
      return;
    }
    int64_t& length = rows >= bands ? grid_.length : grid_.cross_length;
    const int dim = rows >= bands ? last_ : cross_;
    const int64_t whole = length, half = std::max(rows, bands) / 2 * piece_;
    length = half;
    cut(first, launch);
    length = whole - half;
    advance(dim, half);
    cut(first, launch);
    advance(dim, -half);
    length = whole;
  }

  const Loop& loop_;
  const int64_t* items_;
  const int cross_, last_;  // -1: no tiles; a single element
  const int piece_;         // elements of a vector, or along the side of a tile
  int outer_[kMaxDims];     // the dimensions that a kernel does not handle by itself, outermost first
  int outer_ndim_ = 0;
  int64_t outer_size_[kMaxDims];  // where a dimension is cut; 0: whole
  Grid grid_;
};

}  // namespace interop::cuda::elementwise
