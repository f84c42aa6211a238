// Evenly spaced numbers.
#include <interop/cuda/elementwise.h>

#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/driver/driver_api.h"
#include "cuda/driver/kernel.h"
#include "cuda/elementwise/args.h"
#include "cuda/elementwise/functors.cuh"

namespace interop::cuda {
namespace {

using namespace interop::device;
using elementwise::kThreads;

constexpr int64_t kMostBlocks = 65535;

/// first + i * (second - first), each operation rounded by itself: this file is compiled without fused operations.
template <typename T>
INTEROP_DEVICE T spaced(T first, T second, int64_t i) {
  if constexpr (Facts<T>::is_complex) {
    return {spaced(first.re, second.re, i), spaced(first.im, second.im, i)};
  } else if constexpr (Facts<T>::is_integer) {
    const auto start = static_cast<unsigned long long>(first);
    return static_cast<T>(start +
                          static_cast<unsigned long long>(i) * (static_cast<unsigned long long>(second) - start));
  } else {
    using A = Arithmetic<T>;
    using Number = typename A::Type;
    const Number start = A::load(first), step = A::load(second) - start;
    return A::store(start + static_cast<Number>(i) * step);
  }
}

// arange_kernel: evenly spaced numbers, of which the first two are given, as NumPy computes them from these.
//   out     out (count) T, compact
//   launch  grid min(ceil(count / 256), 65535), block 256, grid-stride
//   traffic writes count * sizeof(T) bytes once, coalesced
//   maths   in T, of 16-bit floats in float; integers wrap, unsigned, which is the same to signed ones
template <typename T>
__global__ __launch_bounds__(kThreads) void arange_kernel(T* out, int64_t count, T first, T second) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += stride) {
    out[i] = i == 0 ? first : i == 1 ? second : spaced(first, second, i);  // floats: the formula may not give `second`
  }
}

template <typename T>
void launch(void* out, int64_t count, const ScalarValue& first, const ScalarValue& second, cudaStream_t stream) {
  static Kernel kernel(reinterpret_cast<const void*>(&arange_kernel<T>));
  const CUfunction function = ready(kernel, "making evenly spaced numbers", "loading the kernel of arange");
  const auto blocks = static_cast<unsigned>(std::min(ceil_div(count, kThreads), kMostBlocks));
  // Of each parameter, the driver reads as many bytes as the kernel declares.
  void* parameters[] = {&out, &count, const_cast<ScalarValue*>(&first), const_cast<ScalarValue*>(&second)};
  check(driver().cuLaunchKernel(function, blocks, 1, 1, kThreads, 1, 1, 0, stream, parameters, nullptr),
        "making evenly spaced numbers");
}

}  // namespace

void launch_arange(void* out, int64_t count, DLDataType dtype, const ScalarValue& first, const ScalarValue& second,
                   cudaStream_t stream) {
  if (count == 0) return;
  const auto run = [&](auto of) { launch<decltype(of)>(out, count, first, second, stream); };
  if (dtype.code == kDLComplex) return dtype.bits == 64 ? run(Complex<float>{}) : run(Complex<double>{});
  if (dtype.code == kDLBfloat) return run(BFloat16{});
  if (dtype.code == kDLFloat) return dtype.bits == 16 ? run(Half{}) : dtype.bits == 32 ? run(float{}) : run(double{});
  switch (dtype.bits) {
    case 8:
      return run(static_cast<unsigned char>(0));
    case 16:
      return run(static_cast<unsigned short>(0));
    case 32:
      return run(0u);
    default:
      return run(0ull);
  }
}

}  // namespace interop::cuda
