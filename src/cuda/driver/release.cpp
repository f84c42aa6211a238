/// Memory on its way back, behind the streams that may still use it.
///
/// A cache, leaked on purpose so that no CUDA call runs while the process ends:
///   release queues        one per device: a stream for frees, an event, and memory that waits for a capture to end
#include "cuda/driver/release.h"

#include <interop/error.h>

#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "cuda/driver/streams.h"

namespace interop::cuda {

PrimaryContext::PrimaryContext(const DriverApi& api, int device) : api_(api) {
  const CUcontext primary = primary_context(api, device);
  CUcontext current = nullptr;
  if (api.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == primary) return;  // a quarter of a push and a pop
  check(api.cuCtxPushCurrent(primary), "making the primary context current");
  is_pushed_ = true;
}

PrimaryContext::~PrimaryContext() {
  CUcontext popped;
  if (is_pushed_) api_.cuCtxPopCurrent(&popped);
}

namespace {

/// Memory that came back, of the pool or a block, and the foreign streams that may still read it.
struct Returned {
  void* pointer = nullptr;
  Block* block = nullptr;
  std::vector<CUstream> readers = {};
  std::shared_ptr<const Event> last_use = {};
};

/// Memory of one device on its way back to the pool.
struct ReleaseQueue {
  std::mutex mutex;
  CUstream stream = nullptr;      // frees are queued here, behind all that they wait for
  CUevent event = nullptr;        // marks a point in the legacy stream
  std::vector<Returned> pending;  // a capture was in the way
  std::atomic<bool> has_pending{false};
};

ReleaseQueue& release_queue(int device) {
  static auto* const queues = new std::array<ReleaseQueue, kMaxDevices>;
  return (*queues)[device];
}

/// Makes `waiter` wait for what is queued on `stream`; false if a capture prevents that. The capture is queried first:
/// a refused record would invalidate it.
bool wait_unless_captured(const DriverApi& api, CUstream waiter, CUstream stream, CUevent event) {
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult status = api.cuStreamGetCaptureInfo_v2(stream, &capture, nullptr, nullptr, nullptr, nullptr);
  if (status == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || capture != CU_STREAM_CAPTURE_STATUS_NONE) return false;
  check(status, "asking a stream for its capture");
  check(api.cuEventRecord(event, stream), "recording an event");
  check(api.cuStreamWaitEvent(waiter, event, CU_EVENT_WAIT_DEFAULT), "making a stream wait for an event");
  return true;
}

void make_stream(const DriverApi& api, ReleaseQueue& queue) {
  if (queue.stream) return;
  queue.event = new_event(api);
  check(api.cuStreamCreate(&queue.stream, CU_STREAM_NON_BLOCKING), "creating a stream");
}

/// Makes queue.stream wait for our own streams and the legacy stream; false if a capture prevents that. These streams
/// cannot have been destroyed; the driver crashes on one that was. (An event of the whole context, cuCtxRecordEvent,
/// would cover all streams, but would invalidate every capture in the process: seen on driver 580 in each capture
/// mode.) The queue is locked and the primary context is current.
bool wait_for_known_streams(const DriverApi& api, ReleaseQueue& queue) {
  make_stream(api, queue);
  if (!wait_unless_captured(api, queue.stream, CU_STREAM_LEGACY, queue.event)) return false;
  unsigned long long context_id = 0;
  check(api.cuCtxGetId(nullptr, &context_id), "releasing device memory");
  OwnStreams& own = own_streams();
  std::lock_guard<std::mutex> lock(own.mutex);
  for (const OwnStream& entry : own.entries) {
    if (entry.context_id != context_id) continue;
    if (!wait_unless_captured(api, queue.stream, entry.stream, entry.event)) return false;
  }
  return true;
}

/// Frees queue.pending behind those streams and its readers. The queue is locked and the primary context is current.
void drain(const DriverApi& api, ReleaseQueue& queue) {
  if (!wait_for_known_streams(api, queue)) return;
  for (; !queue.pending.empty(); queue.pending.pop_back()) {  // what is refused (not ours, context broken) is dropped
    const Returned& back = queue.pending.back();
    for (CUstream reader : back.readers) {
      if (!wait_unless_captured(api, queue.stream, reader, queue.event)) return;
    }
    if (back.last_use) back.last_use->make_wait(queue.stream);
    if (back.block) {
      keep_block(back.block, queue.stream);
    } else {
      api.cuMemFreeAsync(reinterpret_cast<CUdeviceptr>(back.pointer), queue.stream);
    }
  }
}

/// Takes `back` (if it is any) and frees all that can be freed now; true if that was all. Never throws.
bool release_and_drain(const DriverApi& api, int device, Returned back) noexcept {
  try {
    ReleaseQueue& queue = release_queue(device);
    std::lock_guard<std::mutex> lock(queue.mutex);
    if (back.pointer || back.block) queue.pending.push_back(std::move(back));
    RelaxedCapture relaxed(api);
    PrimaryContext current(api, device);
    drain(api, queue);
    queue.has_pending.store(!queue.pending.empty(), std::memory_order_relaxed);
    return queue.pending.empty();
  } catch (...) {
    return true;  // a driver that has shut down (CUDA_ERROR_DEINITIALIZED) or a broken context: the memory goes with
                  // them
  }
}

}  // namespace

void release_pending(const DriverApi& api, int device) noexcept {
  if (release_queue(device).has_pending.load(std::memory_order_relaxed)) release_and_drain(api, device, {});
}

// ---- what others call ----

bool release(void* pointer, int device, const std::vector<cudaStream_t>& readers,
             std::shared_ptr<const Event> last_use) noexcept {
  const DriverApi* api = driver_or_null();
  if (!api || !pointer || device < 0 || device >= kMaxDevices) return true;
  return release_and_drain(*api, device, {pointer, nullptr, readers, std::move(last_use)});
}

bool give_block(Block* block, const std::vector<cudaStream_t>& readers,
                std::shared_ptr<const Event> last_use) noexcept {
  return release_and_drain(*driver_or_null(), device_of(block), {nullptr, block, readers, std::move(last_use)});
}

void release_behind(const Event& event, int device) noexcept {
  const DriverApi* api = driver_or_null();
  if (!api || device < 0 || device >= kMaxDevices) return;
  try {
    ReleaseQueue& queue = release_queue(device);
    std::lock_guard<std::mutex> lock(queue.mutex);
    RelaxedCapture relaxed(*api);
    PrimaryContext current(*api, device);
    make_stream(*api, queue);
    event.make_wait(queue.stream);
  } catch (...) {
    // A driver that has shut down, or a broken context: the memory goes with them.
  }
}

bool release_unless_captured(void* pointer, int device, cudaStream_t stream) noexcept {
  const DriverApi* api = driver_or_null();
  if (!api || !pointer || device < 0 || device >= kMaxDevices) return true;
  try {
    RelaxedCapture relaxed(*api);
    PrimaryContext current(*api, device);
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult status = api->cuStreamGetCaptureInfo_v2(stream, &capture, nullptr, nullptr, nullptr, nullptr);
    if (status == CUDA_SUCCESS && capture != CU_STREAM_CAPTURE_STATUS_NONE) return false;
    api->cuMemFreeAsync(reinterpret_cast<CUdeviceptr>(pointer), stream);
  } catch (...) {
    // A driver that has shut down, or a broken context: the memory goes with them.
  }
  return true;
}

void release(void* pointer, int device, cudaStream_t stream) noexcept {
  const DriverApi* api = driver_or_null();
  if (!api || !pointer || device < 0 || device >= kMaxDevices) return;
  try {
    RelaxedCapture relaxed(*api);
    PrimaryContext current(*api, device);
    api->cuMemFreeAsync(reinterpret_cast<CUdeviceptr>(pointer), stream);
  } catch (...) {
    // A driver that has shut down, or a broken context: the memory goes with them.
  }
}

Event Event::of_known_streams(int device, const std::vector<cudaStream_t>& readers) {
  const DriverApi& api = driver();
  ReleaseQueue& queue = release_queue(device);
  std::lock_guard<std::mutex> lock(queue.mutex);
  RelaxedCapture relaxed(api);
  PrimaryContext current(api, device);
  if (!wait_for_known_streams(api, queue)) return Event();
  for (CUstream reader : readers) {
    if (!wait_unless_captured(api, queue.stream, reader, queue.event)) return Event();
  }
  return Event(queue.stream);
}

}  // namespace interop::cuda
