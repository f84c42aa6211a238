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

using ShareHandle = std::array<char, 64>;  ///< of memory, as CUDA writes it

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

/// Flags, of 32 bits each, in memory of the host that several processes map: one sets a flag in a stream, and streams
/// of others wait for it. Unlike with an event of CUDA's, the host may set one, too, where the process has ended.
class SharedFlags {
 public:
  /// Of `bytes` from `memory` on, whole pages, which outlive it. Throws where the system allows none.
  SharedFlags(void* memory, std::size_t bytes);
  /// Streams must not wait for one any more. Call it without the GIL.
  ~SharedFlags();
  SharedFlags(const SharedFlags&) = delete;
  SharedFlags& operator=(const SharedFlags&) = delete;
  /// The flag is 1 once all that is queued on `stream` now is done.
  void set(std::size_t index, cudaStream_t stream) const;
  /// `stream` waits until the flag is 1.
  void make_wait(std::size_t index, cudaStream_t stream) const;

 private:
  std::uintptr_t address_of(std::size_t index) const;  // for the current device

  void* memory_;
  std::size_t bytes_;
  int device_;
};

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
