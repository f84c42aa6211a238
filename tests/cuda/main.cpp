/// The main function of the tests that need a GPU. Beside GoogleTest's own options:
///
///   --cublas PATH   the libcublasLt to open, where the loader does not find one
///   --no-cublas     skip what needs it
///
/// Ends with 77, which ctest shows as skipped, where there is no GPU, or where every test was skipped. What needs more
/// memory than most cards have free is named DISABLED_: --gtest_also_run_disabled_tests runs it.
#include <gtest/gtest.h>
#include <interop/cuda/matmul.h>

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda/matmul/cublas.h"

namespace {

constexpr int kSkipped = 77;

/// Ends the program where there is no GPU, or CUDA does not start on it. The machine is asked, not the library, so that
/// a broken library skips nothing.
void require_gpu() {
  int count = 0;
  cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver) {
    std::printf("SKIPPED: this program needs a GPU: %s\n", cudaGetErrorString(status));
    std::exit(kSkipped);
  }
  if (status == cudaSuccess) status = cudaFree(nullptr);  // makes the primary context current
  if (status == cudaSuccess) return;
  std::printf("FAILED: CUDA does not start: %s\n", cudaGetErrorString(status));
  std::exit(2);
}

/// Takes our own options out of what GoogleTest has left.
bool read_options(int count, char** arguments) {
  for (int i = 1; i < count; ++i) {
    if (!std::strcmp(arguments[i], "--cublas") && i + 1 < count) {
      interop::cuda::set_cublas_paths(&arguments[++i], 1);
    } else if (!std::strcmp(arguments[i], "--no-cublas")) {
      interop::tests::g_has_cublas = false;
    } else {
      std::printf("unknown argument %s\n", arguments[i]);
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // lines show as they come, in a file too
  ::testing::InitGoogleTest(&count, arguments);
  if (!read_options(count, arguments)) return 2;
  if (!GTEST_FLAG_GET(list_tests)) require_gpu();
  const int status = RUN_ALL_TESTS();
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  const bool is_all_skipped = all.skipped_test_count() > 0 && all.skipped_test_count() == all.test_to_run_count();
  return status == 0 && is_all_skipped ? kSkipped : status;
}
