/// What the two kernels of products of few rows share: what they are told, and what becomes of an output's sum. For one
/// source file each: everything is internal.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/kernel.h"
#include "cuda/matmul_finish.cuh"

namespace interop::cuda::skinny {

/// The kernel of one shape, and what its launcher must know of it.
struct Variant {
  int rows, columns, stage_k, warps_log;  // rows and columns are a warp's
  int shared_bytes;                       // dynamic; 0 where all of it is static
  Kernel* kernel;
};

/// Of the kernel in matmul_skinny_streamed.cu, for m rows of float32.
Variant streamed_variant(int64_t m, bool k_fast);

namespace {

using tiled::FinishArgs;
using tiled::kKernelBatchDims;
using tiled::OutputArgs;

constexpr int kMostRows = 16;
constexpr int kMostBlocks = 8;         // of a cluster
constexpr int kStreamedColumns = 128;  // of a warp of the streamed kernel

/// One operand as a (mn, k) matrix; strides in bytes.
struct OperandArgs {
  const char* data;
  int64_t mn_stride, k_stride;
  int64_t batch_stride[kKernelBatchDims];
};

struct KernelArgs {
  OperandArgs a, b;  // b is the one that is read once
  OutputArgs c;
  FinishArgs finish;
  int m;
  int64_t n;
  int k, whole_k;     // of it, in whole vectors
  int parts, part_k;  // part_k is what one block takes of it
  int cluster;        // how many blocks share out a part of k; 1 but for the streamed kernel
  unsigned column_blocks;
  int k_warps_log;  // of a block's warps, how many share out k
  bool a_vectors;   // k is a's unit stride, and its vectors are aligned
  bool down_rows;   // neighbouring threads store neighbouring rows (or columns)
  int batch_ndim;
  int64_t batch_size[kKernelBatchDims];
  int64_t matrices;
  char* partials;  // where the sums of parts go; null: there is one part, which is finished
};

#if __CUDA_ARCH__ >= 800  // others get an empty kernel, which nothing launches

/// Where a block is: the first of its columns, and which part of k of which matrix it adds up.
struct Place {
  int64_t column, matrix;
  int part;
  const char *a, *b;
};

/// `block` counts clusters; a block has so many columns.
__device__ __forceinline__ Place place_of(const KernelArgs& args, unsigned block, int columns) {
  Place place;
  place.column = static_cast<int64_t>(block % args.column_blocks) * columns;
  block /= args.column_blocks;
  place.part = args.partials ? block % args.parts : 0;
  place.matrix = args.partials ? block / args.parts : block;
  const auto offset = [&](const int64_t (&strides)[kKernelBatchDims]) {
    return tiled::matrix_offset(place.matrix, args.batch_ndim, args.batch_size, strides);
  };
  place.a = args.a.data + offset(args.a.batch_stride);
  place.b = args.b.data + offset(args.b.batch_stride);
  return place;
}

template <typename E>
__device__ __forceinline__ float element(const char* from) {
  return device::to_float(*reinterpret_cast<const E*>(from));
}
template <>
__device__ __forceinline__ float element<float>(const char* from) {
  return *reinterpret_cast<const float*>(from);
}
__device__ __forceinline__ double element_double(const char* from) { return *reinterpret_cast<const double*>(from); }

/// What is left of k behind its whole vectors, added to one output's sum.
template <typename E, typename Sum>
__device__ __forceinline__ Sum add_rest(const KernelArgs& args, const char* a, const char* b, Sum sum) {
  for (int k = args.whole_k; k < args.k; ++k) {
    const char *const from_a = a + k * args.a.k_stride, *const from_b = b + k * args.b.k_stride;
    if constexpr (std::is_same<E, double>::value) {
      sum = fma(element_double(from_a), element_double(from_b), sum);
    } else {
      sum = fmaf(element<E>(from_a), element<E>(from_b), sum);
    }
  }
  return sum;
}

/// Stores a block's outputs from the one with index `first` on, every `step`th up to `end`: `sum_of(row, column)` is
/// what the block has added up, for its columns of `columns`.
template <typename E, typename Sum, typename SumOf>
__device__ __forceinline__ void store_outputs(const KernelArgs& args, const Place& place, int columns, int first,
                                              int end, int step, SumOf sum_of) {
  const auto offset = [&](const int64_t (&strides)[kKernelBatchDims]) {
    return tiled::matrix_offset(place.matrix, args.batch_ndim, args.batch_size, strides);
  };
  char* const c = args.c.data + offset(args.c.batch_stride);
  const FinishArgs& how = args.finish;
  const char* const addend = how.addend.data ? how.addend.data + offset(how.addend.batch_stride) : nullptr;
  char* const aux = how.aux.data ? how.aux.data + offset(how.aux.batch_stride) : nullptr;
  for (int index = first; index < end; index += step) {
    const int i = args.down_rows ? index % args.m : index / columns;
    const int in_block = args.down_rows ? index / args.m : index % columns;
    const int64_t j = place.column + in_block;
    if (j >= args.n) continue;
    Sum sum = sum_of(i, in_block);
    if (place.part == args.parts - 1) {
      sum = add_rest<E>(args, place.a + i * args.a.mn_stride, place.b + j * args.b.mn_stride, sum);
    }
    const auto at = [i, j](const OutputArgs& array) { return i * array.row_stride + j * array.column_stride; };
    if (args.partials) {
      reinterpret_cast<Sum*>(args.partials)[((place.part * args.matrices + place.matrix) * args.m + i) * args.n + j] =
          sum;
    } else if (how.direct) {
      *reinterpret_cast<Sum*>(c + at(args.c)) = sum;
    } else {
      tiled::finish_one<Sum>(
          how, sum,
          {c + at(args.c), addend ? addend + at(how.addend) : nullptr,
           how.bias.data ? how.bias.data + at(how.bias) : nullptr, aux ? aux + at(how.aux) : nullptr});
    }
  }
}

#endif  // __CUDA_ARCH__ >= 800

}  // namespace
}  // namespace interop::cuda::skinny
