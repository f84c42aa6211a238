/// Division by a number that is known before a launch, for kernels: a multiplication and a shift. Includes nothing:
/// NVRTC compiles this text as it stands.
#pragma once

namespace interop::cuda {

/// Exact below 2^31.
struct Divisor {
  unsigned value, multiplier, shift;
};

#ifndef __CUDACC_RTC__
inline Divisor divisor_of(long long value) {
  Divisor divisor{static_cast<unsigned>(value), 0, 0};
  while ((1ull << divisor.shift) < divisor.value) ++divisor.shift;
  divisor.multiplier = static_cast<unsigned>((((1ull << divisor.shift) - divisor.value) << 32) / divisor.value + 1);
  return divisor;
}
#endif

#ifdef __CUDACC__
__device__ __forceinline__ unsigned divide_by(unsigned x, const Divisor& by) {
  return (__umulhi(x, by.multiplier) + x) >> by.shift;
}
#endif

}  // namespace interop::cuda
