/// A test driver without a framework: named checks, device arrays of exact size, a float64 reference.
#pragma once

#include <interop/gemm.h>

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace interop::testing {

inline int g_passed = 0, g_failed = 0;

inline bool expect(bool ok, const std::string& what) {
  ++(ok ? g_passed : g_failed);
  if (!ok && g_failed <= 50) std::printf("FAILED  %s\n", what.c_str());
  return ok;
}

/// Runs `call`; passes if it throws an Error whose text holds `part`.
template <typename Error, typename Call>
void expect_throw(const std::string& what, const char* part, Call call) {
  try {
    call();
    expect(false, what + ": nothing was thrown");
  } catch (const Error& error) {
    expect(std::strstr(error.what(), part) != nullptr, what + ": threw \"" + error.what() + "\"");
  } catch (const std::exception& error) {
    expect(false, what + ": threw another type: " + error.what());
  }
}

/// The tests' own calls of CUDA must not fail.
inline void must(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::printf("STOPPED %s: %s\n", what, cudaGetErrorName(status));
  std::exit(2);
}
#define MUST(call) ::interop::testing::must(call, #call)

struct Dim {
  int64_t size, stride;
};

/// A strided array in device memory, allocated to the last element and no further: compute-sanitizer then finds any
/// access beyond it. All that lies between the elements is NaN, so that a kernel that reads it shows.
template <typename T>
class DeviceArray {
 public:
  /// Elements are uniform in [-1, 1], or `value` where that is given.
  DeviceArray(std::vector<Dim> dims, std::mt19937& random, const T* value = nullptr) : dims_(std::move(dims)) {
    int64_t low = 0, high = 0;
    bool empty = false;
    for (const Dim& dim : dims_) {
      empty |= dim.size == 0;
      (dim.stride < 0 ? low : high) += (dim.size - 1) * dim.stride;
    }
    if (empty) return;
    first_ = -low;
    host_.assign(high - low + 1, std::numeric_limits<T>::quiet_NaN());
    std::uniform_real_distribution<double> uniform(-1, 1);
    each([&](int64_t at) { host_[at] = value ? *value : static_cast<T>(uniform(random)); });
    MUST(cudaMalloc(&memory_, host_.size() * sizeof(T)));
    upload();
  }
  ~DeviceArray() { cudaFree(memory_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  void upload() {
    MUST(cudaMemcpy(memory_, host_.data(), host_.size() * sizeof(T), cudaMemcpyHostToDevice));
    MUST(cudaDeviceSynchronize());  // the copy may return before the last of it has landed, and our streams do not wait
  }
  void download() { MUST(cudaMemcpy(host_.data(), memory_, host_.size() * sizeof(T), cudaMemcpyDeviceToHost)); }
  T* data() const { return memory_ ? static_cast<T*>(memory_) + first_ : nullptr; }
  const T* host() const { return host_.data() + first_; }
  const std::vector<T>& all() const { return host_; }

  /// Calls `visit` with the place of every element in all(). Elements at one place (stride 0) are visited again.
  template <typename Visit>
  void each(Visit visit) const {
    std::vector<int64_t> at(dims_.size(), 0);
    for (;;) {
      int64_t place = first_;
      for (std::size_t i = 0; i < dims_.size(); ++i) place += at[i] * dims_[i].stride;
      visit(place);
      int i = static_cast<int>(dims_.size()) - 1;
      while (i >= 0 && ++at[i] == dims_[i].size) at[i--] = 0;
      if (i < 0) return;
    }
  }

 private:
  std::vector<Dim> dims_;
  std::vector<T> host_;
  int64_t first_ = 0;
  void* memory_ = nullptr;
};

/// The most that c[i] may be off, over sum |a| |b|: k roundings of the sum and the products, each half a unit.
template <typename T>
double tolerance(int64_t k) {
  return std::numeric_limits<T>::epsilon() / 2 * static_cast<double>(k + 1);
}

/// Compares rows [first, last) of one matrix of c with a float64 product of the same host data.
template <typename T>
std::string compare_rows(const Gemm& gemm, const T* a, const T* b, const T* c, double allowed, int64_t first,
                         int64_t last) {
  for (int64_t i = first; i < last; ++i) {
    for (int64_t j = 0; j < gemm.n; ++j) {
      double sum = 0, size = 0;
      for (int64_t p = 0; p < gemm.k; ++p) {
        const double product = double(a[i * gemm.a_strides.row + p * gemm.a_strides.column]) *
                               double(b[p * gemm.b_strides.row + j * gemm.b_strides.column]);
        sum += product;
        size += std::fabs(product);
      }
      const double got = c[i * gemm.c_strides.row + j * gemm.c_strides.column];
      if (!(std::fabs(got - sum) <= allowed * size + 1e-300)) {
        char text[160];
        std::snprintf(text, sizeof text, "c[%lld, %lld] is %.9g, not %.9g", (long long)i, (long long)j, got, sum);
        return text;
      }
    }
  }
  return "";
}

/// Compares one matrix, on several threads where that pays.
template <typename T>
std::string compare_matrix(const Gemm& gemm, const T* a, const T* b, const T* c, double allowed) {
  const int64_t count = std::min<int64_t>({8, gemm.m, gemm.m * gemm.n * gemm.k / 200000 + 1});
  std::vector<std::string> wrong(count);
  std::vector<std::thread> threads;
  for (int64_t t = 1; t < count; ++t) {
    threads.emplace_back(
        [&, t] { wrong[t] = compare_rows(gemm, a, b, c, allowed, gemm.m * t / count, gemm.m * (t + 1) / count); });
  }
  wrong[0] = compare_rows(gemm, a, b, c, allowed, 0, gemm.m / count);
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : wrong) {
    if (!text.empty()) return text;
  }
  return "";
}

/// Compares every matrix of the batch, element by element; returns what is wrong first, or "".
template <typename T>
std::string compare(const Gemm& gemm, const T* a, const T* b, const T* c, double allowed) {
  std::vector<int64_t> at(gemm.batch_ndim, 0);
  for (;;) {
    int64_t a0 = 0, b0 = 0, c0 = 0;
    for (int d = 0; d < gemm.batch_ndim; ++d) {
      a0 += at[d] * gemm.batch[d].a_stride;
      b0 += at[d] * gemm.batch[d].b_stride;
      c0 += at[d] * gemm.batch[d].c_stride;
    }
    std::string wrong = compare_matrix(gemm, a + a0, b + b0, c + c0, allowed);
    if (!wrong.empty()) return wrong;
    int d = gemm.batch_ndim - 1;
    while (d >= 0 && ++at[d] == gemm.batch[d].size) at[d--] = 0;
    if (d < 0) return "";
  }
}

}  // namespace interop::testing
