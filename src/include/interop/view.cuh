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

/// An index that is out of bounds, the first of a call: where checked views note it. Made by `interop.kernel`.
struct IndexFault {
  int is_noted;
  int argument;   ///< the place of the view among the kernel's parameters
  int dimension;  ///< of the index that is out of bounds
  unsigned block[3], thread[3];
  long long size;                      ///< of that dimension
  long long indexes[64];               ///< as many as the view has dimensions
  alignas(16) unsigned char sink[16];  ///< the element that such accesses read and write
};

/// `T` is const if the kernel only reads; `ndim` is at least 1.
template <typename T, int ndim>
struct View {
  T* data;  ///< the first element
  long long sizes[ndim];
  long long strides[ndim];  ///< in elements; 0 along a broadcast dimension, negative along a reversed one
#ifdef INTEROP_CHECKED
  IndexFault* fault = nullptr;  ///< null in a view that the kernel has made itself, whose indexes are not checked
  int argument = 0;
#endif

  INTEROP_EVERYWHERE long long size(int dimension) const { return sizes[dimension]; }
  INTEROP_EVERYWHERE long long stride(int dimension) const { return strides[dimension]; }

  /// The element of these indices. They are checked where INTEROP_CHECKED is defined, as `interop.kernel` does if the
  /// environment has INTEROP_CHECKED=1: one that is out of bounds is noted, and the element is the sink.
  template <typename... Indices>
  INTEROP_EVERYWHERE T& operator()(Indices... indices) const {
    static_assert(sizeof...(Indices) == ndim, "a view takes an index for each of its dimensions");
    const long long at[ndim] = {static_cast<long long>(indices)...};
#ifdef INTEROP_CHECKED
    for (int d = 0; d < ndim; ++d) {
      if (fault && (at[d] < 0 || at[d] >= sizes[d])) return out_of_bounds(at, d);
    }
#endif
    long long offset = 0;
#ifdef __CUDACC__
#pragma unroll
#endif
    for (int d = 0; d < ndim; ++d) offset += at[d] * strides[d];
    return data[offset];
  }

#ifdef INTEROP_CHECKED
 private:
  /// Notes the first one, and no more: a trap would end the context.
  INTEROP_EVERYWHERE T& out_of_bounds(const long long (&at)[ndim], int dimension) const {
#ifdef __CUDA_ARCH__
    const bool is_first = atomicCAS(&fault->is_noted, 0, 1) == 0;
#else
    const bool is_first = fault->is_noted == 0;
    fault->is_noted = 1;
#endif
    if (is_first) {
      fault->argument = argument;
      fault->dimension = dimension;
      fault->size = sizes[dimension];
      for (int d = 0; d < ndim; ++d) fault->indexes[d] = at[d];
#ifdef __CUDA_ARCH__
      fault->block[0] = blockIdx.x;
      fault->block[1] = blockIdx.y;
      fault->block[2] = blockIdx.z;
      fault->thread[0] = threadIdx.x;
      fault->thread[1] = threadIdx.y;
      fault->thread[2] = threadIdx.z;
#endif
    }
    return *reinterpret_cast<T*>(fault->sink);
  }
#endif
};

}  // namespace interop

#undef INTEROP_EVERYWHERE
