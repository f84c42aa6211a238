/// Memory of interop's own: the pool of each device, and blocks that the host and the GPU both see. Knows no Python.
///
/// As in <interop/cuda/driver.h>, every function throws CudaError unless it says "never throws".
#pragma once

#include <interop/cuda/driver.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace interop::cuda {

/// Is there a driver with a GPU? Throws for a driver that does not work; false for none, and for none with a GPU.
bool has_gpu();
/// The device of the current context; 0 if none is current.
int default_device();

enum class MemoryKind : uint8_t {
  device,   ///< from a CUDA memory pool, in stream order
  managed,  ///< the host and the GPU see it at one address, and the driver moves its pages
  pinned    ///< page-locked memory of the host, which the GPU reads and writes where it is
};

// ---- managed and pinned memory ----

/// A block of managed or pinned memory, which is kept for the next user when it is given back.
struct Block;

struct TakenBlock {
  Block* block;
  void* data;  ///< aligned to 4096 bytes
  /// The work that used it before is not yet done. The stream that it was taken for waits for that; the host, and other
  /// streams, are to wait for that stream.
  bool is_busy;
};

/// A block of at least `bytes` > 0 for work on `stream`, of the current device. A block that was given back is taken
/// again once the work that used it is done; before that only where many wait like it, or `stream` would have to.
TakenBlock take_block(MemoryKind kind, std::size_t bytes, cudaStream_t stream);
/// Gives a block back behind the work that `release` of <interop/cuda/driver.h> waits for; the rules are the same.
bool give_block(Block* block, const std::vector<cudaStream_t>& readers = {},
                std::shared_ptr<const Event> last_use = nullptr) noexcept;

/// Hints about managed memory, queued on `stream`; the current device is the stream's. `device` -1 is the host.
void prefetch(const void* managed, std::size_t bytes, int device, cudaStream_t stream);
enum class Advice : uint8_t { read_mostly, preferred_location, accessed_by };
/// `device` -1 is the host; `read_mostly` is for all devices. With `is_set` false it takes the advice back.
void advise(const void* managed, std::size_t bytes, Advice advice, bool is_set, int device);

// ---- copies ----

/// A copy between any two addresses, of the host, pinned or pageable, or of any device, queued on `stream`. Pageable
/// memory has been read, or has been written to, on return.
void copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream);
/// A copy between memory of two devices, queued on `stream`. `copy` may not do: a pool's memory is its own device's
/// alone.
void copy_between(void* to, int to_device, const void* from, int from_device, std::size_t bytes, cudaStream_t stream);

/// Memory that is copied row by row.
struct Rows {
  void* data;
  std::size_t pitch;  ///< bytes from row to row
  std::size_t plane;  ///< bytes from plane to plane, a whole number of rows; of several planes
  bool on_host;       ///< pinned or pageable
};
/// The same of `rows` rows of `row_bytes` in each of `planes` planes.
void copy_rows(const Rows& to, const Rows& from, std::size_t row_bytes, std::size_t rows, std::size_t planes,
               cudaStream_t stream);

// ---- statistics and limits ----

struct PoolState {
  uint64_t used_bytes = 0;      ///< in arrays, or waiting for the work that used them
  uint64_t used_high = 0;       ///< the most that there ever were
  uint64_t reserved_bytes = 0;  ///< of the device or the host, used or kept for the next array
  uint64_t reserved_high = 0;
  uint64_t release_threshold = 0;  ///< what may be kept
};

/// Of one kind of memory of `device`.
PoolState pool_state(MemoryKind kind, int device);
/// How many bytes may be reserved beyond those in use. The pool of a device gives the rest back when the host next
/// waits for the device; managed and pinned memory goes back when the next new block is made.
void set_release_threshold(MemoryKind kind, int device, uint64_t bytes);
/// Gives back what is not in use, down to `keep` reserved bytes. May wait for the device: call it without the GIL.
void trim_pool(MemoryKind kind, int device, uint64_t keep);
/// The most managed memory that there may be on `device`; by default, and at most, what the device has.
void set_managed_limit(int device, uint64_t bytes);

}  // namespace interop::cuda
