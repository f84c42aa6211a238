/// Strided float arrays in device memory, and a float64 reference on the host.
#pragma once

#include <interop/gemm.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/device.h"

namespace interop::tests {

struct Dim {
  int64_t size, stride;
};

/// Calls `visit` with the place of every element of an array that has some and starts at `first`. Elements at one place
/// (stride 0) are visited again.
template <typename Visit>
void each_place(const std::vector<Dim>& dims, int64_t first, Visit visit) {
  std::vector<int64_t> at(dims.size(), 0);
  for (;;) {
    int64_t place = first;
    for (std::size_t i = 0; i < dims.size(); ++i) place += at[i] * dims[i].stride;
    visit(place);
    int i = static_cast<int>(dims.size()) - 1;
    while (i >= 0 && ++at[i] == dims[i].size) at[i--] = 0;
    if (i < 0) return;
  }
}

/// An array in device memory of exactly its size. All that lies between the elements is NaN, so that a kernel that
/// reads it shows.
template <typename T>
class StridedArray {
 public:
  /// Elements are uniform in [-1, 1], or `value` where that is given.
  StridedArray(const std::vector<Dim>& dims, std::mt19937& random, std::optional<T> value = std::nullopt) {
    int64_t low = 0, high = 0;
    bool is_empty = false;
    for (const Dim& dim : dims) {
      is_empty |= dim.size == 0;
      (dim.stride < 0 ? low : high) += (dim.size - 1) * dim.stride;
    }
    if (is_empty) return;
    first_ = -low;
    host_.assign(high - low + 1, std::numeric_limits<T>::quiet_NaN());
    std::uniform_real_distribution<double> uniform(-1, 1);
    each_place(dims, first_, [&](int64_t at) { host_[at] = value ? *value : static_cast<T>(uniform(random)); });
    memory_.emplace(host_.size() * sizeof(T));
    memory_->upload(host_.data());
  }

  void download() { memory_->download(host_.data()); }
  /// The first element; null if there is none.
  T* data() const { return memory_ ? reinterpret_cast<T*>(memory_->data()) + first_ : nullptr; }
  const T* host() const { return host_.data() + first_; }
  const std::vector<T>& all() const { return host_; }

 private:
  std::vector<T> host_;
  int64_t first_ = 0;
  std::optional<DeviceMemory> memory_;
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

}  // namespace interop::tests
