/// What the choosing of all families of kernels shares: the device, and estimates of time. Private to src/cuda.
#pragma once

#include <interop/gemm.h>

#include <cstddef>

#include "cuda/driver/driver_api.h"
#include "cuda/driver/kernel.h"

namespace interop::cuda {

/// The current device, as far as a choice depends on it. It is asked on first use: the smallest products ask nothing.
class Device {
 public:
  int index() const {
    if (index_ < 0) index_ = current_device("launching a product");
    return index_;
  }
  int multiprocessors() const { return cuda::multiprocessors(index()); }
  std::size_t l2_bytes() const { return static_cast<std::size_t>(cuda::l2_bytes(index())); }
  bool has_sm80_code() const { return cuda::has_sm80_code(index()); }
  bool has_sm90a_code() const { return cuda::has_sm90a_code(index()); }

 private:
  mutable int index_ = -1;
};

/// The variant of a family whose busiest SM should finish first, and about how long that takes, in microseconds.
struct Estimate {
  int variant;
  double us;
};

inline double multiplications(const Gemm& gemm) {
  double count = static_cast<double>(gemm.m) * gemm.n * gemm.k;
  for (int i = 0; i < gemm.batch_ndim; ++i) count *= gemm.batch[i].size;
  return count;
}

}  // namespace interop::cuda
