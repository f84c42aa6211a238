/// What the tests of cuBLASLt need.
#pragma once

#include <gtest/gtest.h>
#include <interop/cuda/matmul.h>

namespace interop::tests {

/// Is cuBLASLt to be tested? main.cpp sets it.
inline bool g_has_cublas = true;

/// For SetUp: skips the test where cuBLASLt is not asked for, and fails it where the library is not there.
inline void require_cublas() {
  if (!g_has_cublas) GTEST_SKIP() << "--no-cublas";
  ASSERT_NE(cuda::cublas_version(), "") << cuda::cublas_status() << "; --cublas PATH opens another, --no-cublas none";
}

}  // namespace interop::tests
