/// What the kernels of products of few rows share: loads and the epilogue. The device code has internal linkage: each
/// source file has its own copy.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/matmul/finish.cuh"
#include "cuda/matmul/skinny/kernels.h"

namespace interop::cuda::skinny {

namespace {

#if __CUDA_ARCH__ >= 800  // other architectures get an empty kernel, which nothing launches

/// A block's first column, its matrix of the batch, and the part of k that it adds up.
struct Place {
  int64_t column, matrix;
  int part;
  const char *a, *b;
};

/// The offset of matrix `matrix` of the batch. Not inlined, as most batches have one dimension.
INTEROP_CALLED int64_t offset_in_batch(const KernelArgs& args, int64_t matrix,
                                       const int64_t (&strides)[kKernelBatchDims]) {
  return tiled::matrix_offset(matrix, args.batch_ndim, args.batch_size, strides);
}
__device__ __forceinline__ int64_t offset_of(const KernelArgs& args, int64_t matrix,
                                             const int64_t (&strides)[kKernelBatchDims]) {
  return args.batch_ndim <= 1 ? matrix * strides[0] : offset_in_batch(args, matrix, strides);
}

/// `block` is the index of a cluster, and `blocks` the number of clusters. Each has `columns` columns.
__device__ __forceinline__ Place place_of(const KernelArgs& args, unsigned block, unsigned blocks, int columns) {
  Place place{0, 0, 0, args.a.data, args.b.data};
  if (blocks > args.column_blocks.value) {  // otherwise no division delays the first load
    unsigned left = divide_by(block, args.column_blocks);
    block -= left * args.column_blocks.value;
    if (args.partials) {
      place.part = left % args.parts;
      left /= args.parts;
    }
    place.matrix = left;
    place.a += offset_of(args, place.matrix, args.a.batch_stride);
    place.b += offset_of(args, place.matrix, args.b.batch_stride);
  }
  place.column = static_cast<int64_t>(block) * columns;
  return place;
}

/// Reads 16 bytes that no one reads again; zeros if not `valid`.
__device__ __forceinline__ uint4 load_once(const char* from, bool valid) {
  uint4 v;
  asm("{\n"
      " .reg .pred valid;\n"
      " setp.ne.b32 valid, %5, 0;\n"
      " mov.b32 %0, 0;\n"
      " mov.b32 %1, 0;\n"
      " mov.b32 %2, 0;\n"
      " mov.b32 %3, 0;\n"
      " @valid ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(from), "r"(static_cast<int>(valid)));
  return v;
}

__device__ __forceinline__ unsigned word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/// Reads a vector of a; zeros if not `valid`. Unless AsVector, its elements are `stride` bytes apart and are read one
/// by one. AsVector is a template parameter, as a branch at each vector would cost more than the read.
template <typename E, bool AsVector>
__device__ __forceinline__ uint4 read_a(const char* from, int64_t stride, bool valid) {
  uint4 v = make_uint4(0, 0, 0, 0);
  if (!valid) return v;
  if constexpr (AsVector) return __ldg(reinterpret_cast<const uint4*>(from));
  using Bits = std::conditional_t<sizeof(E) == 2, uint16_t, std::conditional_t<sizeof(E) == 4, uint32_t, uint64_t>>;
  constexpr int kVector = 16 / sizeof(E);
  Bits elements[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) elements[i] = *reinterpret_cast<const Bits*>(from + i * stride);
  if constexpr (sizeof(Bits) == 2) {
    const auto pair = [&](int i) { return elements[i] | static_cast<unsigned>(elements[i + 1]) << 16; };
    v = make_uint4(pair(0), pair(2), pair(4), pair(6));
  } else if constexpr (sizeof(Bits) == 4) {
    v = make_uint4(elements[0], elements[1], elements[2], elements[3]);
  } else {
    v = make_uint4(static_cast<unsigned>(elements[0]), static_cast<unsigned>(elements[0] >> 32),
                   static_cast<unsigned>(elements[1]), static_cast<unsigned>(elements[1] >> 32));
  }
  return v;
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

/// Adds the products beyond the whole vectors of k to one output's sum.
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

/// Finishes and stores a block's outputs `first`, `first + step`, ... below `end`. `sum_of(row, column)` returns the
/// block's sum of an output; the block has 2^columns_log columns.
template <typename E, typename Sum, typename SumOf>
__device__ __forceinline__ void store_outputs(const KernelArgs& args, const Place& place, int columns_log, int first,
                                              int end, int step, SumOf sum_of) {
  const FinishArgs& how = args.finish;
  for (int index = first; index < end; index += step) {
    int i = index >> columns_log, in_block = index & ((1 << columns_log) - 1);
    if (args.down_rows) {
      in_block = index / args.m;
      i = index - in_block * args.m;
    }
    const int64_t j = place.column + in_block;
    if (j >= args.n) continue;
    Sum sum = sum_of(i, in_block);
    if (place.part == args.parts - 1) {
      sum = add_rest<E>(args, place.a + i * args.a.mn_stride, place.b + j * args.b.mn_stride, sum);
    }
    const auto at = [&](const OutputArgs& array) {
      return array.data + offset_of(args, place.matrix, array.batch_stride) + i * array.row_stride +
             j * array.column_stride;
    };
    if (args.partials) {
      reinterpret_cast<Sum*>(args.partials)[((place.part * args.matrices + place.matrix) * args.m + i) * args.n + j] =
          sum;
    } else if (args.is_plain) {
      tiled::store_as<Sum>(at(args.c), how.format, sum);
    } else {
      tiled::finish_one<Sum>(
          how, sum,
          {at(args.c), how.addend.data ? at(how.addend) : nullptr,
           how.bias.data ? how.bias.data + i * how.bias.row_stride + j * how.bias.column_stride : nullptr,
           how.aux.data ? at(how.aux) : nullptr});
    }
  }
}

#endif  // __CUDA_ARCH__ >= 800

}  // namespace
}  // namespace interop::cuda::skinny
