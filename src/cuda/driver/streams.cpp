/// Contexts, streams and events.
///
/// Caches, all leaked on purpose so that no CUDA call runs while the process ends:
///   primary contexts      one per device, retained once and kept
///   own streams, events   one per thread and context, and one to capture; a thread that ends hands its own to the next
///   spare events          those of `Event`s that are gone, for the next one of the same context
#include "cuda/driver/streams.h"

#include <interop/cuda/graph.h>
#include <interop/error.h>
#include <pthread.h>

#include <atomic>
#include <utility>

namespace interop::cuda {

// ---- contexts ----

namespace {

std::atomic<CUcontext> g_primary[kMaxDevices];

}  // namespace

CUcontext primary_context(const DriverApi& api, int device) {
  if (device < 0 || device >= kMaxDevices) check(CUDA_ERROR_INVALID_DEVICE, "selecting a device");
  CUcontext context = g_primary[device].load(std::memory_order_acquire);
  if (context) return context;
  CUdevice handle = 0;
  check(api.cuDeviceGet(&handle, device), "selecting a device");
  RelaxedCapture relaxed(api);
  check(api.cuDevicePrimaryCtxRetain(&context, handle), "retaining the primary context");
  CUcontext expected = nullptr;
  if (!g_primary[device].compare_exchange_strong(expected, context)) api.cuDevicePrimaryCtxRelease(handle);
  return context;
}

namespace {

/// The current context, if it is of that device; else null.
CUcontext current_context(const DriverApi& api, int device) {
  CUcontext context = nullptr;
  int current = -1;
  const bool is_its = api.cuCtxGetCurrent(&context) == CUDA_SUCCESS && context &&
                      api.cuCtxGetDevice(&current) == CUDA_SUCCESS && current == device;
  return is_its ? context : nullptr;
}

}  // namespace

DeviceGuard::DeviceGuard(int device) {
  const DriverApi& api = driver();
  if (current_context(api, device)) return;
  check(api.cuCtxPushCurrent(primary_context(api, device)), "making the primary context current");
  pushed_ = true;
}

DeviceGuard::~DeviceGuard() {
  if (!pushed_) return;
  CUcontext popped;
  driver_or_null()->cuCtxPopCurrent(&popped);
}

// Who sets a device changes the top of the stack of contexts alone.
ForeignGuard::ForeignGuard(int device) {
  const DriverApi& api = driver();
  const CUcontext current = current_context(api, device);
  check(api.cuCtxPushCurrent(current ? current : primary_context(api, device)), "making a context current");
}

ForeignGuard::~ForeignGuard() {
  CUcontext popped;
  driver_or_null()->cuCtxPopCurrent(&popped);
}

// ---- captures ----

namespace {

struct Capture {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;  // 0: not being captured
};

Capture capture_of(const DriverApi& api, CUstream stream) {
  Capture capture;
  const CUresult status =
      api.cuStreamGetCaptureInfo_v2(stream, &capture.status, &capture.id, nullptr, nullptr, nullptr);
  if (status == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
    throw ValueError(
        "interop: the legacy default stream cannot be used while a blocking stream is captured into a CUDA graph");
  }
  check(status, "asking a stream for its capture");
  if (capture.status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
    throw ValueError("interop: the capture of the stream into a CUDA graph has failed already (invalidated)");
  }
  if (capture.status == CU_STREAM_CAPTURE_STATUS_NONE) capture.id = 0;
  return capture;
}

}  // namespace

std::uint64_t capture_id(CUstream stream) { return capture_of(driver(), stream).id; }

CaptureState capture_state(cudaStream_t stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  check(driver().cuStreamGetCaptureInfo_v2(stream, &status, nullptr, nullptr, nullptr, nullptr),
        "asking a stream for its capture");
  if (status == CU_STREAM_CAPTURE_STATUS_NONE) return CaptureState::none;
  return status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? CaptureState::active : CaptureState::failed;
}

namespace {

// ---- things that a thread keeps, and hands on when it ends ----

/// One driver object per thread and context. A thread that ends gives its objects to the spares, for the next thread;
/// nothing is destroyed, so that no CUDA call runs in a thread's or the process's last moments.
template <typename Handle>
class PerThread {
 public:
  template <typename Create>
  Handle get(std::uint64_t context_id, Create create) {
    for (const Entry& entry : entries_) {
      if (entry.context_id == context_id) return entry.handle;
    }
    Entry entry{context_id, take_spare(context_id)};
    if (!entry.handle) entry.handle = create();
    entries_.push_back(entry);
    return entry.handle;
  }
  ~PerThread() {
    Spares& spares = all_spares();
    std::lock_guard<std::mutex> lock(spares.mutex);
    spares.entries.insert(spares.entries.end(), entries_.begin(), entries_.end());
  }

 private:
  struct Entry {
    std::uint64_t context_id;
    Handle handle;
  };
  struct Spares {
    std::mutex mutex;
    std::vector<Entry> entries;
  };
  static Spares& all_spares() {
    static Spares* const spares = new Spares;
    return *spares;
  }
  static Handle take_spare(std::uint64_t context_id) {
    Spares& spares = all_spares();
    std::lock_guard<std::mutex> lock(spares.mutex);
    for (Entry& entry : spares.entries) {
      if (entry.context_id != context_id) continue;
      const Handle handle = entry.handle;
      entry = spares.entries.back();
      spares.entries.pop_back();
      return handle;
    }
    return nullptr;
  }
  std::vector<Entry> entries_;
};

}  // namespace

// ---- streams and events ----

CUevent new_event(const DriverApi& api) {
  CUevent event = nullptr;
  check(api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "creating an event");
  return event;
}

OwnStreams& own_streams() {
  static auto* const streams = new OwnStreams;
  return *streams;
}

namespace {

/// The event that this thread records and waits for at once. Reuse is safe: a wait keeps the point that the event had
/// when the wait was queued.
CUevent passing_event(const DriverApi& api) {
  thread_local PerThread<CUevent> events;
  return events.get(current_context_id("joining two streams"), [&] { return new_event(api); });
}

}  // namespace

void wait_stream(cudaStream_t waiter, cudaStream_t stream) {
  if (waiter == stream) return;
  const DriverApi& api = driver();
  if (capture_of(api, waiter).id != capture_of(api, stream).id) {
    throw ValueError(
        "interop: two streams of one call are not part of the same CUDA graph capture; let the capture fork to both, "
        "or "
        "give the arrays one stream");
  }
  const CUevent event = passing_event(api);
  check(api.cuEventRecord(event, stream), "recording an event");
  check(api.cuStreamWaitEvent(waiter, event, CU_EVENT_WAIT_DEFAULT), "making a stream wait for an event");
}

void synchronize(cudaStream_t stream) {
  const DriverApi& api = driver();
  RelaxedCapture relaxed(api);
  check(api.cuStreamSynchronize(stream), "waiting for a stream");
}

bool is_capturing(cudaStream_t stream) { return capture_id(stream) != 0; }

bool give_to_graph(cudaStream_t stream, void* data, void (*destroy)(void*)) {
  const DriverApi& api = driver();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUgraph graph = nullptr;
  check(api.cuStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph, nullptr, nullptr),
        "asking a stream for its capture");
  if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return false;
  CUuserObject object = nullptr;
  check(api.cuUserObjectCreate(&object, data, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
        "giving an object to a graph");
  const CUresult retained = api.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
  if (retained != CUDA_SUCCESS) api.cuUserObjectRelease(object, 1);  // runs `destroy`
  check(retained, "giving an object to a graph");
  return true;
}

namespace {

/// What this thread captures in place of its own stream.
struct OwnCapture {
  CUstream stream = nullptr;  // null: nothing
  std::uint64_t context_id = 0;
};
thread_local OwnCapture own_capture;

}  // namespace

void capture_own_stream(cudaStream_t stream) {
  own_capture = {stream, stream ? current_context_id("capturing a stream") : 0};
}

bool own_stream_is_captured() { return own_capture.stream != nullptr; }

cudaStream_t own_stream() {
  if (own_capture.stream && own_capture.context_id == current_context_id("finding our own stream")) {
    return own_capture.stream;
  }
  return lasting_stream();
}

cudaStream_t stream_to_capture() {
  const DriverApi& api = driver();
  thread_local PerThread<CUstream> streams;
  return streams.get(current_context_id("making a stream to capture"), [&] {
    RelaxedCapture relaxed(api);
    CUstream stream = nullptr;
    check(api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "creating a stream");
    return stream;
  });
}

cudaStream_t lasting_stream() {
  const DriverApi& api = driver();
  thread_local PerThread<CUstream> streams;
  const std::uint64_t context = current_context_id("finding our own stream");
  return streams.get(context, [&] {
    RelaxedCapture relaxed(api);
    OwnStream fresh{context, nullptr, new_event(api)};
    check(api.cuStreamCreate(&fresh.stream, CU_STREAM_NON_BLOCKING), "creating a stream");
    OwnStreams& all = own_streams();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.entries.push_back(fresh);
    return fresh.stream;
  });
}

namespace {

struct SpareEvent {
  std::uint64_t context_id;
  CUevent event;
};
struct SpareEvents {
  std::mutex mutex;
  std::vector<SpareEvent> entries;
};
SpareEvents& spare_events() {
  static auto* const events = new SpareEvents;
  return *events;
}

// A forked child gives events back, too, without the thread that may be in the middle of a change.
const int registered = pthread_atfork([] { spare_events().mutex.lock(); }, [] { spare_events().mutex.unlock(); },
                                      [] { spare_events().mutex.unlock(); });

CUevent take_spare_event(std::uint64_t context_id) {
  SpareEvents& spares = spare_events();
  const std::lock_guard<std::mutex> lock(spares.mutex);
  for (std::size_t i = spares.entries.size(); i-- > 0;) {
    if (spares.entries[i].context_id != context_id) continue;
    const CUevent event = spares.entries[i].event;
    spares.entries[i] = spares.entries.back();
    spares.entries.pop_back();
    return event;
  }
  return nullptr;
}

}  // namespace

Event::Event(cudaStream_t stream) {
  const DriverApi& api = driver();
  context_id_ = current_context_id("recording an event");
  event_ = take_spare_event(context_id_);
  if (!event_) event_ = new_event(api);
  const CUresult status = api.cuEventRecord(static_cast<CUevent>(event_), stream);
  if (status == CUDA_SUCCESS) return;
  give_back();
  check(status, "recording an event");
}

Event::~Event() { give_back(); }

/// To be recorded again: what waits for the event keeps the point that it had when the wait was queued.
void Event::give_back() noexcept {
  if (!event_) return;
  SpareEvents& spares = spare_events();
  const std::lock_guard<std::mutex> lock(spares.mutex);
  spares.entries.push_back({context_id_, static_cast<CUevent>(event_)});
  event_ = nullptr;
}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(event_, other.event_);
  std::swap(context_id_, other.context_id_);
  return *this;
}

void Event::make_wait(cudaStream_t stream) const {
  check(driver().cuStreamWaitEvent(stream, static_cast<CUevent>(event_), CU_EVENT_WAIT_DEFAULT),
        "making a stream wait for an event");
}

bool Event::done() const {
  const DriverApi& api = driver();
  RelaxedCapture relaxed(api);
  const CUresult status = api.cuEventQuery(static_cast<CUevent>(event_));
  if (status == CUDA_ERROR_NOT_READY) return false;
  check(status, "asking whether an event has passed");
  return true;
}

void Event::synchronize() const {
  const DriverApi& api = driver();
  RelaxedCapture relaxed(api);
  check(api.cuEventSynchronize(static_cast<CUevent>(event_)), "waiting for an event");
}

}  // namespace interop::cuda
