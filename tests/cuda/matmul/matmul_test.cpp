/// Tests of <interop/cuda/matmul.h>: products in a capture, their workspace, the order and exactness of sums, and
/// plans. layouts_test.cpp, of the same program, has every layout; forms_test.cpp the other dtypes, and what a product
/// is put through.
///
/// Run it with NVIDIA_TF32_OVERRIDE=1, too, and under `compute-sanitizer --report-api-errors no`: what captures is
/// tested for makes errors of the driver on purpose.
#include <gtest/gtest.h>
#include <interop/cuda/driver.h>
#include <interop/cuda/matmul.h>
#include <interop/error.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/throws.h"
#include "cuda/device.h"
#include "cuda/matmul/cublas.h"
#include "cuda/matmul/strided_array.h"
#include "cuda/matmul/whole_products.h"

using namespace interop;
using namespace interop::cuda;
using namespace interop::tests;

namespace {

std::vector<Dim> compact_dims(int64_t rows, int64_t columns) { return {{rows, columns}, {columns, 1}}; }

// ---- a capture: first in this file, which is linked first, as the first product of the process is to be captured ----

struct FirstProduct : MatmulTest {
  static constexpr int64_t kSize = 192;

  void SetUp() override {
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  void TearDown() override {
    check_cuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
    MatmulTest::TearDown();
  }
  StridedArray<float> matrix(std::optional<float> value = std::nullopt) {
    return {compact_dims(kSize, kSize), random, value};
  }
  /// Nothing that CUDA does on first use may break the capture.
  void is_captured(MatmulBackend backend) {
    const StridedArray<float> a = matrix(), b = matrix();
    StridedArray<float> c = matrix(std::numeric_limits<float>::quiet_NaN());
    Gemm gemm = compact_gemm(kSize, kSize, kSize);
    gemm.a = a.data();
    gemm.b = b.data();
    gemm.c = c.data();
    const DeviceMemory workspace(32 << 20);
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    EXPECT_TRUE(is_capturing(stream));
    EXPECT_NO_THROW(launch_matmul(gemm, plan_matmul(gemm, {backend}), workspace.data(), stream));
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess) << "the capture was broken";
    cudaGraphExec_t exec;
    check_cuda(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
    check_cuda(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
    check_cuda(cudaStreamSynchronize(stream), "the graph");
    c.download();
    EXPECT_EQ(compare(gemm, a.host(), b.host(), c.host(), tolerance<float>(kSize)), "");
    check_cuda(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
    check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  cudaStream_t stream = nullptr;
};

TEST_F(FirstProduct, OfTheTiledKernelsIsCaptured) { is_captured(MatmulBackend::tiled); }

struct FirstCublasProduct : FirstProduct {
  void SetUp() override {
    FirstProduct::SetUp();
    require_cublas();  // opens it
    std::printf("cuBLASLt: %s\n", cublas_status().c_str());
  }
};

TEST_F(FirstCublasProduct, IsCaptured) { is_captured(MatmulBackend::cublas); }

// ---- the workspace, and the order of sums ----

TEST_F(MatmulTest, DividesKOnlyWithAWorkspace) {
  const int64_t size = 64, k = 8192;
  const StridedArray<float> a(compact_dims(size, k), random, 1), b(compact_dims(k, size), random, 1);
  Gemm gemm = compact_gemm(size, size, k);
  gemm.a = a.data();
  gemm.b = b.data();
  const MatmulPlan plan = plan_matmul(gemm, {MatmulBackend::tiled});
  ASSERT_GT(plan.workspace_bytes, 0u) << describe(gemm, plan);
  const DeviceMemory workspace(plan.workspace_bytes);
  for (void* const memory : {static_cast<void*>(workspace.data()), static_cast<void*>(nullptr)}) {
    StridedArray<float> c(compact_dims(size, size), random, std::numeric_limits<float>::quiet_NaN());
    gemm.c = c.data();
    launch_matmul(gemm, plan, memory, own_stream());
    synchronize(own_stream());
    c.download();
    EXPECT_EQ(c.all(), std::vector<float>(size * size, k)) << (memory ? "with" : "without") << " the workspace";
  }
}

std::vector<float> product(int64_t size, int64_t k, const MatmulOptions& options, cudaStream_t stream,
                           const StridedArray<float>& a, const StridedArray<float>& b) {
  Gemm gemm = compact_gemm(size, size, k);
  gemm.a = a.data();
  gemm.b = b.data();
  gemm.c = allocate(size * size * sizeof(float), stream);
  run(gemm, options, stream);
  std::vector<float> result(size * size);
  copy_to_host(result.data(), gemm.c, result.size() * sizeof(float), stream);
  synchronize(stream);
  release(gemm.c, 0);
  return result;
}

struct Sums : MatmulBackends {
  void repeat(int64_t size, int64_t k) {
    const StridedArray<float> a(compact_dims(size, k), random), b(compact_dims(k, size), random);
    const std::vector<float> first = product(size, k, {GetParam()}, own_stream(), a, b);
    bool same = true;
    for (int i = 0; i < 5; ++i) same &= product(size, k, {GetParam()}, kLegacyStream, a, b) == first;
    EXPECT_TRUE(same) << "k is " << k;
  }
};
INSTANTIATE_TEST_SUITE_P(, Sums, ::testing::Values(MatmulBackend::tiled, MatmulBackend::cublas), backend_name);

TEST_P(Sums, RepeatBitForBit) { repeat(640, 640); }

TEST_P(Sums, RepeatBitForBitInParts) { repeat(200, 10007); }

struct CublasSums : MatmulTest {
  void SetUp() override { require_cublas(); }
};

/// Also where NVIDIA_TF32_OVERRIDE=1 is set.
TEST_F(CublasSums, AreExactUnlessTf32IsAllowed) {
  const int64_t size = 512;
  const StridedArray<float> a(compact_dims(size, size), random), b(compact_dims(size, size), random);
  const auto exact = product(size, size, {MatmulBackend::tiled}, own_stream(), a, b);
  const auto distance = [&](const MatmulOptions& options) {
    const std::vector<float> x = product(size, size, options, own_stream(), a, b);
    double difference = 0, whole = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      difference += (double(x[i]) - exact[i]) * (double(x[i]) - exact[i]);
      whole += double(exact[i]) * exact[i];
    }
    return std::sqrt(difference / whole);
  };
  EXPECT_LT(distance({MatmulBackend::cublas}), 2e-6);
  const double tf32 = distance({MatmulBackend::cublas, MatmulPrecision::tf32});
  EXPECT_TRUE(tf32 < 1e-3 && tf32 > 2e-5) << tf32;
}

// ---- plans ----

/// A product of 8 x 8 float32 matrices, which lie where nothing is read: they are planned only.
struct Plans : ::testing::Test {
  Plans() { gemm.a = gemm.b = gemm.c = &element; }
  float element = 0;
  Gemm gemm = compact_gemm(8, 8, 8);
};

TEST_F(Plans, RefusePointersThatAreNotAligned) {
  gemm.b = reinterpret_cast<char*>(&element) + 1;
  EXPECT_TRUE(throws<ValueError>("b starts at", [&] { plan_matmul(gemm, {}); }));
}

struct CublasPlans : Plans {
  void SetUp() override {
    require_cublas();
    large = compact_gemm(4096, 4096, 4096);
    large.a = large.b = large.c = &element;
  }
  void is_refused(const char* why) {
    EXPECT_TRUE(throws<ValueError>(why, [&] { plan_matmul(gemm, {MatmulBackend::cublas}); }));
  }
  Gemm large;
};

TEST_F(CublasPlans, RefuseAWithoutAUnitStride) {
  gemm.a_strides = {16, 2};
  is_refused("a has no unit stride");
}

TEST_F(CublasPlans, RefuseABroadcastB) {
  gemm.b_strides = {0, 1};
  is_refused("b has no unit stride");
}

TEST_F(CublasPlans, RefuseANegativeOutput) {
  gemm.c_strides = {-8, 1};
  is_refused("out has no unit stride");
}

TEST_F(CublasPlans, LeaveTwoBatchDimensionsToTheTiledKernels) {
  gemm.batch_ndim = 2;
  gemm.batch[0] = {2, 0, 64, 128, 0, 0};
  gemm.batch[1] = {2, 64, 0, 64, 0, 0};
  is_refused("does not collapse");
  EXPECT_EQ(plan_matmul(gemm, {}).backend(), MatmulBackend::tiled);
}

TEST_F(CublasPlans, RefuseIntegers) {
  gemm.dtype = gemm.b_dtype = gemm.out_dtype = {kDLInt, 32, 1};
  is_refused("it has no product of these dtypes");
}

TEST_F(CublasPlans, AreChosenForALargeProductAndKept) {
  const MatmulPlan plan = plan_matmul(large, {});
  EXPECT_EQ(plan.backend(), MatmulBackend::cublas) << describe(large, plan);
  EXPECT_EQ(plan_matmul(large, {}).algorithm, plan.algorithm);
  EXPECT_LE(plan.workspace_bytes, largest_workspace(large, {}));
}

TEST_F(CublasPlans, AreMadeForTheAlignmentThatIsAskedFor) {
  Gemm moved = large;
  large.a = reinterpret_cast<void*>(uintptr_t{1} << 20);
  moved.a = reinterpret_cast<void*>((uintptr_t{1} << 20) + 16);
  MatmulOptions aligned16;
  aligned16.alignment = 16;
  EXPECT_EQ(plan_matmul(moved, aligned16).algorithm, plan_matmul(large, aligned16).algorithm);
  EXPECT_NE(plan_matmul(moved, {}).algorithm, plan_matmul(large, {}).algorithm);
}

/// The cache of plans is shared, and overflows.
TEST_F(CublasPlans, AreMadeByManyThreads) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      DeviceGuard guard(0);
      for (int i = 0; i < 800; ++i) {
        Gemm own = compact_gemm(64 + i, 65 + (t + i) % 9, 66);
        own.a = own.b = own.c = &element;
        if (plan_matmul(own, {MatmulBackend::cublas}).backend() != MatmulBackend::cublas) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
