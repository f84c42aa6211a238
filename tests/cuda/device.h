/// What every test of the GPU needs: device memory, what the device can do, and how a test is to leave it.
#pragma once

#include <gtest/gtest.h>
#include <interop/cuda/check.h>

#include <cuda_runtime.h>

#include "cuda/device_memory.h"

namespace interop::tests {

/// 90 for compute capability 9.0.
inline int compute_capability() {
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  return properties.major * 10 + properties.minor;
}

/// A test after which the device is idle and has no error, for which else a later test would answer.
class DeviceTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess); }
};

}  // namespace interop::tests
