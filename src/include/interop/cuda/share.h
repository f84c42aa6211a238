/// Device memory that several processes use: how one gives it to another. Knows no Python.
///
/// As in <interop/cuda/driver.h>, every function throws CudaError unless it says "never throws".
#pragma once

#include <interop/cuda/driver.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace interop::cuda {

using ShareHandle = std::array<char, 64>;  ///< of memory or of an event, as CUDA writes them

/// The 16 bytes by which every process knows a GPU, whatever its index there.
std::string device_uuid(int device);
/// The index of that GPU in this process; none where it cannot be seen.
std::optional<int> find_device(const std::string& uuid);

/// A file descriptor, closed in the end, and not left to programs that the process starts.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1);
  ~FileDescriptor();
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

/// By what an allocation is given away.
enum class SharedBy : uint8_t {
  ipc,   ///< memory of cuMemAlloc: a handle of the whole of it
  pool,  ///< memory of a pool: a file descriptor of the pool, and a handle of the memory in it
  pages  ///< memory of cuMemCreate: a file descriptor of the whole of it
};

/// One allocation, as other processes are told of it.
struct SharedMemory {
  SharedBy by = SharedBy::ipc;
  std::uintptr_t base = 0;  ///< its address in the process that made it
  std::size_t bytes = 0;
  ShareHandle handle{};
  std::uintptr_t pool = 0;                   ///< by which that process knows the pool
  std::shared_ptr<const FileDescriptor> fd;  ///< null: there is none
};

/// The allocation that `data` points into, of the current device. Throws BufferError of `label`, which says what memory
/// that is, where no other process can be given it.
SharedMemory share_memory(const void* data, const std::string& label);

/// A point in a stream that other processes can wait for.
class SharedEvent {
 public:
  /// Records now on `stream`. Where the system allows no events between processes, the host waits for the stream: call
  /// it without the GIL.
  explicit SharedEvent(cudaStream_t stream);
  ~SharedEvent();
  SharedEvent(const SharedEvent&) = delete;
  SharedEvent& operator=(const SharedEvent&) = delete;
  /// What another process waits for; none once the point has been passed. Any thread, any current context.
  std::optional<ShareHandle> handle() const;

 private:
  void* event_ = nullptr;
  int device_;
  ShareHandle handle_{};
};

/// Makes `stream` wait for the point of another process's event.
void wait_for_shared(const ShareHandle& event, cudaStream_t stream);

/// What mapping an allocation throws that is not mapped yet, and is not described by a handle alone.
struct NeedsFile {};

/// An allocation of another process, mapped into this one: once for each allocation, as long as one of these lives.
/// Making and destroying it may wait for the device: without the GIL.
class OpenedMemory {
 public:
  /// `owner` names the process that made the memory, and keeps it as long as this lives. Throws NeedsFile, too.
  OpenedMemory(const std::string& owner, const SharedMemory& memory, int device);
  /// No work may use the memory any more.
  ~OpenedMemory();
  OpenedMemory(const OpenedMemory&) = delete;
  OpenedMemory& operator=(const OpenedMemory&) = delete;
  void* data() const { return data_; }

 private:
  struct Mapping;
  struct Pool;
  struct Mappings;
  static Mappings& mappings();

  std::pair<std::string, std::uintptr_t> key_;
  void* data_;
};

}  // namespace interop::cuda
