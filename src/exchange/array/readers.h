/// The streams that may still read memory of ours when its last owner releases it.
#pragma once

#include <interop/cuda/memory.h>

#include <memory>
#include <vector>

#include "exchange/python.h"
#include "exchange/reaper.h"

namespace interop::exchange {

/// The streams to which one block of device memory was exported. A consumer gives memory back as soon as its own object
/// is gone, which may be before its queued kernels are done. So the memory is freed behind the streams noted here.
///
/// A stream can be waited for only while it exists; the driver crashes on one that was destroyed. So a stream is noted
/// if it lives for ever (torch's pool), or if its library's object can be kept (CuPy's). Others cannot be covered.
class Readers {
 public:
  /// Notes `stream`, which a consumer named in `__dlpack__(stream=)`. The caller holds the GIL, which serialises
  /// callers, and owns a share of the memory.
  void note(cudaStream_t stream, int device);
  /// The noted streams; valid while this object lives. The caller holds the GIL.
  const std::vector<cudaStream_t>& streams() const { return streams_; }
  /// Frees `memory` of `device` behind the noted streams and its last use, when its last owner releases it. Any thread,
  /// with or without the GIL; never throws.
  void release(void* memory, int device, std::shared_ptr<const cuda::Event> last_use) noexcept;
  /// The same of a block: gives it back.
  void release(cuda::Block* block, std::shared_ptr<const cuda::Event> last_use) noexcept;
  /// Gives the owners of foreign memory on `device` back behind the noted streams, like `release`.
  void hold(std::vector<Held> owners, int device);

 private:
  bool has(cudaStream_t stream) const;
  void let_go(bool is_freed) noexcept;

  std::vector<cudaStream_t> streams_;
  std::vector<nb::object> kept_;
};

}  // namespace interop::exchange
