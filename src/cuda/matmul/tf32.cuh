/// Device code: float32 rounded to TF32 on its way to tensor cores.
#pragma once

#include <cstdint>

namespace interop::device {

/// As packing rounds to TF32: to the nearest, but no infinity for a number. Tensor cores leave the lower bits out.
__device__ __forceinline__ uint32_t rounded_to_tf32(float x) {
  constexpr uint32_t kHalf = 0x1000u;
  x += 0.f;  // a NaN whose upper bits are zeros gets others
  const uint32_t bits = __float_as_uint(x);
  return fabsf(x) < __uint_as_float(0x7f800000u - kHalf) ? bits + kHalf : bits;
}

}  // namespace interop::device
