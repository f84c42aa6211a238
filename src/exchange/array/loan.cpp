/// Memory that a caller lends for one call of a function.
#include "exchange/array/loan.h"

#include <algorithm>

namespace interop::exchange {

void Loan::check(const std::string& label) const {
  if (!is_over_) return;
  throw BufferError(label + ": the memory was lent to a function of interop.jax.call, which has returned; accepted: " +
                    "interop.copy(x) in the function, or its result");
}

void Loan::used_on(cudaStream_t used) const {
  if (stream_ && !is_over_) cuda::wait_stream(stream_, used);
}

void Loan::shown_to(cudaStream_t reader) {
  if (reader == stream_) return;
  const bool is_default = reader == cuda::kLegacyStream || reader == cuda::kPerThreadStream;
  if (!is_default) return readers_.note(reader, gpu_);
  if (std::find(default_readers_.begin(), default_readers_.end(), reader) == default_readers_.end()) {
    default_readers_.push_back(reader);
  }
}

void Loan::end() {
  is_over_ = true;
  if (!stream_) return;
  const cuda::DeviceGuard guard(gpu_);
  for (cudaStream_t reader : default_readers_) cuda::wait_stream(stream_, reader);
  for (cudaStream_t reader : readers_.streams()) cuda::wait_stream(stream_, reader);
  readers_ = Readers();
}

}  // namespace interop::exchange
