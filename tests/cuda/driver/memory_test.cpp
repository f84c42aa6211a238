/// Tests of <interop/cuda/memory.h>.
#include <gtest/gtest.h>
#include <interop/cuda/memory.h>
#include <interop/error.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/throws.h"
#include "cuda/device.h"

using namespace interop;
using namespace interop::cuda;
using interop::tests::DeviceTest;
using interop::tests::throws;

namespace {

constexpr MemoryKind kVisible[] = {MemoryKind::managed, MemoryKind::pinned};

struct Memory : DeviceTest {
  void SetUp() override {
    check_cuda(cudaStreamCreateWithFlags(&x, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    for (const MemoryKind kind : kVisible) trim_pool(kind, 0, 0);
  }
  void TearDown() override {
    DeviceTest::TearDown();
    EXPECT_EQ(cudaStreamDestroy(x), cudaSuccess);
    for (const MemoryKind kind : kVisible) EXPECT_EQ(pool_state(kind, 0).used_bytes, 0u);
  }
  /// Keeps the stream busy until `open` is called.
  void close_gate() {
    is_open = false;
    check_cuda(cudaLaunchHostFunc(
                   x,
                   [](void* gate) {
                     while (!static_cast<std::atomic<bool>*>(gate)->load()) std::this_thread::yield();
                   },
                   &is_open),
               "cudaLaunchHostFunc");
  }
  void open_gate() {
    is_open = true;
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  cudaStream_t x = nullptr;
  std::atomic<bool> is_open{true};
};

TEST(HasGpu, IsTrueHere) { EXPECT_TRUE(has_gpu()); }

TEST_F(Memory, OfADeviceIsOfOurPool) {
  const PoolState before = pool_state(MemoryKind::device, 0);
  void* const memory = allocate(1 << 20, x);
  const PoolState during = pool_state(MemoryKind::device, 0);
  EXPECT_EQ(during.used_bytes, before.used_bytes + (1 << 20));
  EXPECT_GE(during.reserved_bytes, during.used_bytes);
  EXPECT_TRUE(release_unless_captured(memory, 0, x));
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  EXPECT_EQ(pool_state(MemoryKind::device, 0).used_bytes, before.used_bytes);
}

TEST_F(Memory, IsKeptAsFarAsTheThresholdSays) {
  set_release_threshold(MemoryKind::device, 0, ~uint64_t{0});
  release(allocate(32 << 20, x), 0, x);
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  EXPECT_GE(pool_state(MemoryKind::device, 0).reserved_bytes, uint64_t{32} << 20);
  trim_pool(MemoryKind::device, 0, 0);
  EXPECT_LT(pool_state(MemoryKind::device, 0).reserved_bytes, uint64_t{32} << 20);
}

TEST_F(Memory, IsSeenByTheHostAndTheDevice) {
  for (const MemoryKind kind : kVisible) {
    const TakenBlock taken = take_block(kind, 1000, x);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(taken.data) % 4096, 0u);
    EXPECT_EQ(pointer_device(taken.data), 0);
    EXPECT_EQ(is_managed(taken.data), kind == MemoryKind::managed);
    std::memset(taken.data, 1, 1000);
    check_cuda(cudaMemsetAsync(taken.data, 2, 500, x), "cudaMemsetAsync");
    synchronize(x);
    EXPECT_EQ(static_cast<char*>(taken.data)[499], 2);
    EXPECT_EQ(static_cast<char*>(taken.data)[500], 1);
    give_block(taken.block);
  }
}

TEST_F(Memory, IsUsedAgainBehindTheWorkThatUsedIt) {
  for (const MemoryKind kind : kVisible) {
    const TakenBlock first = take_block(kind, 1000, x);
    close_gate();
    check_cuda(cudaMemsetAsync(first.data, 9, 1000, x), "cudaMemsetAsync");
    give_block(first.block, {x});
    const TakenBlock other = take_block(kind, 1000, x);  // the first is still in use
    EXPECT_NE(other.data, first.data);
    EXPECT_FALSE(other.is_busy);
    open_gate();
    const TakenBlock again = take_block(kind, 1000, x);
    EXPECT_EQ(again.data, first.data);
    EXPECT_FALSE(again.is_busy);
    give_block(other.block);
    give_block(again.block);
  }
}

TEST_F(Memory, OfWhichMuchWaitsIsWaitedFor) {
  std::vector<TakenBlock> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(take_block(MemoryKind::pinned, 1000, x));
  close_gate();
  for (const TakenBlock& each : blocks) {
    check_cuda(cudaMemsetAsync(each.data, 9, 1000, x), "cudaMemsetAsync");
    give_block(each.block, {x});
  }
  cudaStream_t y = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&y, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  const TakenBlock taken = take_block(MemoryKind::pinned, 1000, y);
  EXPECT_TRUE(taken.is_busy);
  EXPECT_EQ(taken.data, blocks[0].data);
  EXPECT_EQ(cudaStreamQuery(y), cudaErrorNotReady);
  open_gate();
  check_cuda(cudaStreamSynchronize(y), "cudaStreamSynchronize");
  give_block(taken.block);
  check_cuda(cudaStreamDestroy(y), "cudaStreamDestroy");
}

TEST_F(Memory, IsTakenAgainForItsSizeAlone) {
  for (const MemoryKind kind : kVisible) {
    const PoolState before = pool_state(kind, 0);
    const TakenBlock first = take_block(kind, 1, x);
    give_block(first.block, {x});
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const TakenBlock same = take_block(kind, 4096, x);  // a whole page
    EXPECT_EQ(same.data, first.data);
    const TakenBlock larger = take_block(kind, 4097, x);
    EXPECT_NE(larger.data, first.data);
    const PoolState during = pool_state(kind, 0);
    EXPECT_EQ(during.used_bytes, before.used_bytes + 3 * 4096);
    EXPECT_EQ(during.reserved_bytes, before.reserved_bytes + 3 * 4096);
    EXPECT_GE(during.used_high, during.used_bytes);
    EXPECT_GE(during.reserved_high, during.reserved_bytes);
    give_block(same.block);
    give_block(larger.block);
    EXPECT_EQ(pool_state(kind, 0).used_bytes, before.used_bytes);
  }
}

TEST_F(Memory, InUseIsNotGivenBack) {
  for (const MemoryKind kind : kVisible) {
    const TakenBlock small = take_block(kind, 1000, x), large = take_block(kind, 5000, x);
    close_gate();
    check_cuda(cudaMemsetAsync(large.data, 9, 5000, x), "cudaMemsetAsync");
    give_block(large.block, {x});
    give_block(small.block, {x});
    trim_pool(kind, 0, 0);  // frees nothing, which would wait for the device
    EXPECT_EQ(pool_state(kind, 0).reserved_bytes, 3u * 4096);
    open_gate();
    trim_pool(kind, 0, 2 * 4096);
    EXPECT_EQ(pool_state(kind, 0).reserved_bytes, 2u * 4096);
    trim_pool(kind, 0, 0);
    EXPECT_EQ(pool_state(kind, 0).reserved_bytes, 0u);
  }
}

TEST_F(Memory, BeyondTheThresholdGoesBackForANewBlock) {
  for (const MemoryKind kind : kVisible) {
    set_release_threshold(kind, 0, 0);
    EXPECT_EQ(pool_state(kind, 0).release_threshold, 0u);
    give_block(take_block(kind, 1000, x).block);
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    EXPECT_EQ(pool_state(kind, 0).reserved_bytes, 4096u);
    const TakenBlock other = take_block(kind, 5000, x);
    EXPECT_EQ(pool_state(kind, 0).reserved_bytes, 2u * 4096);
    set_release_threshold(kind, 0, ~uint64_t{0});
    give_block(other.block);
  }
}

TEST_F(Memory, ThatIsManagedHasALimit) {
  set_managed_limit(0, 1 << 20);
  EXPECT_TRUE(throws<CudaError>("may have 1048576 bytes", [&] { take_block(MemoryKind::managed, 2 << 20, x); }));
  const TakenBlock taken = take_block(MemoryKind::managed, 1 << 19, x);
  EXPECT_TRUE(throws<CudaError>("524288 are taken", [&] { take_block(MemoryKind::managed, (1 << 19) + 1, x); }));
  set_managed_limit(0, ~uint64_t{0});
  give_block(taken.block);
}

TEST_F(Memory, IsFreedDuringACapture) {
  const TakenBlock block = take_block(MemoryKind::pinned, 1000, x);
  void* const memory = allocate(1000, x);
  synchronize(x);
  check_cuda(cudaStreamBeginCapture(x, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  EXPECT_FALSE(release_unless_captured(memory, 0, x));
  EXPECT_FALSE(give_block(block.block, {x}));  // later
  const TakenBlock other = take_block(MemoryKind::pinned, 1000, x);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(x, &graph), cudaSuccess) << "the capture was broken";
  if (graph) check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  give_block(other.block);
  release(memory, 0, x);
}

TEST_F(Memory, IsFlatUnderManyThreadsAndStreams) {
  constexpr int kThreads = 8, kRounds = 20000;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t, &wrong] {
      const DeviceGuard guard(0);
      cudaStream_t streams[4];
      for (cudaStream_t& each : streams) cudaStreamCreateWithFlags(&each, cudaStreamNonBlocking);
      for (int i = 0; i < kRounds; ++i) {
        const cudaStream_t stream = streams[i % 4];
        if (i % 10 > 0) {
          release(allocate(1000 + 64 * (i % 7), stream), 0, stream);
          continue;
        }
        const TakenBlock taken = take_block(kVisible[i / 10 % 2], 4000, stream);
        auto* const bytes = static_cast<unsigned char*>(taken.data);
        cudaMemsetAsync(bytes, t, 4000, stream);
        synchronize(stream);
        if (bytes[0] != t || bytes[3999] != t) ++wrong;
        give_block(taken.block);
      }
      for (cudaStream_t each : streams) cudaStreamSynchronize(each);
      for (cudaStream_t each : streams) cudaStreamDestroy(each);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  for (const MemoryKind kind : kVisible) EXPECT_LE(pool_state(kind, 0).reserved_bytes, uint64_t{64} * 4096);
  EXPECT_LE(pool_state(MemoryKind::device, 0).reserved_bytes, uint64_t{64} << 20);
}

TEST_F(Memory, IsCopiedByRowsAndPlanes) {
  const TakenBlock host = take_block(MemoryKind::pinned, 4 * 5 * 64, x);
  auto* const bytes = static_cast<unsigned char*>(host.data);
  for (int i = 0; i < 4 * 5 * 64; ++i) bytes[i] = static_cast<unsigned char>(i % 251);
  void* const device = allocate(2 * 3 * 32, x);
  copy_rows({device, 32, 96, false}, {bytes + 64 + 16, 64, 5 * 64, true}, 32, 3, 2, x);
  std::vector<unsigned char> back(2 * 3 * 32);
  copy(back.data(), device, back.size(), x);
  synchronize(x);
  for (int p = 0; p < 2; ++p) {
    for (int r = 0; r < 3; ++r) {
      for (int b = 0; b < 32; ++b) EXPECT_EQ(back[(p * 3 + r) * 32 + b], bytes[p * 5 * 64 + (r + 1) * 64 + 16 + b]);
    }
  }
  std::memset(bytes, 0, 4 * 5 * 64);
  copy_rows({bytes, 64, 0, true}, {device, 32, 0, false}, 32, 6, 1, x);
  synchronize(x);
  EXPECT_EQ(bytes[5 * 64 + 31], back[6 * 32 - 1]);
  EXPECT_EQ(bytes[5 * 64 + 32], 0);
  release(device, 0, x);
  give_block(host.block);
}

TEST_F(Memory, ThatIsManagedTakesHints) {
  const TakenBlock taken = take_block(MemoryKind::managed, 1 << 20, x);
  std::memset(taken.data, 3, 1 << 20);
  EXPECT_NO_THROW(prefetch(taken.data, 1 << 20, 0, x));
  EXPECT_NO_THROW(advise(taken.data, 1 << 20, Advice::read_mostly, true, 0));
  EXPECT_NO_THROW(advise(taken.data, 1 << 20, Advice::preferred_location, true, -1));
  EXPECT_NO_THROW(advise(taken.data, 1 << 20, Advice::accessed_by, true, 0));
  EXPECT_NO_THROW(prefetch(taken.data, 1 << 20, -1, x));
  EXPECT_NO_THROW(advise(taken.data, 1 << 20, Advice::read_mostly, false, 0));
  synchronize(x);
  EXPECT_EQ(static_cast<char*>(taken.data)[1000], 3);
  give_block(taken.block);
}

}  // namespace
