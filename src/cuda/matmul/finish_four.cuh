/// Device code of the tensor-core kernels: finishes and stores four neighbouring sums of a row, as the general kernels
/// do one. T is float16, bfloat16 or float.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "cuda/matmul/finish.cuh"

namespace interop::cuda::tiled {
namespace {

template <typename T>
constexpr Format kFormatOf = std::is_same_v<T, __half> ? Format::float16 : Format::bfloat16;

template <typename T>
__device__ __forceinline__ uint32_t rounded_pair(float x, float y) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(x, y);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

/// Where four neighbours of a row begin in an array of the result's shape; null for an absent array.
struct Place {
  char* data;
  int64_t step;  // in bytes

  /// Do all four exist, and form one aligned vector?
  __device__ __forceinline__ bool is_vector(int count, int item) const {
    return count == 4 && step == item && reinterpret_cast<uintptr_t>(data) % (4 * item) == 0;
  }
};

template <int BatchDims>
__device__ __forceinline__ Place place_in(const OutputArgs& array, const int (&batch)[BatchDims], int row, int column) {
  if (!array.data) return {};
  char* data = array.data + row * array.row_stride + column * array.column_stride;
#pragma unroll
  for (int i = 0; i < BatchDims; ++i) data += batch[i] * array.batch_stride[i];
  return {data, array.column_stride};
}

/// Loads the first `count` of four values, of T or float32, and zeros for the others.
template <typename T>
__device__ __forceinline__ void load_four(float (&values)[4], const Place& from, int count, bool is_float32) {
  if (from.is_vector(count, is_float32 ? 4 : 2)) {
    if (is_float32) {
      const float4 four = *reinterpret_cast<const float4*>(from.data);
      values[0] = four.x, values[1] = four.y, values[2] = four.z, values[3] = four.w;
    } else {
      const ushort4 four = *reinterpret_cast<const ushort4*>(from.data);
      const uint16_t bits[] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] = widen(bits[i], kFormatOf<T>, 0.f);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[i] = 0;
    if (i < count) {
      values[i] = load_as<float>(from.data + i * from.step, is_float32 ? Format::plain : kFormatOf<T>);
    }
  }
}

template <typename T>
__device__ __forceinline__ void store_four(const Place& to, const float (&values)[4], int count, bool is_float32) {
  if (to.is_vector(count, is_float32 ? 4 : 2)) {
    if (is_float32) {
      *reinterpret_cast<float4*>(to.data) = make_float4(values[0], values[1], values[2], values[3]);
    } else {
      *reinterpret_cast<uint2*>(to.data) =
          make_uint2(rounded_pair<T>(values[0], values[1]), rounded_pair<T>(values[2], values[3]));
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < count) {
      store_as<float>(to.data + i * to.step, is_float32 ? Format::plain : kFormatOf<T>, values[i]);
    }
  }
}

/// The factors of a product. An absent factor is 1, which changes no bit.
struct Factors {
  float first, second, alpha, beta;

  __device__ __forceinline__ explicit Factors(const FinishArgs& how)
      : first(how.factors[0] ? *how.factors[0] : 1),
        second(how.factors[1] ? *how.factors[1] : 1),
        alpha(how.scales ? *reinterpret_cast<const float*>(how.alpha) : 1),
        beta(how.scales ? *reinterpret_cast<const float*>(how.beta) : 1) {}
};

/// Finishes four neighbours of a row, of which `count` exist, as the general kernels do, and stores them.
template <typename T, int BatchDims>
__device__ __forceinline__ void finish_four(const FinishArgs& how, const OutputArgs& c, const Factors& factors,
                                            float (&values)[4], const int (&batch)[BatchDims], int row, int column,
                                            int count) {
  const bool is_float32 = sizeof(T) == 4 || how.format == Format::plain;
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i] = factors.alpha * (values[i] * factors.first * factors.second);
  float added[4];
  if (const Place addend = place_in(how.addend, batch, row, column); addend.data) {
    load_four<T>(added, addend, count, is_float32);
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = fmaf(factors.beta, added[i], values[i]);
  }
  if (const Place bias = place_in(how.bias, batch, row, column); bias.data) {
    load_four<T>(added, bias, count, is_float32);
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] += added[i];
  }
  if (const Place aux = place_in(how.aux, batch, row, column); aux.data) {
    store_four<T>(aux, values, count, is_float32);
  }
  activate(values, how.activation, !is_float32);
  store_four<T>(place_in(c, batch, row, column), values, count, is_float32);
}

}  // namespace
}  // namespace interop::cuda::tiled
