/// Whose streams may still read memory of ours when its last owner lets it go.
#pragma once

#include <interop/cuda/driver.h>

#include <vector>

#include "exchange/python.h"
#include "exchange/reaper.h"

namespace interop::exchange {

/// The streams to which one block of device memory was exported. A consumer gives memory back as soon as its own object
/// is gone, which is before its queued kernels are: so the memory is freed behind the streams noted here.
///
/// A stream can be waited for only while it exists; the driver crashes on one that was destroyed. So a stream is noted
/// if it lives for ever (torch's pool), or if its library's object can be kept (CuPy's). Others cannot be covered.
class Readers {
 public:
  /// Notes `stream`, which a consumer named in `__dlpack__(stream=)`. Holds the GIL, which orders those who note; they
  /// own a share of the memory.
  void note(cudaStream_t stream, int device);
  /// Those noted, while this lives. Holds the GIL, too.
  const std::vector<cudaStream_t>& streams() const { return streams_; }
  /// Frees `memory` of `device` behind all that is noted, when its last owner lets go. Any thread, with or without the
  /// GIL; never throws.
  void release(void* memory, int device) noexcept;
  /// Gives the owners of foreign memory on `device` back behind all that is noted. As `release`.
  void hold(std::vector<Held> owners, int device);

 private:
  bool has(cudaStream_t stream) const;

  std::vector<cudaStream_t> streams_;
  std::vector<nb::object> kept_;
};

}  // namespace interop::exchange
