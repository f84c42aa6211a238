/// The device memory of a call whose host arrays are computed on the GPU, and the copies there and back.
#pragma once

#include <interop/cuda/driver.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace interop::exchange {

/// Small arrays lie in a block that is kept from call to call; large ones have memory of their own. The driver copies
/// between pageable and device memory; where that takes longer, an array passes through the page-locked half of the
/// block. No method needs the GIL, and `send` and `finish`, which may wait, must be called without it.
class Staging {
 public:
  /// The device is current for the lifetime.
  Staging(int device, cudaStream_t stream) : device_(device), stream_(stream) {}
  /// Waits for the work, where `finish` has not. Holds the GIL.
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Device memory, for as long as this lives; null for 0 bytes.
  void* place(std::size_t bytes);
  /// Queues a copy to memory of `place`. Page-locked memory of the caller's is read until `finish` has returned.
  void send(void* device, const void* host, std::size_t bytes);
  /// Makes `finish` copy from memory of `place`. `is_new`: nobody has written to `host` yet.
  void fetch(void* host, const void* device, std::size_t bytes, bool is_new) {
    if (bytes > 0) fetched_.push_back({host, device, bytes, is_new});
  }
  /// Waits for the work, and for the copies that were asked for.
  void finish();

 private:
  struct Fetched {
    void* host;
    const void* device;
    std::size_t bytes;
    bool is_new;
  };

  /// The page-locked memory beside this device memory; null for what does not lie in the block.
  char* beside(const void* device) const;

  const int device_;
  const cudaStream_t stream_;
  cuda::StagingBlock* block_ = nullptr;
  bool has_asked_ = false;  // for a block: there may be none
  bool has_finished_ = false;
  std::size_t used_ = 0;  // of the block
  std::vector<Fetched> fetched_;
  std::vector<std::shared_ptr<void>> large_;
};

}  // namespace interop::exchange
