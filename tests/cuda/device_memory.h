/// Device memory of exact size.
#pragma once

#include <interop/cuda/check.h>

#include <cuda_runtime.h>

#include <cstddef>

namespace interop::tests {

/// Device memory, to the last byte and no further: compute-sanitizer then finds any access beyond it.
class DeviceMemory {
 public:
  /// None, and a null pointer, for 0 bytes.
  explicit DeviceMemory(std::size_t bytes) : bytes_(bytes) {
    if (bytes > 0) check_cuda(cudaMalloc(&memory_, bytes), "cudaMalloc");
  }
  ~DeviceMemory() { cudaFree(memory_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  char* data() const { return static_cast<char*>(memory_); }
  std::size_t bytes() const { return bytes_; }

  void upload(const void* from) {
    if (bytes_ == 0) return;
    check_cuda(cudaMemcpy(memory_, from, bytes_, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
    // The copy may return before the last of it has landed, and our streams do not wait.
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  void download(void* to) const {
    if (bytes_ > 0) check_cuda(cudaMemcpy(to, memory_, bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy to the host");
  }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_;
};

}  // namespace interop::tests
