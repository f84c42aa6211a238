/// The CUDA driver, opened at run time: devices, contexts, streams, events, memory.
///
/// Caches, all leaked on purpose so that no CUDA call runs while the process ends:
///   driver functions      one table, filled on the first success
///   primary contexts      one per device, retained once and kept
///   own streams           one per thread and context; a thread that ends hands its streams to the next one
///   release queues        one per device: a stream for frees, an event, and memory that waits for a capture to end
#include <interop/cuda/driver.h>
#include <interop/error.h>

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include "cuda/driver/driver_api.h"

#ifndef INTEROP_BUILT_ARCHITECTURES
#define INTEROP_BUILT_ARCHITECTURES "unknown"
#endif
#ifndef INTEROP_BUILT_COMPILER
#define INTEROP_BUILT_COMPILER "unknown"
#endif

namespace interop::cuda {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// ---- opening the driver ----

template <typename Function>
void resolve(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  if (!function) {
    throw CudaError(std::string("interop: the NVIDIA driver has no ") + symbol + ": too old for this build (CUDA " +
                    version_text(CUDA_VERSION) + "); update the driver, or build interop with an older CUDA toolkit");
  }
}

const DriverApi* open_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* why = dlerror();
    throw CudaError(std::string("interop: no NVIDIA driver: libcuda.so.1 does not load (") +
                    (why ? why : "no reason given") + "); install the NVIDIA driver for CUDA " +
                    version_text(CUDA_VERSION) + " or newer");
  }
  auto api = std::make_unique<DriverApi>();
  // These two first: the version explains better than a missing symbol.
  resolve(library, "cuInit", api->cuInit);
  resolve(library, "cuDriverGetVersion", api->cuDriverGetVersion);
  int version = 0;
  api->cuDriverGetVersion(&version);
  if (version != 0 && version / 1000 < CUDA_VERSION / 1000) {  // within one major version any driver will do
    throw CudaError("interop: the NVIDIA driver supports CUDA " + version_text(version) +
                    ", and this build needs CUDA " + version_text(CUDA_VERSION / 1000 * 1000) +
                    " or newer; update the driver, or build interop with a CUDA " + std::to_string(version / 1000) +
                    " toolkit");
  }
#define STRING_OF(name) #name
#define X(name) resolve(library, STRING_OF(name), api->name);
  INTEROP_DRIVER_FUNCTIONS(X)
#undef X
#undef STRING_OF
  resolve(library, "cuStreamGetCaptureInfo_v2", api->cuStreamGetCaptureInfo_v2);

  const CUresult status = api->cuInit(0);
  int count = 0;
  if (status == CUDA_SUCCESS) api->cuDeviceGetCount(&count);
  if (status == CUDA_ERROR_NO_DEVICE || (status == CUDA_SUCCESS && count == 0)) {
    throw CudaError(
        "interop: no CUDA device: CUDA_ERROR_NO_DEVICE (no GPU, or CUDA_VISIBLE_DEVICES hides all of them)");
  }
  if (status != CUDA_SUCCESS) {
    const char* name = "unknown error";
    const char* text = "";
    api->cuGetErrorName(status, &name);
    api->cuGetErrorString(status, &text);
    throw CudaError(std::string("interop: starting the CUDA driver (cuInit): ") + name + " (" + text +
                    "); `nvidia-smi` shows whether the driver works");
  }
  return api.release();
}

std::atomic<const DriverApi*> g_driver{nullptr};
std::atomic<const char*> g_last_launch{nullptr};  // the name of a kernel that a user wrote

// ---- primary contexts ----

std::atomic<CUcontext> g_primary[kMaxDevices];

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

// ---- captures ----

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

CUevent new_event(const DriverApi& api) {
  CUevent event = nullptr;
  check(api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "creating an event");
  return event;
}

/// The event that this thread records and waits for at once. Reuse is safe: a wait keeps the point that the event had
/// when the wait was queued.
CUevent passing_event(const DriverApi& api) {
  thread_local PerThread<CUevent> events;
  return events.get(current_context_id("joining two streams"), [&] { return new_event(api); });
}

/// Every stream that own_stream() has made, with an event to mark a point in it. None is ever destroyed.
struct OwnStream {
  std::uint64_t context_id;
  CUstream stream;
  CUevent event;
};
struct OwnStreams {
  std::mutex mutex;
  std::vector<OwnStream> entries;
};
OwnStreams& own_streams() {
  static auto* const streams = new OwnStreams;
  return *streams;
}

}  // namespace

// ---- shared with the rest of src/cuda ----

const DriverApi& driver() {
  const DriverApi* api = g_driver.load(std::memory_order_acquire);
  if (api) return *api;
  static std::mutex* const mutex = new std::mutex;
  std::lock_guard<std::mutex> lock(*mutex);
  api = g_driver.load(std::memory_order_acquire);
  if (!api) {
    api = open_driver();  // throws: the next call tries again
    g_driver.store(api, std::memory_order_release);
  }
  return *api;
}

const DriverApi* driver_or_null() noexcept { return g_driver.load(std::memory_order_acquire); }

bool is_earlier_error(CUresult status) {
  switch (status) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
      return true;
    default:
      return false;
  }
}

void throw_status(CUresult status, const char* doing) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (const DriverApi* api = driver_or_null()) {
    api->cuGetErrorName(status, &name);
    api->cuGetErrorString(status, &text);
  }
  const std::string error = (name ? std::string(name) : "CUDA error " + std::to_string(static_cast<int>(status))) +
                            " (" + (text ? text : "unknown") + ")";
  if (is_earlier_error(status)) {
    const char* const last = g_last_launch.load(std::memory_order_relaxed);
    throw CudaError(std::string("interop: ") + doing + ": an earlier asynchronous error: " + error +
                    "; some kernel that was queued before has failed, and the context can run nothing more" +
                    (last ? std::string(" (the last kernel that a user wrote was ") + last + ")" : "") +
                    "; start the process again, with CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer to find it");
  }
  if (status == CUDA_ERROR_NO_BINARY_FOR_GPU) {
    throw CudaError(std::string("interop: ") + doing + ": " + error + "; this build holds kernels for " +
                    built_architectures() + ": build interop for this GPU");
  }
  throw CudaError(std::string("interop: ") + doing + ": " + error);
}

void note_launch(const char* kernel) noexcept { g_last_launch.store(kernel, std::memory_order_relaxed); }

std::uint64_t current_context_id(const char* doing) {
  unsigned long long id = 0;
  check(driver().cuCtxGetId(nullptr, &id), doing);
  return id;
}

int current_device(const char* doing) {
  int device = 0;
  check(driver().cuCtxGetDevice(&device), doing);
  return device;
}

int device_attribute(CUdevice_attribute name, int device) {
  int value = 0;
  check(driver().cuDeviceGetAttribute(&value, name, device), "reading a device's attributes");
  return value;
}

namespace {

/// Returns `read(device)`, which is never 0, and keeps it for each device.
template <typename Read>
int read_once(std::atomic<int> (&kept)[kMaxDevices], int device, Read read) {
  if (device < 0 || device >= kMaxDevices) check(CUDA_ERROR_INVALID_DEVICE, "selecting a device");
  int value = kept[device].load(std::memory_order_relaxed);
  if (value == 0) {
    value = read(device);
    kept[device].store(value, std::memory_order_relaxed);
  }
  return value;
}

}  // namespace

int multiprocessors(int device) {
  static std::atomic<int> counts[kMaxDevices];
  return read_once(counts, device,
                   [](int of) { return device_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, of); });
}

int l2_bytes(int device) {
  static std::atomic<int> bytes[kMaxDevices];
  return read_once(bytes, device, [](int of) { return device_attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, of); });
}

int compute_capability(int device) {
  static std::atomic<int> capabilities[kMaxDevices];
  return read_once(capabilities, device, [](int of) {
    return device_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, of) * 10 +
           device_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, of);
  });
}

// ---- the driver and its devices ----

int built_for() { return CUDA_VERSION; }
const char* built_architectures() { return INTEROP_BUILT_ARCHITECTURES; }
const char* built_compiler() { return INTEROP_BUILT_COMPILER; }

void require_driver() { driver(); }

void throw_status(int status, const char* doing) {
  const std::string what = std::string("interop: ") + doing + ": ";
  switch (status) {  // statuses that only the runtime has; the others have the driver's numbers
    case 9:
      throw CudaError(what + "cudaErrorInvalidConfiguration (the grid, the block or the shared memory is too large)");
    case 35:
      throw CudaError(what + "cudaErrorInsufficientDriver (the driver is older than the CUDA runtime of that code)");
    case 98:
      throw CudaError(what + "cudaErrorInvalidDeviceFunction (that code holds no such kernel for this GPU)");
    default:
      throw_status(static_cast<CUresult>(status), doing);
  }
}

int driver_version() {
  int version = 0;
  check(driver().cuDriverGetVersion(&version), "reading the driver's version");
  return version;
}

int device_count() {
  int count = 0;
  check(driver().cuDeviceGetCount(&count), "counting devices");
  return count;
}

DeviceInfo device_info(int device) {
  const DriverApi& api = driver();
  const char* const doing = "reading a device's attributes";
  CUdevice handle = 0;
  check(api.cuDeviceGet(&handle, device), "selecting a device");
  DeviceInfo info;
  char name[256] = "";
  check(api.cuDeviceGetName(name, sizeof name, handle), doing);
  info.name = name;
  check(api.cuDeviceGetAttribute(&info.compute_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle), doing);
  check(api.cuDeviceGetAttribute(&info.compute_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle), doing);
  info.multiprocessors = multiprocessors(device);
  check(api.cuDeviceTotalMem(&info.memory_bytes, handle), doing);
  return info;
}

// ---- contexts ----

DeviceGuard::DeviceGuard(int device) {
  const DriverApi& api = driver();
  CUcontext context = nullptr;
  int current = -1;
  if (api.cuCtxGetCurrent(&context) == CUDA_SUCCESS && context && api.cuCtxGetDevice(&current) == CUDA_SUCCESS &&
      current == device) {
    return;
  }
  check(api.cuCtxPushCurrent(primary_context(api, device)), "making the primary context current");
  pushed_ = true;
}

DeviceGuard::~DeviceGuard() {
  if (!pushed_) return;
  CUcontext popped;
  driver_or_null()->cuCtxPopCurrent(&popped);
}

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

// ---- streams and events ----

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

bool is_capturing(cudaStream_t stream) { return capture_of(driver(), stream).id != 0; }

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

cudaStream_t own_stream() {
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

Event::Event(cudaStream_t stream) {
  const DriverApi& api = driver();
  const CUevent event = new_event(api);
  const CUresult status = api.cuEventRecord(event, stream);
  if (status != CUDA_SUCCESS) {
    api.cuEventDestroy(event);
    check(status, "recording an event");
  }
  event_ = event;
}

Event::~Event() {
  if (event_) driver_or_null()->cuEventDestroy(static_cast<CUevent>(event_));
}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(event_, other.event_);
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

// ---- memory ----

namespace {

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
