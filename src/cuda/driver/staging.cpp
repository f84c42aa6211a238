/// Blocks of memory through which small host arrays go to a device and back.
///
/// A cache, leaked on purpose so that no CUDA call runs while the process ends:
///   staging blocks        some for each context: as many as calls have needed at once, up to a few
#include <interop/cuda/driver.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "cuda/driver/driver_api.h"

namespace interop::cuda {
namespace {

constexpr int kMostBlocks = 8;  // for each context

struct StagingBlocks {
  std::mutex mutex;
  std::vector<StagingBlock*> free;
  std::vector<std::uint64_t> made;  // the contexts of all that there are, or are being made
};
StagingBlocks& staging_blocks() {
  static auto* const blocks = new StagingBlocks;
  return *blocks;
}

/// A free block of the context; null if there is none. `may_make`: is one more allowed? Then it is counted.
StagingBlock* take_free(std::uint64_t context_id, bool& may_make) {
  StagingBlocks& blocks = staging_blocks();
  std::lock_guard<std::mutex> lock(blocks.mutex);
  for (StagingBlock*& free : blocks.free) {
    if (free->context_id != context_id) continue;
    StagingBlock* const taken = free;
    free = blocks.free.back();
    blocks.free.pop_back();
    return taken;
  }
  const auto count = std::count(blocks.made.begin(), blocks.made.end(), context_id);
  may_make = count < kMostBlocks;
  if (may_make) {
    blocks.free.reserve(blocks.made.size() + 1);  // so that giving back needs no memory
    blocks.made.push_back(context_id);
  }
  return nullptr;
}

/// Null if there is no memory: an error of the context is left to the call that meets it next.
StagingBlock* make_block(std::uint64_t context_id, CUstream stream) {
  const DriverApi& api = driver();
  RelaxedCapture relaxed(api);
  std::unique_ptr<StagingBlock> block(new (std::nothrow) StagingBlock);
  if (!block) return nullptr;
  CUdeviceptr device = 0;
  void* host = nullptr;
  if (api.cuMemAllocAsync(&device, StagingBlock::kBytes, stream) != CUDA_SUCCESS) return nullptr;
  if (api.cuMemHostAlloc(&host, StagingBlock::kBytes, 0) != CUDA_SUCCESS) {
    api.cuMemFreeAsync(device, stream);
    return nullptr;
  }
  *block = {static_cast<char*>(host), reinterpret_cast<char*>(device), context_id};
  return block.release();
}

}  // namespace

StagingBlock* take_staging_block(cudaStream_t stream) noexcept {
  try {
    const std::uint64_t context_id = current_context_id("copying host arrays");
    bool may_make = false;
    StagingBlock* block = take_free(context_id, may_make);
    if (block || !may_make) return block;
    block = make_block(context_id, stream);
    if (block) return block;
    StagingBlocks& blocks = staging_blocks();
    std::lock_guard<std::mutex> lock(blocks.mutex);
    blocks.made.erase(std::find(blocks.made.begin(), blocks.made.end(), context_id));
    return nullptr;
  } catch (...) {
    return nullptr;
  }
}

void give_staging_block(StagingBlock* block) noexcept {
  StagingBlocks& blocks = staging_blocks();
  std::lock_guard<std::mutex> lock(blocks.mutex);
  blocks.free.push_back(block);
}

}  // namespace interop::cuda
