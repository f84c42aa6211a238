/// A product in device memory for the tests of single kernels: its arrays, guarded, and a float64 reference.
#pragma once

#include <interop/gemm.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda/device.h"
#include "cuda/stream.cuh"

namespace interop::tests {

// ---- memory ----

inline constexpr int64_t kGuard = 1024;  // elements on either side of an array

/// NaN in every dtype.
inline void poison(void* memory, std::size_t bytes) {
  check_cuda(cudaMemsetAsync(memory, 0xff, bytes, stream()), "cudaMemsetAsync");
}

/// One piece of device memory, handed out anew for every case.
class Arena {
 public:
  void reset() { used_ = 0; }
  /// Poisoned.
  char* take(std::size_t bytes) {
    char* const taken = memory_.data() + used_;
    used_ += (bytes + 255) / 256 * 256;
    if (used_ > memory_.bytes()) throw std::runtime_error("the arena is too small");
    poison(taken, bytes);
    return taken;
  }

 private:
  DeviceMemory memory_{std::size_t{512} << 20};
  std::size_t used_ = 0;
};

// ---- what a case says ----

/// Of a batch, a dimension in which an operand may be the same.
struct Batch {
  int64_t size;
  bool a_varies, b_varies;
};
using Batches = std::vector<Batch>;

inline std::string text(const Batches& batch) {
  std::ostringstream s;
  for (const Batch& dim : batch) s << " batch " << dim.size << (dim.a_varies ? "a" : "") << (dim.b_varies ? "b" : "");
  return s.str();
}

/// An array between its guards.
struct Placed {
  Strided x{};
  int64_t elements = 0;  // from the first to the last; 0: there is no such array
  int64_t offset = 0;    // of the first, from the guard
};

/// A bias along a row ('r') or a column ('c').
inline Placed place_bias(char bias, int64_t m, int64_t n) {
  Placed p;
  if (bias == 'r') p.x = {1, n, 0, 1, 0, {}, {}}, p.elements = n;
  if (bias == 'c') p.x = {m, 1, 1, 0, 0, {}, {}}, p.elements = m;
  return p;
}

/// All that a product is made of.
struct Setup {
  DLDataType dtype{}, out_dtype{};
  int64_t m = 0, n = 0, k = 0;
  Batches batch;
  Placed a, b, c, addend, bias, aux;
  Values values = Values::integers;
  bool scales = false;  // alpha and beta are 2 and -3
  bool factor = false;  // and another factor, in device memory, is 0.5
  Activation activation = Activation::none;
};

// ---- the reference ----

template <typename T>
__device__ double wide(T x) {
  if constexpr (std::is_same_v<T, double>) {
    return x;
  } else {
    return static_cast<float>(x);
  }
}

/// What is done to the sums, for the reference; nulls for what there is not.
template <typename C>
struct Finish {
  double factor = 1, beta = 1;
  const C *addend = nullptr, *bias = nullptr;
  C* aux = nullptr;
  Strided addend_x{}, bias_x{}, aux_x{};
  Activation activation = Activation::none;
};

inline __device__ double activated(double x, Activation activation) {
  switch (activation) {
    case Activation::relu:
      return fmax(x, 0.);
    case Activation::gelu:
      return x / 2 * (1 + erf(x / sqrt(2.)));
    case Activation::gelu_tanh:
      return x / 2 * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    default:
      return x;
  }
}

/// One thread an output, in float64.
template <typename T, typename C>
__global__ void reference_kernel(const T* a, const T* b, C* c, Strided xa, Strided xb, Strided xc, int64_t matrices,
                                 int64_t k, Finish<C> how) {
  const int64_t count = matrices * xc.rows * xc.columns;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t matrix = i / (xc.rows * xc.columns), at = i % (xc.rows * xc.columns);
    const int64_t row = at / xc.columns, column = at % xc.columns;
    const T* const pa = a + batch_offset(xa, matrix) + row * xa.row_stride;
    const T* const pb = b + batch_offset(xb, matrix) + column * xb.column_stride;
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) {
      sum += wide(pa[j * xa.column_stride]) * wide(pb[j * xb.row_stride]);
    }
    const auto offset = [&](const Strided& x) {
      return batch_offset(x, matrix) + row * x.row_stride + column * x.column_stride;
    };
    sum *= how.factor;
    if (how.addend) sum += how.beta * wide(how.addend[offset(how.addend_x)]);
    if (how.bias) sum += wide(how.bias[offset(how.bias_x)]);
    if (how.aux) how.aux[offset(how.aux_x)] = to<C>(sum);
    c[offset(xc)] = to<C>(activated(sum, how.activation));
  }
}

struct Differences {
  unsigned long long count, first;
};

/// Bits must agree, or else values to within `relative` of what is wanted and `absolute`.
template <typename C>
__global__ void compare_kernel(const C* got, const C* want, int64_t count, double relative, double absolute,
                               Differences* differences) {
  using Bits = std::conditional_t<sizeof(C) == 8, uint64_t, std::conditional_t<sizeof(C) == 4, uint32_t, uint16_t>>;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    if (reinterpret_cast<const Bits*>(got)[i] == reinterpret_cast<const Bits*>(want)[i]) continue;
    const double g = wide(got[i]), w = wide(want[i]);
    if (fabs(g - w) <= relative * fabs(w) + absolute) continue;  // zeros of either sign, too
    atomicAdd(&differences->count, 1);
    atomicMin(&differences->first, static_cast<unsigned long long>(i));
  }
}

/// What differs between two arrays of so many elements, in rows `pitch` apart, and their guards, as compare_kernel has
/// it; "" if nothing. Waits, for `name`.
template <typename C>
std::string difference(const std::string& name, const C* got, const C* want, int64_t elements, int64_t pitch,
                       double relative, double absolute, Differences* differences) {
  got -= kGuard, want -= kGuard;
  check_cuda(cudaMemsetAsync(&differences->count, 0, sizeof differences->count, stream()), "cudaMemsetAsync");
  check_cuda(cudaMemsetAsync(&differences->first, 0xff, sizeof differences->first, stream()), "cudaMemsetAsync");
  compare_kernel<<<1024, 256, 0, stream()>>>(got, want, elements + 2 * kGuard, relative, absolute, differences);
  check_cuda(cudaGetLastError(), "launch of compare_kernel");
  finish(name);
  Differences found;
  check_cuda(cudaMemcpy(&found, differences, sizeof found, cudaMemcpyDeviceToHost), "cudaMemcpy");
  if (found.count == 0) return "";
  C got_value, wanted_value;
  check_cuda(cudaMemcpy(&got_value, got + found.first, sizeof(C), cudaMemcpyDeviceToHost), "cudaMemcpy");
  check_cuda(cudaMemcpy(&wanted_value, want + found.first, sizeof(C), cudaMemcpyDeviceToHost), "cudaMemcpy");
  const int64_t at = static_cast<int64_t>(found.first) - kGuard;
  std::ostringstream s;
  s << found.count << " elements differ, first at " << at << " (" << at / pitch << ", " << at % pitch << ") of "
    << elements << ": " << static_cast<double>(got_value) << ", not " << static_cast<double>(wanted_value);
  return s.str();
}

// ---- the product ----

/// How far a result may be off: this part of it, and so much. Nothing: bit for bit.
struct Allowed {
  double relative = 0, absolute = 0;
};

/// Operands of T and results of C, with what they are to become. The arena has been reset.
template <typename T, typename C>
class Product {
 public:
  Product(const Setup& setup, Arena& arena, const std::string& name)
      : arena_(arena), setup_(setup), got_(setup.c, arena), want_(setup.c, arena) {
    const T *const a = filled<T>(setup.a, 1), *const b = filled<T>(setup.b, 2);
    differences_ = reinterpret_cast<Differences*>(arena.take(sizeof(Differences)));
    set_gemm(a, b);
    const Finish<C> how = set_terms();
    reference_kernel<T, C>
        <<<2048, 64, 0, stream()>>>(a, b, want_.first(), setup.a.x, setup.b.x, setup.c.x, matrices(), setup.k, how);
    check_cuda(cudaGetLastError(), "launch of reference_kernel");
    finish("the reference of " + name);
  }

  Gemm gemm;  // to be computed, and to be changed before

  int64_t matrices() const {
    int64_t count = 1;
    for (const Batch& dim : setup_.batch) count *= dim.size;
    return count;
  }
  bool has_aux() const { return setup_.aux.elements > 0; }

  void poison_results() {
    got_.poison_all();
    if (has_aux()) got_aux_.poison_all();
  }
  /// What is wrong with c and its guards; "" if nothing.
  std::string wrong(const std::string& name, const Allowed& allowed) const {
    return difference_of(name, got_, want_, allowed);
  }
  std::string wrong_aux(const std::string& name, const Allowed& allowed) const {
    return difference_of(name, got_aux_, want_aux_, allowed);
  }
  /// Wants the same c again, from now on.
  void keep() {
    check_cuda(
        cudaMemcpyAsync(want_.guarded(), got_.guarded(), got_.guarded_bytes(), cudaMemcpyDeviceToDevice, stream()),
        "cudaMemcpyAsync");
  }

 private:
  /// Guarded and poisoned.
  struct Result {
    Result() = default;
    Result(const Placed& placed, Arena& arena)
        : placed(placed), base(reinterpret_cast<C*>(arena.take(guarded_bytes())) + kGuard) {}
    C* first() const { return base + placed.offset; }
    C* guarded() const { return base - kGuard; }
    int64_t elements() const { return placed.elements + placed.offset; }
    std::size_t guarded_bytes() const { return (elements() + 2 * kGuard) * sizeof(C); }
    void poison_all() { poison(guarded(), guarded_bytes()); }

    Placed placed;
    C* base = nullptr;
  };

  template <typename E>
  E* filled(const Placed& placed, uint32_t seed) {
    E* const data =
        reinterpret_cast<E*>(arena_.take((placed.elements + placed.offset + 2 * kGuard) * sizeof(E))) + kGuard;
    fill(data + placed.offset, placed.x, seed, setup_.values);
    return data + placed.offset;
  }

  std::string difference_of(const std::string& name, const Result& got, const Result& want,
                            const Allowed& allowed) const {
    const int64_t pitch = std::max(got.placed.x.row_stride, got.placed.x.column_stride);
    return difference(name, got.base, want.base, got.elements(), pitch, allowed.relative, allowed.absolute,
                      differences_);
  }

  void set_gemm(const T* a, const T* b) {
    gemm.dtype = gemm.b_dtype = setup_.dtype;
    gemm.out_dtype = setup_.out_dtype;
    gemm.m = setup_.m;
    gemm.n = setup_.n;
    gemm.k = setup_.k;
    gemm.a = a;
    gemm.b = b;
    gemm.c = got_.first();
    gemm.a_strides = strides_of(setup_.a);
    gemm.b_strides = strides_of(setup_.b);
    gemm.c_strides = strides_of(setup_.c);
    for (const Batch& dim : setup_.batch) {
      const int i = gemm.batch_ndim++;
      gemm.batch[i] = {dim.size,
                       setup_.a.x.strides[i],
                       setup_.b.x.strides[i],
                       setup_.c.x.strides[i],
                       setup_.addend.x.strides[i],
                       setup_.aux.x.strides[i]};
    }
  }

  /// Of the product, and of its reference.
  Finish<C> set_terms() {
    Finish<C> how;
    gemm.activation = how.activation = setup_.activation;
    if (setup_.scales) {
      how.factor = 2, how.beta = -3;
      set_scales<std::conditional_t<std::is_same_v<C, double>, double, float>>(2, -3);
    }
    if (setup_.factor) {
      how.factor *= 0.5;
      const float half = 0.5f;
      float* const factor = reinterpret_cast<float*>(arena_.take(sizeof half));
      check_cuda(cudaMemcpyAsync(factor, &half, sizeof half, cudaMemcpyHostToDevice, stream()), "cudaMemcpyAsync");
      gemm.factor_b = factor;
    }
    if (setup_.addend.elements) {
      gemm.addend = how.addend = filled<C>(setup_.addend, 3);
      how.addend_x = setup_.addend.x;
      gemm.addend_strides = strides_of(setup_.addend);
    }
    if (setup_.bias.elements) {
      gemm.bias = how.bias = filled<C>(setup_.bias, 4);
      how.bias_x = setup_.bias.x;
      gemm.bias_strides = strides_of(setup_.bias);
    }
    if (has_aux()) {
      got_aux_ = Result(setup_.aux, arena_), want_aux_ = Result(setup_.aux, arena_);
      gemm.aux = got_aux_.first();
      how.aux = want_aux_.first();
      how.aux_x = setup_.aux.x;
      gemm.aux_strides = strides_of(setup_.aux);
    }
    return how;
  }
  template <typename S>
  void set_scales(S alpha, S beta) {
    gemm.scales = true;
    std::memcpy(gemm.alpha.bytes, &alpha, sizeof alpha);
    std::memcpy(gemm.beta.bytes, &beta, sizeof beta);
  }
  static MatrixStrides strides_of(const Placed& placed) { return {placed.x.row_stride, placed.x.column_stride}; }

  Arena& arena_;
  const Setup setup_;
  Result got_, want_, got_aux_, want_aux_;
  Differences* differences_ = nullptr;
};

}  // namespace interop::tests
