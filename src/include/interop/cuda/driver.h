/// What the exchange needs of the CUDA driver: devices, contexts, streams, events, memory. Knows no Python.
///
/// The driver is opened at run time, so that a machine without one can import the package. Every function throws
/// CudaError with CUDA's own name for what went wrong, what was being done, and what to install, unless it says
/// "never throws". In a build without CUDA (-DINTEROP_CUDA=OFF) each says so in that error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

typedef struct CUstream_st* cudaStream_t;

namespace interop::cuda {

/// The legacy default stream and the per-thread default stream, as DLPack and CUDA name them.
inline const cudaStream_t kLegacyStream = reinterpret_cast<cudaStream_t>(1);
inline const cudaStream_t kPerThreadStream = reinterpret_cast<cudaStream_t>(2);

// ---- the driver and its devices ----

/// The CUDA version this package was built for, such as 13000; 0 for a host-only build. Never throws.
int built_for();
/// The architectures of the build, such as "75-real 80-real 90a-real 80-virtual". Never throws.
const char* built_architectures();
/// The compiler of the build, such as "nvcc 13.0.88". Never throws.
const char* built_compiler();

/// Opens and initialises the driver once. Throws if there is no driver, it is too old, or there is no GPU.
void require_driver();
/// The CUDA version that the driver supports, such as 13000.
int driver_version();
int device_count();
/// Throws the CudaError of a `cudaError_t` or `CUresult` other than 0 (their numbers agree) that other code returned.
[[noreturn]] void throw_status(int status, const char* doing);
struct DeviceInfo {
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  std::size_t memory_bytes = 0;
};
DeviceInfo device_info(int device);

/// From now on, or no more, calls of the driver are noted in the profiles that run (<interop/profile.h>). Opens no
/// driver. Never throws.
void count_calls(bool is_counted);

// ---- contexts ----

/// Makes a context of `device` current for its own lifetime. A current context of that device (also a green or a
/// pushed one) is kept as it is; otherwise the primary one is pushed, and popped again by the destructor.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  bool pushed_ = false;
};

/// The same, for other libraries' code: what is current before is current again after it, whatever the code has set.
class ForeignGuard {
 public:
  explicit ForeignGuard(int device);
  ~ForeignGuard();
  ForeignGuard(const ForeignGuard&) = delete;
  ForeignGuard& operator=(const ForeignGuard&) = delete;
};

// ---- pointers ----

/// The device that `pointer` belongs to; none if CUDA does not know the pointer. Not for null pointers.
std::optional<int> pointer_device(const void* pointer);
/// Is it managed memory, which the host can read, too? Not for null pointers.
bool is_managed(const void* pointer);

// ---- streams and events: the current context is the streams' own ----

/// `waiter` waits for all that is queued on `stream` now. Does nothing for equal streams. The host does not wait.
/// Throws ValueError, touching neither, if the two are not part of the same capture.
void wait_stream(cudaStream_t waiter, cudaStream_t stream);
/// Blocks the host until all queued on `stream` is done. Call it without the GIL.
void synchronize(cudaStream_t stream);
/// Is `stream` being captured into a graph?
bool is_capturing(cudaStream_t stream);
/// If `stream` is being captured, makes the graph the owner of `data`: `destroy(data)` runs when the graph and all that
/// was made from it are gone, on a thread of CUDA's, where neither CUDA nor Python may be called. Otherwise false, and
/// nothing is done.
bool give_to_graph(cudaStream_t stream, void* data, void (*destroy)(void*));
/// Our own non-blocking stream of this thread on the current device; made on first use, kept.
cudaStream_t own_stream();

/// A point in a stream that streams and the host can wait for. CUDA's events are kept, and used again.
class Event {
 public:
  Event() = default;
  /// Records now on `stream`.
  explicit Event(cudaStream_t stream);
  ~Event();
  Event(Event&& other) noexcept : event_(other.event_), context_id_(other.context_id_) { other.event_ = nullptr; }
  Event& operator=(Event&& other) noexcept;
  explicit operator bool() const { return event_ != nullptr; }
  /// An event behind all that is queued by now on our own streams, the legacy stream, all blocking streams and
  /// `readers` of `device`: those that `release` waits for. Empty while a capture prevents that. Any context may be
  /// current.
  static Event of_known_streams(int device, const std::vector<cudaStream_t>& readers);
  /// `stream` waits for the recorded point.
  void make_wait(cudaStream_t stream) const;
  /// Has the point been passed? Safe while another thread captures a graph.
  bool done() const;
  /// Blocks the host until the point has been passed. Call it without the GIL.
  void synchronize() const;

 private:
  void give_back() noexcept;

  void* event_ = nullptr;
  std::uint64_t context_id_ = 0;
};

// ---- memory ----

/// Stream-ordered device memory of interop's own pool of the current device (<interop/cuda/memory.h>), 256-byte
/// aligned. `bytes` > 0. While `stream` is being captured the memory is not part of the graph: the caller keeps it as
/// long as the graph lives.
void* allocate(std::size_t bytes, cudaStream_t stream);
/// Gives memory of `allocate` back once our own streams, the legacy stream, all blocking streams and `readers` have
/// done what they have queued by now, and `last_use` has passed. Every one of `readers` must exist: the driver crashes
/// on a destroyed stream. False if a capture prevents that: a later call then frees the memory, and needs `readers`
/// until then. Any thread, any current context, never throws, never waits on the host.
bool release(void* pointer, int device, const std::vector<cudaStream_t>& readers = {},
             std::shared_ptr<const Event> last_use = nullptr) noexcept;
/// What is given back from now on, and `Event::of_known_streams`, waits for `event`, too. Any thread, any current
/// context, never throws, never waits on the host.
void release_behind(const Event& event, int device) noexcept;
/// Gives memory of `allocate` back once `stream`, the only one that used it, has done what it has queued by now.
/// Cheaper; any thread, any current context, never throws, never waits on the host.
void release(void* pointer, int device, cudaStream_t stream) noexcept;
/// The same; false, and nothing is done, where `stream` is being captured.
bool release_unless_captured(void* pointer, int device, cudaStream_t stream) noexcept;

/// Copies queued on `stream`; the host side may be pageable.
void copy_to_device(void* device, const void* host, std::size_t bytes, cudaStream_t stream);
void copy_to_host(void* host, const void* device, std::size_t bytes, cudaStream_t stream);
/// A copy from memory to memory of the current device, queued on `stream`.
void copy_on_device(void* to, const void* from, std::size_t bytes, cudaStream_t stream);

// ---- small host arrays on their way to the device and back ----

/// Page-locked host memory, and device memory that it is copied to and from: the same bytes at the same offsets.
struct StagingBlock {
  static constexpr std::size_t kBytes = std::size_t{4} << 20;

  char* host;
  char* device;
  std::uint64_t context_id;
};

/// A block of the current context, for the caller alone until it is given back; work on `stream` may use it at once.
/// Null where all of that context are taken, or there is no memory for one more. Never throws.
StagingBlock* take_staging_block(cudaStream_t stream) noexcept;
/// Gives a block back, once all work on it is done: the next one that takes it does not wait. Never throws.
void give_staging_block(StagingBlock* block) noexcept;

}  // namespace interop::cuda
