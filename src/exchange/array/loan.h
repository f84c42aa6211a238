/// Memory that a caller lends for one call of a function, as XLA does.
#pragma once

#include "exchange/array/readers.h"

typedef struct CUstream_st* cudaStream_t;

namespace interop::exchange {

/// The loan of all arrays of one call. They are ready on the lender's stream, which waits in turn for all work on them.
/// Once the call has returned they cannot be used. The GIL is held.
class Loan {
 public:
  /// Of memory of CUDA device `gpu`, on a stream of the lender's; of host memory with -1 and null.
  Loan(int gpu, cudaStream_t stream) : gpu_(gpu), stream_(stream) {}
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  cudaStream_t stream() const { return stream_; }
  /// Throws BufferError, for the array of that label, where the call has returned.
  void check(const std::string& label) const;
  /// Work on the memory was queued on `used`, whose context is current.
  void used_on(cudaStream_t used) const;
  /// A consumer on `reader` gets the memory, and may queue work until the call returns.
  void shown_to(cudaStream_t reader);
  /// Takes the memory back: the lender's stream waits for that of every consumer.
  void end();

 private:
  const int gpu_;
  const cudaStream_t stream_;
  bool is_over_ = false;
  std::vector<cudaStream_t> default_readers_;  // which live for ever
  Readers readers_;
};

/// An `interop.Array` on lent memory.
nb::object lent_array(const DLTensor& tensor, int gpu, bool read_only, std::shared_ptr<Loan> loan);

}  // namespace interop::exchange
