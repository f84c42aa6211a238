/// What the tests of whole products share: fixtures, compact products, and how one is launched.
#pragma once

#include <gtest/gtest.h>
#include <interop/cuda/driver.h>
#include <interop/cuda/matmul.h>

#include <cstdint>
#include <random>
#include <string>

#include "cuda/device.h"
#include "cuda/matmul/cublas.h"

namespace interop::tests {

using cuda::allocate;
using cuda::launch_matmul;
using cuda::MatmulBackend;
using cuda::MatmulOptions;
using cuda::MatmulPlan;
using cuda::plan_matmul;
using cuda::release;

inline const char* name_of(MatmulBackend backend) {
  return backend == MatmulBackend::tiled ? "tiled" : backend == MatmulBackend::cublas ? "cublas" : "automatic";
}

/// A product of compact matrices, which lie nowhere yet.
inline Gemm compact_gemm(int64_t m, int64_t n, int64_t k, DLDataType dtype = kFloat32) {
  Gemm gemm;
  gemm.dtype = gemm.b_dtype = gemm.out_dtype = dtype;
  gemm.m = m;
  gemm.n = n;
  gemm.k = k;
  gemm.a_strides = {k, 1};
  gemm.b_strides = gemm.c_strides = {n, 1};
  return gemm;
}

/// Plans, allocates the workspace and launches, as a caller does.
inline void run(const Gemm& gemm, const MatmulOptions& options, cudaStream_t stream) {
  const MatmulPlan plan = plan_matmul(gemm, options);
  void* workspace = plan.workspace_bytes ? allocate(plan.workspace_bytes, stream) : nullptr;
  launch_matmul(gemm, plan, workspace, stream);
  if (workspace) release(workspace, 0, stream);
}

struct MatmulTest : DeviceTest {
  std::mt19937 random{20240607};
};

/// By each of the backends.
struct MatmulBackends : MatmulTest, ::testing::WithParamInterface<MatmulBackend> {
  void SetUp() override {
    if (GetParam() == MatmulBackend::cublas) require_cublas();
  }
};

inline std::string backend_name(const ::testing::TestParamInfo<MatmulBackend>& info) { return name_of(info.param); }

}  // namespace interop::tests
