/// Managed and pinned memory, in blocks that are kept: to make one takes the driver as long as a thousand launches, and
/// to free one waits for the device. And what is known, and may be chosen, of all three kinds of memory.
///
/// A cache, leaked on purpose so that no CUDA call runs while the process ends:
///   kept blocks           for each kind, device and size, in the order in which they came back
#include <interop/error.h>
#include <interop/profile.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>

#include "cuda/driver/release.h"
#include "cuda/driver/streams.h"

namespace interop::cuda {

struct Block {
  void* data;
  std::size_t bytes;
  MemoryKind kind;
  int device;
  CUevent event;  // behind the work that used it, once it is kept
};

namespace {

constexpr std::size_t kPage = 4096;
/// So many blocks of a size may wait for their work before a stream is made to wait for the first of them.
constexpr std::size_t kMostWaiting = 4;

/// The sizes of blocks: eight for each power of two, so that at most an eighth is lost.
std::size_t rounded(std::size_t bytes) {
  std::size_t step = kPage;
  while (bytes > 8 * 2 * step) step *= 2;
  return (bytes + step - 1) / step * step;
}

/// The blocks of one kind of one device.
struct Blocks {
  std::mutex mutex;
  std::map<std::size_t, std::deque<Block*>> kept;  // by size; the first came back first, and is the first to be done
  PoolState state{0, 0, 0, 0, ~std::uint64_t{0}};
  std::uint64_t limit = ~std::uint64_t{0};
};

Blocks& blocks_of(MemoryKind kind, int device) {
  static auto* const all = new std::array<std::array<Blocks, kMaxDevices>, 2>;
  if (device < 0 || device >= kMaxDevices) check(CUDA_ERROR_INVALID_DEVICE, "selecting a device");
  return (*all)[kind == MemoryKind::managed ? 0 : 1][device];
}

const char* making(MemoryKind kind) {
  return kind == MemoryKind::managed ? "allocating managed memory" : "allocating pinned memory";
}

bool is_done(const DriverApi& api, const Block* block) {
  const CUresult status = api.cuEventQuery(block->event);
  if (status != CUDA_SUCCESS && status != CUDA_ERROR_NOT_READY) check(status, "asking whether an event has passed");
  return status == CUDA_SUCCESS;
}

void note_used(PoolState& state, std::size_t bytes) {
  state.used_bytes += bytes;
  state.used_high = std::max(state.used_high, state.used_bytes);
}

/// A kept block of that size whose work is done; with `may_wait`, else one that `stream` has been made to wait for
/// where many wait already. Null if there is none. The blocks are locked.
TakenBlock take_kept(const DriverApi& api, Blocks& blocks, std::size_t bytes, CUstream stream, bool may_wait) {
  const auto found = blocks.kept.find(bytes);
  if (found == blocks.kept.end() || found->second.empty()) return {};
  std::deque<Block*>& kept = found->second;
  Block* const first = kept.front();
  const bool is_busy = !is_done(api, first);
  if (is_busy && (!may_wait || kept.size() < kMostWaiting)) return {};
  if (is_busy) {
    check(api.cuStreamWaitEvent(stream, first->event, CU_EVENT_WAIT_DEFAULT), "making a stream wait for an event");
  }
  kept.pop_front();
  note_used(blocks.state, bytes);
  return {first, first->data, is_busy};
}

/// Those whose work is done leave the cache, the oldest of each size first, until at most `most` bytes are reserved.
/// The blocks are locked.
std::deque<Block*> take_out(const DriverApi& api, Blocks& blocks, std::uint64_t most) {
  std::deque<Block*> out;
  for (auto& [bytes, kept] : blocks.kept) {
    while (!kept.empty() && blocks.state.reserved_bytes > most && is_done(api, kept.front())) {
      blocks.state.reserved_bytes -= bytes;
      out.push_back(kept.front());
      kept.pop_front();
    }
  }
  return out;
}

/// Without the lock: it waits for the device.
void free_all(const DriverApi& api, const std::deque<Block*>& blocks) {
  for (Block* const block : blocks) {
    if (block->kind == MemoryKind::managed) {
      api.cuMemFree(reinterpret_cast<CUdeviceptr>(block->data));
    } else {
      api.cuMemFreeHost(block->data);
    }
    if (block->event) api.cuEventDestroy(block->event);
    delete block;
  }
}

CUresult allocate_pages(const DriverApi& api, MemoryKind kind, std::size_t bytes, void** data) {
  if (kind == MemoryKind::pinned) return api.cuMemHostAlloc(data, bytes, CU_MEMHOSTALLOC_PORTABLE);
  CUdeviceptr pointer = 0;
  const CUresult status = api.cuMemAllocManaged(&pointer, bytes, CU_MEM_ATTACH_GLOBAL);
  *data = reinterpret_cast<void*>(pointer);
  return status;
}

/// How much managed memory a device may have. A GPU that runs out of it moves its pages again and again, and may hang:
/// so it is no more than the device holds.
std::uint64_t managed_limit(const DriverApi& api, const Blocks& blocks, int device) {
  static std::atomic<signed char> is_concurrent[kMaxDevices];  // 0: not asked yet
  if (!is_concurrent[device].load(std::memory_order_relaxed)) {
    const int answer = device_attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, device);
    is_concurrent[device].store(answer ? 1 : -1, std::memory_order_relaxed);
  }
  if (is_concurrent[device].load(std::memory_order_relaxed) < 0) {
    throw CudaError(
        "interop: allocating managed memory: this GPU cannot share it with the host while a kernel runs; accepted: "
        "memory='pinned'");
  }
  std::size_t total = 0;
  CUdevice handle = 0;
  check(api.cuDeviceGet(&handle, device), "selecting a device");
  check(api.cuDeviceTotalMem(&total, handle), "reading a device's attributes");
  return std::min<std::uint64_t>(total, blocks.limit);
}

/// A new block, of which the caller has reserved the bytes. Null if there is no memory.
Block* make_block(const DriverApi& api, MemoryKind kind, std::size_t bytes, int device) {
  void* data = nullptr;
  const CUresult status = allocate_pages(api, kind, bytes, &data);
  if (status == CUDA_ERROR_OUT_OF_MEMORY) return nullptr;
  check(status, making(kind));
  return new Block{data, bytes, kind, device, nullptr};
}

/// Reserves the bytes of a new block as long as it lives, unless `done`. Throws where there would be more than `limit`
/// bytes of managed memory.
class Reservation {
 public:
  Reservation(Blocks& blocks, std::size_t bytes, std::uint64_t limit, int device) : blocks_(blocks), bytes_(bytes) {
    const std::lock_guard<std::mutex> lock(blocks.mutex);
    PoolState& state = blocks.state;
    if (bytes > limit || state.reserved_bytes > limit - bytes) {
      throw CudaError("interop: allocating " + std::to_string(bytes) + " bytes of managed memory: cuda:" +
                      std::to_string(device) + " may have " + std::to_string(limit) + " bytes of it, and " +
                      std::to_string(state.reserved_bytes) + " are taken; accepted: less, or memory='pinned'");
    }
    state.reserved_bytes += bytes;
    state.reserved_high = std::max(state.reserved_high, state.reserved_bytes);
  }
  ~Reservation() {
    if (is_done_) return;
    const std::lock_guard<std::mutex> lock(blocks_.mutex);
    blocks_.state.reserved_bytes -= bytes_;
  }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  void done() { is_done_ = true; }

 private:
  Blocks& blocks_;
  std::size_t bytes_;
  bool is_done_ = false;
};

}  // namespace

int device_of(const Block* block) noexcept { return block->device; }

TakenBlock take_block(MemoryKind kind, std::size_t bytes, cudaStream_t stream) {
  const DriverApi& api = driver();
  const int device = current_device(making(kind));
  release_pending(api, device);
  bytes = rounded(bytes);
  const profile::Stopwatch watch;
  RelaxedCapture relaxed(api);
  Blocks& blocks = blocks_of(kind, device);
  std::deque<Block*> surplus;
  std::uint64_t limit = ~std::uint64_t{0};
  {
    const bool captures = is_capturing(stream);
    const std::lock_guard<std::mutex> lock(blocks.mutex);
    const TakenBlock kept = take_kept(api, blocks, bytes, stream, !captures);
    if (kept.block) {
      watch.note(profile::What::allocation, kind == MemoryKind::managed ? "managed" : "pinned", bytes);
      return kept;
    }
    if (kind == MemoryKind::managed) limit = managed_limit(api, blocks, device);
    const std::uint64_t most = std::min(blocks.state.release_threshold, limit);
    surplus = take_out(api, blocks, most - std::min<std::uint64_t>(most, bytes));
  }
  free_all(api, surplus);
  Reservation reserved(blocks, bytes, limit, device);
  Block* made = make_block(api, kind, bytes, device);
  if (!made) {  // what is kept for other sizes may do
    trim_pool(kind, device, 0);
    made = make_block(api, kind, bytes, device);
  }
  if (!made) {
    throw CudaError(std::string("interop: ") + making(kind) + ": " + std::to_string(bytes) +
                    " bytes: CUDA_ERROR_OUT_OF_MEMORY");
  }
  reserved.done();
  const std::lock_guard<std::mutex> lock(blocks.mutex);
  note_used(blocks.state, bytes);
  return {made, made->data, false};
}

void keep_block(Block* block, CUstream stream) noexcept {
  const DriverApi& api = *driver_or_null();
  Blocks& blocks = blocks_of(block->kind, block->device);
  try {
    const profile::Stopwatch watch;
    const std::size_t bytes = block->bytes;
    if (!block->event) block->event = new_event(api);
    check(api.cuEventRecord(block->event, stream), "recording an event");
    const std::lock_guard<std::mutex> lock(blocks.mutex);
    blocks.kept[block->bytes].push_back(block);
    blocks.state.used_bytes -= bytes;
    watch.note(profile::What::hold, "block, until its work is done", bytes);
  } catch (...) {
    // A broken context: nobody knows when the block may be used again, so it is not.
  }
}

// ---- hints ----

namespace {

CUdevice place(int device) { return device < 0 ? CU_DEVICE_CPU : device; }

}  // namespace

void prefetch(const void* managed, std::size_t bytes, int device, cudaStream_t stream) {
  check(driver().cuMemPrefetchAsync_v1(reinterpret_cast<CUdeviceptr>(managed), bytes, place(device), stream),
        "prefetching managed memory");
}

void advise(const void* managed, std::size_t bytes, Advice advice, bool is_set, int device) {
  const CUmem_advise all[][2] = {{CU_MEM_ADVISE_UNSET_READ_MOSTLY, CU_MEM_ADVISE_SET_READ_MOSTLY},
                                 {CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, CU_MEM_ADVISE_SET_PREFERRED_LOCATION},
                                 {CU_MEM_ADVISE_UNSET_ACCESSED_BY, CU_MEM_ADVISE_SET_ACCESSED_BY}};
  check(driver().cuMemAdvise_v1(reinterpret_cast<CUdeviceptr>(managed), bytes, all[static_cast<int>(advice)][is_set],
                                place(device)),
        "advising on managed memory");
}

// ---- statistics and limits ----

namespace {

std::uint64_t read(const DriverApi& api, CUmemoryPool pool, CUmemPool_attribute name) {
  cuuint64_t value = 0;
  check(api.cuMemPoolGetAttribute(pool, name, &value), "reading a memory pool");
  return value;
}

}  // namespace

PoolState pool_state(MemoryKind kind, int device) {
  const DriverApi& api = driver();
  if (kind != MemoryKind::device) {
    Blocks& blocks = blocks_of(kind, device);
    const std::lock_guard<std::mutex> lock(blocks.mutex);
    return blocks.state;
  }
  const CUmemoryPool pool = device_pool(api, device);
  return {read(api, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), read(api, pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH),
          read(api, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), read(api, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH),
          read(api, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)};
}

void set_release_threshold(MemoryKind kind, int device, std::uint64_t bytes) {
  const DriverApi& api = driver();
  if (kind == MemoryKind::device) {
    cuuint64_t value = bytes;
    check(api.cuMemPoolSetAttribute(device_pool(api, device), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value),
          "setting what a memory pool keeps");
    return;
  }
  Blocks& blocks = blocks_of(kind, device);
  const std::lock_guard<std::mutex> lock(blocks.mutex);
  blocks.state.release_threshold = bytes;
}

void trim_pool(MemoryKind kind, int device, std::uint64_t keep) {
  const DriverApi& api = driver();
  release_pending(api, device);
  RelaxedCapture relaxed(api);
  if (kind == MemoryKind::device) {
    check(api.cuMemPoolTrimTo(device_pool(api, device), keep), "giving memory of a pool back");
    return;
  }
  PrimaryContext current(api, device);
  Blocks& blocks = blocks_of(kind, device);
  std::deque<Block*> out;
  {
    const std::lock_guard<std::mutex> lock(blocks.mutex);
    out = take_out(api, blocks, keep);
  }
  free_all(api, out);
}

void set_managed_limit(int device, std::uint64_t bytes) {
  Blocks& blocks = blocks_of(MemoryKind::managed, device);
  const std::lock_guard<std::mutex> lock(blocks.mutex);
  blocks.limit = bytes;
}

}  // namespace interop::cuda
