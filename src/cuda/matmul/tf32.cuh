/// Device code: float32 rounded to TF32 on its way to tensor cores.
#pragma once

#include <cstdint>

namespace interop::device {

/// Rounds to the nearest TF32 number, as packing does; a finite x never becomes infinity. The result's lower bits are
/// not cleared, as tensor cores ignore them.
__device__ __forceinline__ uint32_t rounded_to_tf32(float x) {
  constexpr uint32_t kHalf = 0x1000u;
  x += 0.f;  // a NaN with no upper mantissa bit set, which would be read as infinity, gets one
  const uint32_t bits = __float_as_uint(x);
  return fabsf(x) < __uint_as_float(0x7f800000u - kHalf) ? bits + kHalf : bits;
}

}  // namespace interop::device
