/// Tests of the choosing of <interop/cuda/matmul.h> that need no GPU. This file stands in for the layer's driver: it
/// says what the device is, and notes what is launched.
#include <gtest/gtest.h>
#include <interop/cuda/matmul.h>
#include <interop/error.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cuda/driver/driver_api.h"
#include "cuda/driver/kernel.h"
#include "cuda/matmul/wgmma/cluster_kernels.h"

using namespace interop;
using namespace interop::cuda;

namespace {

/// The device that the layer is told of.
struct FakeDevice {
  int multiprocessors = 132, capability = 90, l2_bytes = 60 << 20;
};
FakeDevice g_device;
int g_questions = 0;  // how often the layer has asked which device is current

struct Launch {
  const void* kernel;
  unsigned blocks, threads, shared_bytes;
  friend bool operator==(const Launch& x, const Launch& y) {
    return x.kernel == y.kernel && x.blocks == y.blocks && x.threads == y.threads && x.shared_bytes == y.shared_bytes;
  }
};
std::vector<Launch> g_launches;
void (*g_look_at)(const void* arguments) = nullptr;  // is called with those of a launch in clusters

CUresult launch(CUfunction kernel, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                unsigned shared_bytes, CUstream, void**, void**) {
  g_launches.push_back({kernel, blocks, threads, shared_bytes});
  return CUDA_SUCCESS;
}
CUresult launch_ex(const CUlaunchConfig* config, CUfunction kernel, void** parameters, void**) {
  if (g_look_at) g_look_at(parameters[0]);
  g_launches.push_back({kernel, config->gridDimX, config->blockDimX, config->sharedMemBytes});
  return CUDA_SUCCESS;
}
CUresult count_clusters(int* clusters, CUfunction, const CUlaunchConfig* config) {
  *clusters = 132 * 4 / static_cast<int>(config->attrs[0].value.clusterDim.x);
  return CUDA_SUCCESS;
}
CUresult encode(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                CUtensorMapFloatOOBfill) {
  return CUDA_SUCCESS;
}

}  // namespace

namespace interop::cuda {

const DriverApi& driver() {
  static const DriverApi* const api = [] {
    auto* made = new DriverApi();
    made->cuLaunchKernel = launch;
    made->cuLaunchKernelEx = launch_ex;
    made->cuOccupancyMaxActiveClusters = count_clusters;
    made->cuTensorMapEncodeTiled = encode;
    return made;
  }();
  return *api;
}
void throw_status(CUresult status, const char* doing) { throw CudaError(doing + std::to_string(status)); }
bool is_earlier_error(CUresult) { return false; }
std::uint64_t current_context_id(const char*) { return 1; }
int current_device(const char*) {
  ++g_questions;
  return 0;
}
int multiprocessors(int) { return g_device.multiprocessors; }
int l2_bytes(int) { return g_device.l2_bytes; }
int compute_capability(int) { return g_device.capability; }
CUfunction ready(Kernel& kernel, const char*, const char*) {
  return reinterpret_cast<CUfunction>(const_cast<void*>(kernel.symbol));
}
bool has_sm80_code(int) { return g_device.capability >= 80; }
bool has_sm90a_code(int) { return g_device.capability == 90; }
bool is_built_for_sm90a() { return true; }

}  // namespace interop::cuda

namespace {

constexpr MatmulOptions kOurs{MatmulBackend::tiled};
constexpr DLDataType kFloat16{kDLFloat, 16, 1}, kBfloat16{kDLBfloat, 16, 1}, kComplex128{kDLComplex, 128, 1},
    kInt8{kDLInt, 8, 1}, kInt64{kDLInt, 64, 1};

void* address(int array) { return reinterpret_cast<void*>(uintptr_t{1} << 40 | static_cast<uintptr_t>(array) << 36); }

/// A product of compact arrays.
Gemm gemm_of(DLDataType dtype, int64_t m, int64_t n, int64_t k) {
  Gemm gemm;
  gemm.dtype = gemm.b_dtype = gemm.out_dtype = dtype;
  gemm.m = m, gemm.n = n, gemm.k = k;
  gemm.a = address(1), gemm.b = address(2), gemm.c = address(3);
  gemm.a_strides = {k, 1}, gemm.b_strides = gemm.c_strides = {n, 1};
  return gemm;
}

/// A product of some dtype, size, layout and precision.
struct Random {
  std::mt19937 engine{20261129};

  int64_t below(int64_t most) { return static_cast<int64_t>(engine() % static_cast<unsigned>(most)); }
  template <typename T, std::size_t N>
  T one_of(const T (&list)[N]) {
    return list[below(N)];
  }
  int64_t size() {
    static constexpr int64_t kSizes[] = {1, 2, 7, 16, 17, 64, 130, 512, 1000, 2048, 4096, 10007};
    return one_of(kSizes);
  }
  Gemm gemm() {
    static constexpr DLDataType kDtypes[] = {kFloat16, kBfloat16, kFloat32, kFloat64, kComplex128, kInt8, kInt64};
    Gemm gemm = gemm_of(one_of(kDtypes), size(), size(), size());
    if (below(2)) gemm.a_strides = {1, gemm.m};
    if (below(2)) gemm.b_strides = {1, gemm.k};
    if (below(4) == 0) gemm.c_strides = {1, gemm.m};
    if (below(4) == 0) {
      gemm.batch_ndim = 1;
      gemm.batch[0] = {3, gemm.m * gemm.k, gemm.k * gemm.n, gemm.m * gemm.n, 0, 0};
    }
    return gemm;
  }
  MatmulOptions options() {
    static constexpr MatmulPrecision kPrecisions[] = {MatmulPrecision::exact, MatmulPrecision::tf32,
                                                      MatmulPrecision::tf32x3};
    MatmulOptions options = kOurs;
    options.precision = one_of(kPrecisions);
    return options;
  }
};

std::vector<Launch> launches_of(const Gemm& gemm, const MatmulPlan& plan, void* workspace) {
  g_launches.clear();
  launch_matmul(gemm, plan, workspace, nullptr);
  return g_launches;
}
std::vector<Launch> launches_of(const Gemm& gemm, const MatmulPlan& plan) {
  return launches_of(gemm, plan, plan.workspace_bytes ? address(4) : nullptr);
}

struct Plan : ::testing::TestWithParam<int> {
  void SetUp() override { g_device = {GetParam() == 90 ? 132 : 108, GetParam()}; }
  void TearDown() override { g_device = {}; }
};
INSTANTIATE_TEST_SUITE_P(OfCapability, Plan, ::testing::Values(75, 80, 90),
                         [](const auto& info) { return std::to_string(info.param); });

constexpr int kProducts = 2000;

// On another device, a launch that chose again would take other kernels and grids.
TEST_P(Plan, SaysAllThatALaunchDoes) {
  Random random;
  for (int i = 0; i < kProducts; ++i) {
    const Gemm gemm = random.gemm();
    const MatmulPlan plan = plan_matmul(gemm, random.options());
    const std::string text = describe(gemm, plan);
    const std::vector<Launch> launches = launches_of(gemm, plan);
    EXPECT_FALSE(launches.empty()) << text;
    const FakeDevice device = g_device;
    g_device = {7, 75, 1 << 20};
    g_questions = 0;
    EXPECT_EQ(launches_of(gemm, plan), launches) << text;
    EXPECT_EQ(describe(gemm, plan), text);
    EXPECT_EQ(g_questions, 0) << text;
    g_device = device;
  }
}

TEST_P(Plan, IsTheSameTwice) {
  Random random;
  for (int i = 0; i < kProducts; ++i) {
    const Gemm gemm = random.gemm();
    const MatmulOptions options = random.options();
    const MatmulPlan plan = plan_matmul(gemm, options), again = plan_matmul(gemm, options);
    EXPECT_EQ(describe(gemm, plan), describe(gemm, again));
    EXPECT_EQ(plan.workspace_bytes, again.workspace_bytes);
    EXPECT_EQ(launches_of(gemm, plan), launches_of(gemm, again)) << describe(gemm, plan);
  }
}

TEST_P(Plan, AsksForTheDeviceOnce) {
  Random random;
  for (int i = 0; i < kProducts; ++i) {
    const Gemm gemm = random.gemm();
    const MatmulOptions options = random.options();
    g_questions = 0;
    const MatmulPlan plan = plan_matmul(gemm, options);
    EXPECT_LE(g_questions, 1) << describe(gemm, plan);
  }
}

TEST_P(Plan, NeedsNoMoreThanTheLargestWorkspace) {
  Random random;
  for (int i = 0; i < kProducts; ++i) {
    const Gemm gemm = random.gemm();
    const MatmulOptions options = random.options();
    const MatmulPlan plan = plan_matmul(gemm, options);
    EXPECT_LE(plan.workspace_bytes, largest_workspace(gemm, options)) << describe(gemm, plan);
  }
}

TEST_P(Plan, SplitsNothingWithoutAWorkspace) {
  for (const int64_t m : {4, 64}) {
    const Gemm gemm = gemm_of(kFloat32, m, 64, 1 << 16);
    const MatmulPlan plan = plan_matmul(gemm, kOurs);
    ASSERT_GT(plan.parts, 1) << describe(gemm, plan);
    EXPECT_GT(launches_of(gemm, plan).size(), 1u);
    EXPECT_EQ(launches_of(gemm, plan, nullptr).size(), 1u);
  }
}

// Its loader would wait for a stage that is free once the next one is multiplied: for ever.
TEST(PlanOfClusters, HasTwoStagesWhereABlockHasMoreOfK) {
  static int least = 0, most = 0, shared = 0;
  int seen = 0, short_ones = 0;
  g_look_at = [](const void* arguments) {
    const auto& args = *static_cast<const wgmma::ClusterArgs*>(arguments);
    least = args.part_k < 2 ? args.part_k : 2;
    most = args.part_k;
    shared = args.stages;
  };
  for (const int multiprocessors : {16, 78, 114, 132}) {
    g_device = {multiprocessors, 90};
    for (int64_t m : {1, 16, 17, 32, 64, 128, 256, 384, 512}) {
      for (int64_t n : {64, 576, 1024, 1536, 2560, 3072, 3712, 4096, 8192}) {
        for (int64_t k : {64, 512, 2048, 4096, 8192}) {
          Gemm gemm = gemm_of(kBfloat16, m, n, k);
          const MatmulPlan plan = plan_matmul(gemm, kOurs);
          if (plan.family != MatmulFamily::wgmma_clusters) continue;
          const std::vector<Launch> launches = launches_of(gemm, plan);
          EXPECT_GE(shared, least) << describe(gemm, plan) << " " << m << " " << n << " " << k;
          EXPECT_LE(shared, most) << describe(gemm, plan);
          EXPECT_LE(launches[0].shared_bytes, 227u << 10) << describe(gemm, plan);
          ++seen;
          short_ones += shared == 2 && most > 2;
        }
      }
    }
  }
  g_look_at = nullptr;
  g_device = {};
  EXPECT_GT(seen, 100);
  EXPECT_GT(short_ones, 0) << "no product has as few stages as can be";
}

// Such a batch is not packed, but read as it lies.
TEST(PlanOfIntegers, TakesFiveBatchDimensions) {
  Gemm gemm = gemm_of(kInt8, 256, 256, 256);
  gemm.b_strides = {1, 256};
  gemm.batch_ndim = 5;
  for (int i = 0; i < 5; ++i) {
    const int64_t step = int64_t{1 << 20} << (3 * (4 - i));
    gemm.batch[i] = {2, step, step, step, 0, 0};
  }
  const MatmulPlan plan = plan_matmul(gemm, kOurs);
  EXPECT_EQ(plan.family, MatmulFamily::wgmma_integers) << describe(gemm, plan);
  EXPECT_EQ(plan.workspace_bytes, 0u) << describe(gemm, plan);
  EXPECT_EQ(launches_of(gemm, plan).size(), 4u) << "for the two dimensions that a tensor map does not take";
}

}  // namespace
