/// Memory on its way back: behind which streams it is used again. Private to src/cuda/driver.
#pragma once

#include <interop/cuda/memory.h>

#include "cuda/driver/driver_api.h"

namespace interop::cuda {

/// The primary context of a device, current while this lives, whatever was before.
class PrimaryContext {
 public:
  PrimaryContext(const DriverApi& api, int device);
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

 private:
  const DriverApi& api_;
  bool is_pushed_ = false;
};

/// Tries again what a capture has held up before, if there is any. Never throws.
void release_pending(const DriverApi& api, int device) noexcept;

/// The memory pool of a device, made on first use.
CUmemoryPool device_pool(const DriverApi& api, int device);

/// The device for which a block was taken first.
int device_of(const Block* block) noexcept;
/// Keeps `block` for its next user behind what is queued on `stream`, of the primary context of its device. Never
/// throws.
void keep_block(Block* block, CUstream stream) noexcept;

}  // namespace interop::cuda
