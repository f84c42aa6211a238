/// The device memory of a call whose host arrays are computed on the GPU, and the copies there and back.
#pragma once

#include <interop/cuda/driver.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace interop::exchange {

/// Small arrays lie side by side in a block that is kept from call to call. They pass through its page-locked half: one
/// copy takes all of them there, one brings all results back, and the host waits once. Large arrays have memory and
/// copies of their own, which the driver cuts into pieces. No method holds the GIL, which `send` and `finish` must not
/// be called with.
class Staging {
 public:
  /// Larger arrays have copies of their own.
  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;

  /// The device is current for the lifetime.
  Staging(int device, cudaStream_t stream) : device_(device), stream_(stream) {}
  /// Waits for the work, where `finish` has not.
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Device memory for an array that is sent or fetched, or both. What is sent is best placed first, and what is
  /// fetched last, as the bytes in between are copied, too. Null for 0 bytes.
  void* place(std::size_t bytes);
  /// Device memory that is neither. Null for 0 bytes.
  void* workspace(std::size_t bytes);
  /// Copies `host` to memory of `place`: it is read now, and queued now or in `flush`.
  void send(void* device, const void* host, std::size_t bytes);
  void flush();
  /// Makes `finish` copy from memory of `place`.
  void fetch(void* host, const void* device, std::size_t bytes) {
    if (bytes > 0) fetched_.push_back({host, device, bytes});
  }
  /// Waits for the work, and copies what was asked for: the host's memory is written once nothing can fail any more,
  /// but for large arrays.
  void finish();

 private:
  struct Fetched {
    void* host;
    const void* device;
    std::size_t bytes;
  };
  /// A part of the block: [begin, end).
  struct Range {
    std::size_t begin = cuda::StagingBlock::kBytes, end = 0;
    void add(std::size_t at, std::size_t bytes);
  };

  cuda::StagingBlock* block_for(std::size_t bytes);
  bool in_block(const void* device) const;
  std::size_t offset(const void* device) const { return static_cast<std::size_t>(as_char(device) - block_->device); }
  static const char* as_char(const void* pointer) { return static_cast<const char*>(pointer); }
  void* allocate(std::size_t bytes);

  const int device_;
  const cudaStream_t stream_;
  cuda::StagingBlock* block_ = nullptr;
  bool has_asked_ = false;  // for a block: there may be none
  bool has_finished_ = false;
  std::size_t low_ = 0, high_ = cuda::StagingBlock::kBytes;  // what is free of the block lies between
  Range unsent_;
  std::vector<Fetched> fetched_;
  std::vector<std::shared_ptr<void>> large_;
};

}  // namespace interop::exchange
