/// Device memory: what a pointer points to, allocation, release, copies.
///
/// A cache, leaked on purpose so that no CUDA call runs while the process ends:
///   release queues        one per device: a stream for frees, an event, and memory that waits for a capture to end
#include <interop/cuda/driver.h>
#include <interop/error.h>

#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "cuda/driver/streams.h"

namespace interop::cuda {

// ---- pointers ----

std::optional<int> pointer_device(const void* pointer) {
  int device = -1;
  const CUresult status = driver().cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                                         reinterpret_cast<CUdeviceptr>(pointer));
  if (status == CUDA_ERROR_INVALID_VALUE) return std::nullopt;
  check(status, "asking which device a pointer belongs to");
  if (device < 0) return std::nullopt;
  return device;
}

bool is_managed(const void* pointer) {
  unsigned int managed = 0;  // what this attribute writes
  const CUresult status =
      driver().cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, reinterpret_cast<CUdeviceptr>(pointer));
  if (status == CUDA_ERROR_INVALID_VALUE) return false;
  check(status, "asking whether memory is managed");
  return managed != 0;
}

// ---- release queues ----

namespace {

/// The primary context of a device, current while this lives, whatever was before.
class PrimaryContext {
 public:
  PrimaryContext(const DriverApi& api, int device) : api_(api) {
    check(api.cuCtxPushCurrent(primary_context(api, device)), "making the primary context current");
  }
  ~PrimaryContext() {
    CUcontext popped;
    api_.cuCtxPopCurrent(&popped);
  }
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

 private:
  const DriverApi& api_;
};

/// A block of memory that came back, and the foreign streams that may still read it.
struct Returned {
  void* pointer;
  std::vector<CUstream> readers;
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

/// Makes queue.stream wait for our own streams and the legacy stream; false if a capture prevents that. These streams
/// cannot have been destroyed; the driver crashes on one that was. (An event of the whole context, cuCtxRecordEvent,
/// would cover all streams, but would invalidate every capture in the process: seen on driver 580 in each capture
/// mode.) The queue is locked and the primary context is current.
bool wait_for_known_streams(const DriverApi& api, ReleaseQueue& queue) {
  if (!queue.stream) {
    queue.event = new_event(api);
    check(api.cuStreamCreate(&queue.stream, CU_STREAM_NON_BLOCKING), "creating a stream");
  }
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
    api.cuMemFreeAsync(reinterpret_cast<CUdeviceptr>(back.pointer), queue.stream);
  }
}

/// Takes `back` (if it has a pointer) and frees all that can be freed now; true if that was all. Never throws.
bool release_and_drain(const DriverApi& api, int device, Returned back) noexcept {
  try {
    ReleaseQueue& queue = release_queue(device);
    std::lock_guard<std::mutex> lock(queue.mutex);
    if (back.pointer) queue.pending.push_back(std::move(back));
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

// ---- memory ----

void* allocate(std::size_t bytes, cudaStream_t stream) {
  const DriverApi& api = driver();
  const int device = current_device("allocating device memory");
  if (release_queue(device).has_pending.load(std::memory_order_relaxed)) release_and_drain(api, device, {});
  RelaxedCapture relaxed(api);
  // Memory allocated inside a capture would exist only while the graph runs, so it is allocated on our own stream.
  const bool capturing = is_capturing(stream);
  if (capturing) stream = own_stream();
  CUdeviceptr pointer = 0;
  const CUresult status = api.cuMemAllocAsync(&pointer, bytes, stream);
  if (status == CUDA_ERROR_OUT_OF_MEMORY) {
    throw CudaError("interop: allocating " + std::to_string(bytes) +
                    " bytes of device memory: CUDA_ERROR_OUT_OF_MEMORY");
  }
  check(status, "allocating device memory");
  if (capturing) check(api.cuStreamSynchronize(stream), "allocating device memory");
  return reinterpret_cast<void*>(pointer);
}

bool release(void* pointer, int device, const std::vector<cudaStream_t>& readers) noexcept {
  const DriverApi* api = driver_or_null();
  if (!api || !pointer || device < 0 || device >= kMaxDevices) return true;
  return release_and_drain(*api, device, {pointer, readers});
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

void copy_to_device(void* device, const void* host, std::size_t bytes, cudaStream_t stream) {
  const DriverApi& api = driver();
  RelaxedCapture relaxed(api);
  check(api.cuMemcpyHtoDAsync(reinterpret_cast<CUdeviceptr>(device), host, bytes, stream), "copying to the device");
}

void copy_to_host(void* host, const void* device, std::size_t bytes, cudaStream_t stream) {
  const DriverApi& api = driver();
  RelaxedCapture relaxed(api);
  check(api.cuMemcpyDtoHAsync(host, reinterpret_cast<CUdeviceptr>(device), bytes, stream), "copying to the host");
}

void copy_on_device(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  check(
      driver().cuMemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes, stream),
      "copying on the device");
}

}  // namespace interop::cuda
