/// An array as a kernel of `interop.kernel` takes it: pointer, sizes, and any strides. Includes nothing, so that NVRTC
/// compiles it as it is. A compiler of the host takes it, too.
///
///     #include <interop/view.cuh>
///
///     __global__ void transpose(interop::View<const float, 2> x, interop::View<float, 2> y) {
///       const int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
///       if (i < x.size(0) && j < x.size(1)) y(j, i) = x(i, j);
///     }
#pragma once

#ifdef __CUDACC__
#define INTEROP_EVERYWHERE __host__ __device__
#else
#define INTEROP_EVERYWHERE
#endif

namespace interop {

/// `T` is const if the kernel only reads; `ndim` is at least 1.
template <typename T, int ndim>
struct View {
  T* data;  ///< the first element
  long long sizes[ndim];
  long long strides[ndim];  ///< in elements; 0 along a broadcast dimension, negative along a reversed one

  INTEROP_EVERYWHERE long long size(int dimension) const { return sizes[dimension]; }
  INTEROP_EVERYWHERE long long stride(int dimension) const { return strides[dimension]; }

  /// The element of these indices, which are not checked.
  template <typename... Indices>
  INTEROP_EVERYWHERE T& operator()(Indices... indices) const {
    static_assert(sizeof...(Indices) == ndim, "a view takes an index for each of its dimensions");
    const long long at[ndim] = {static_cast<long long>(indices)...};
    long long offset = 0;
#ifdef __CUDACC__
#pragma unroll
#endif
    for (int d = 0; d < ndim; ++d) offset += at[d] * strides[d];
    return data[offset];
  }
};

}  // namespace interop

#undef INTEROP_EVERYWHERE
