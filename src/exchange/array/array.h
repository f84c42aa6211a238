/// `interop.Array`: a typed view of memory that belongs to no array library, or to any of them.
#pragma once

#include <interop/cuda/driver.h>

#include <memory>
#include <vector>

#include "exchange/array/loan.h"
#include "exchange/array/readers.h"
#include "exchange/array/replays.h"
#include "exchange/python.h"
#include "exchange/route.h"

namespace interop::exchange {

/// What is known of the work on one block of memory that a GPU may use: shared by all arrays on it.
struct Work {
  Readers readers;                ///< the streams that the memory outlives
  cudaStream_t stream = nullptr;  ///< where it was last used, or allocated; null if no stream ever did
  /// The event that is passed when that use, and all before it, are done; null if there was none. It is shared, as a
  /// thread that waits for it without the GIL keeps it.
  std::shared_ptr<const cuda::Event> last_use;
  /// The graphs of `interop.graph` that use it: what the last replay of each has done comes before all later work, too.
  std::vector<std::shared_ptr<Replays>> graphs;
  unsigned uses = 0;               ///< how many have been noted
  std::vector<cudaStream_t> lent;  ///< of interop's own, one for each thread that asked; they live for ever
  /// It was allocated on `stream`, one of interop's own, and nothing has used it.
  bool is_fresh = false;
  /// All that has used it was on the stream that it was allocated on, one of interop's own: it is freed there.
  bool is_of_one_stream = false;
};

/// The value behind `interop.Array`. `memory` owns the bytes, or keeps their owner alive; every export shares it, so
/// exports outlive the array.
///
/// Work on the memory may come from four sides, and whoever uses the array next waits for all of them: the last use
/// that interop knows of (`Work::last_use`); for a view of another library's array, what that library does now
/// (`bound`, or the current stream of `producer`); consumers of the C exchange API, which work on the streams that it
/// names
/// (`lent`).
///
/// Several threads may use one array. The GIL orders them, except while work is launched or waited for.
struct Array {
  /// Is the array being resized, in this thread or another? A copy of it, such as a view, is not.
  struct Resizing {
    bool is_on = false;
    Resizing() = default;
    Resizing(const Resizing&) {}
    Resizing& operator=(const Resizing&) { return *this; }
  };

  std::shared_ptr<void> memory;
  void* data = nullptr;
  DLDevice device{kDLCPU, 0};
  DLDataType dtype{};
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  ///< in elements
  bool read_only = false;
  int gpu = -1;                     ///< the CUDA device that may work on the memory; -1 for plain host memory
  std::shared_ptr<Work> work;       ///< null for plain host memory
  const Route* producer = nullptr;  ///< of a view: whose current stream is to be waited for
  cudaStream_t bound = nullptr;     ///< of a view: the stream that the producer's array itself names
  nb::handle owner;                 ///< of a view of a tensor: what keeps its memory, as long as `memory` is
  const Route* owner_route = nullptr;
  const void* owner_data = nullptr;  ///< where that had the memory when the view was made
  bool is_view = false;              ///< `memory` is the owners of another library's array: see view.cpp
  std::shared_ptr<Loan> loan;        ///< of memory that is lent for one call: `bound` is the lender's stream
  size_t capacity = 0;               ///< the bytes of `memory`, where it is of interop's own
  Resizing resizing;
  int buffers = 0;  ///< exported by the buffer protocol and not yet released; counted with the GIL

  DLTensor tensor() const;
  /// The device that exports name where nobody asks for another: managed memory is plain memory of its GPU, since an
  /// exporter does not know who reads, and torch and JAX know no managed memory.
  DLDevice exported_device() const;
  bool on_host() const { return device.device_type == kDLCPU; }
  /// Is it host, pinned or managed memory (whatever its producer calls it)? The host may read it once `make_host_wait`
  /// has returned.
  bool host_readable() const;

  /// Is there work, or an allocation, that is to be waited for?
  bool is_worked_on() const {
    return work && (work->last_use || work->is_fresh || !work->lent.empty() || !work->graphs.empty());
  }

  /// The stream on which the producer of a view works now; null if it names none. Holds the GIL.
  cudaStream_t producer_stream() const;
  /// Throws BufferError if the memory of a view is no longer where it was, or is about to be another, or was lent.
  void check_address() const;
  /// `waiter` waits for all work on the memory. Throws ValueError where a capture into a CUDA graph forbids that.
  void make_wait(cudaStream_t waiter) const;
  /// The same without the producer's stream, for a call that has joined that one itself.
  void make_wait_for_uses(cudaStream_t waiter) const;
  /// Blocks the host until all work on the memory is done; the GIL is released meanwhile.
  void make_host_wait() const;
  /// Notes that work using the array was just queued on `used`, which has waited for the first `waited_for` uses. Makes
  /// `used` wait for those that other threads have noted since, so that whoever waits for the last use waits for all.
  void used_on(cudaStream_t used, unsigned waited_for);
  /// Lets a consumer work on interop's own stream of this thread and device, without further synchronisation.
  void lend();
  /// Notes that a consumer on `reader` gets the memory, and may work on it as long as it has it.
  void shown_to(cudaStream_t reader) const;
};

/// If `stream` is being captured, its graph keeps the memory: replays use it, whatever becomes of the array.
void keep_for_graph(const std::shared_ptr<void>& memory, int gpu, cudaStream_t stream);
/// Throws ValueError if `stream` is being captured, so that the host cannot wait for what is queued on it.
void refuse_host_wait(cudaStream_t stream);

/// The layout of a new array: compact and row-major, with no memory yet.
Array compact_array(const Shape& shape, DLDataType dtype, DLDevice device);
/// A new array: 64-byte aligned host memory, or memory of the current device ordered on `stream`: its own (kDLCUDA),
/// managed or pinned. Written by the caller before anybody else sees it. May wait, where new managed or pinned memory
/// is made; the GIL is released meanwhile. With `shared`, other processes can be given it: host memory that they can
/// map, device memory of interop's own pool, whatever the allocator.
Array new_array(const Shape& shape, DLDataType dtype, DLDevice device, cudaStream_t stream, bool shared = false);
/// `bytes` > 0 of host memory, 64-byte aligned, so that JAX takes it without a copy.
std::shared_ptr<void> host_memory(size_t bytes);
/// `bytes` > 0 of memory of the current device, which is `gpu`, ordered on `stream`; freed behind the streams that
/// `work` knows. If `stream` is being captured, the graph keeps the memory, too.
std::shared_ptr<void> device_memory(size_t bytes, int gpu, cudaStream_t stream, std::shared_ptr<Work> work);
/// The bytes of the elements themselves, without gaps between them.
size_t byte_count(const Array& array);

}  // namespace interop::exchange
