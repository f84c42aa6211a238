/// Tests of <interop/cuda/driver.h>.
#include <gtest/gtest.h>
#include <interop/cuda/driver.h>
#include <interop/cuda/matmul.h>
#include <interop/error.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/throws.h"
#include "cuda/device.h"

using namespace interop;
using namespace interop::cuda;
using interop::tests::DeviceMemory;
using interop::tests::DeviceTest;
using interop::tests::throws;

namespace {

// ---- devices and pointers ----

TEST(Driver, SupportsWhatThisWasBuiltFor) { EXPECT_GE(driver_version(), built_for() / 1000 * 1000); }

TEST(Driver, CountsDevices) { EXPECT_GE(device_count(), 1); }

TEST(Driver, DescribesADevice) {
  const DeviceInfo info = device_info(0);
  EXPECT_GT(info.multiprocessors, 0);
  EXPECT_GT(info.memory_bytes, 0u);
}

TEST(PointerDevice, IsNoneOfAHostPointer) {
  const int on_host = 0;
  EXPECT_FALSE(pointer_device(&on_host));
}

TEST(DeviceGuardTest, RefusesADeviceThatIsNotThere) {
  EXPECT_TRUE(throws<CudaError>("CUDA_ERROR_INVALID_DEVICE", [] { DeviceGuard guard(99); }));
}

TEST(DeviceGuardTest, BringsAThreadAContextAndTakesItAway) {
  std::thread([] {
    {
      DeviceGuard guard(0);
      void* const memory = allocate(1000, own_stream());
      EXPECT_EQ(pointer_device(memory), 0);
      std::thread([memory] { release(memory, 0); }).join();
    }
    EXPECT_TRUE(throws<CudaError>("CUDA_ERROR_INVALID_CONTEXT", [] { own_stream(); }));
  }).join();
}

TEST(Release, NeverThrows) {
  int on_host = 0;
  EXPECT_NO_THROW(release(nullptr, 0));
  EXPECT_NO_THROW(release(&on_host, 0));
}

// ---- streams and events ----

/// Two streams of our own kind, and one that the legacy stream waits for.
struct Streams : DeviceTest {
  void SetUp() override {
    check_cuda(cudaStreamCreateWithFlags(&x, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    check_cuda(cudaStreamCreateWithFlags(&y, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    check_cuda(cudaStreamCreate(&blocking), "cudaStreamCreate");
  }
  void TearDown() override {
    for (const cudaStream_t stream : {x, y, blocking}) EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    DeviceTest::TearDown();
  }
  /// Ends a capture, which must be whole.
  static void end(cudaStream_t captured) {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(captured, &graph), cudaSuccess) << "the capture was broken";
    if (graph) check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    (void)cudaGetLastError();
  }
  cudaStream_t x = nullptr, y = nullptr, blocking = nullptr;
};

/// A product of ones that keeps a stream busy for a while: each element of the result is `kSize`.
struct BusyStream : Streams {
  static constexpr int64_t kSize = 2048;
  static constexpr std::size_t kCount = kSize * kSize;

  void SetUp() override {
    Streams::SetUp();
    ones.upload(std::vector<float>(kCount, 1).data());
    result = allocate(kCount * sizeof(float), x);
    check_cuda(cudaMemsetAsync(result, 0xFF, kCount * sizeof(float), x), "cudaMemsetAsync");
    Gemm gemm;
    gemm.dtype = gemm.b_dtype = gemm.out_dtype = kFloat32;
    gemm.m = gemm.n = gemm.k = kSize;
    gemm.a_strides = gemm.b_strides = gemm.c_strides = {kSize, 1};
    gemm.a = gemm.b = ones.data();
    gemm.c = result;
    const MatmulPlan plan = plan_matmul(gemm, {MatmulBackend::tiled});
    void* const workspace = plan.workspace_bytes ? allocate(plan.workspace_bytes, x) : nullptr;
    for (int i = 0; i < 5; ++i) launch_matmul(gemm, plan, workspace, x);
    if (workspace) release(workspace, 0, x);
  }
  DeviceMemory ones{kCount * sizeof(float)};
  void* result = nullptr;
};

TEST_F(BusyStream, IsWaitedForByAnother) {
  Event event(x);
  EXPECT_FALSE(event.done());
  wait_stream(y, x);
  std::vector<float> copied(kCount);
  copy_to_host(copied.data(), result, kCount * sizeof(float), y);
  release(result, 0);  // while x and y are still busy
  synchronize(y);
  EXPECT_TRUE(copied.front() == kSize && copied.back() == kSize);
  EXPECT_TRUE(event.done());
}

TEST_F(Streams, EventsMoveAndAreWaitedFor) {
  Event event(x);
  event.make_wait(y);
  event.synchronize();
  const Event moved = std::move(event);
  EXPECT_TRUE(!event && moved);
}

TEST_F(Streams, WaitForThemselvesAndForTheDefaultStreams) {
  EXPECT_NO_THROW(wait_stream(x, x));
  EXPECT_NO_THROW(wait_stream(x, kLegacyStream));
  EXPECT_NO_THROW(wait_stream(kPerThreadStream, kLegacyStream));
}

TEST_F(Streams, OfOurOwnAreKept) { EXPECT_EQ(own_stream(), own_stream()); }

// ---- captures ----

TEST_F(Streams, ThatAreCapturedWaitForNoOther) {
  check_cuda(cudaStreamBeginCapture(x, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  EXPECT_TRUE(throws<ValueError>("same CUDA graph capture", [&] { wait_stream(x, y); }));
  EXPECT_TRUE(throws<ValueError>("same CUDA graph capture", [&] { wait_stream(y, x); }));
  EXPECT_FALSE(is_capturing(y));
  end(x);
}

TEST_F(Streams, AreUsedBesideACapture) {
  const Event event(x);
  event.synchronize();
  check_cuda(cudaStreamBeginCapture(x, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  EXPECT_TRUE(event.done());
  synchronize(y);
  void* const memory = allocate(1 << 20, y);
  const std::vector<char> bytes(1 << 10);
  copy_to_device(memory, bytes.data(), bytes.size(), y);
  synchronize(y);
  EXPECT_EQ(pointer_device(memory), 0);
  std::thread([] {
    DeviceGuard guard(0);
    own_stream();
  }).join();
  end(x);
  release(memory, 0);
}

TEST_F(Streams, ReleaseMemoryDuringACapture) {
  for (const cudaStream_t captured : {x, blocking}) {
    for (const auto mode :
         {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
      void *const memory = allocate(1 << 20, y), *const other = allocate(1 << 20, y);
      check_cuda(cudaStreamBeginCapture(captured, mode), "cudaStreamBeginCapture");
      release(memory, 0);
      std::thread([other] { release(other, 0); }).join();
      end(captured);
    }
  }
}

// ---- small host arrays ----

/// Takes all that there are.
std::vector<StagingBlock*> take_blocks(cudaStream_t stream) {
  std::vector<StagingBlock*> blocks;
  while (StagingBlock* const block = take_staging_block(stream)) blocks.push_back(block);
  synchronize(stream);
  return blocks;
}

TEST_F(Streams, HaveAFewBlocksForSmallHostArrays) {
  check_cuda(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  const std::vector<StagingBlock*> blocks = take_blocks(x);
  end(blocking);
  EXPECT_EQ(blocks.size(), 8u);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    std::memset(blocks[i]->host, static_cast<int>(i), StagingBlock::kBytes);
    copy_to_device(blocks[i]->device, blocks[i]->host, StagingBlock::kBytes, x);
  }
  synchronize(x);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    std::memset(blocks[i]->host, 0xFF, StagingBlock::kBytes);
    copy_to_host(blocks[i]->host, blocks[i]->device, StagingBlock::kBytes, y);
    synchronize(y);
    EXPECT_EQ(blocks[i]->host[0], static_cast<char>(i));
    EXPECT_EQ(blocks[i]->host[StagingBlock::kBytes - 1], static_cast<char>(i));
  }
  for (StagingBlock* const block : blocks) give_staging_block(block);
  std::thread([&] {
    DeviceGuard guard(0);
    const std::vector<StagingBlock*> again = take_blocks(y);
    EXPECT_TRUE(std::is_permutation(again.begin(), again.end(), blocks.begin(), blocks.end()));
    for (StagingBlock* const block : again) give_staging_block(block);
  }).join();
}

TEST_F(Streams, ThatBlockAndAreCapturedWaitNotForTheLegacyStream) {
  check_cuda(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  EXPECT_TRUE(throws<ValueError>("legacy", [&] { wait_stream(blocking, kLegacyStream); }));
  end(blocking);
}

}  // namespace
