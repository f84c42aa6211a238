/// The DLPack C exchange API of `interop.Array`.
#pragma once

#include <memory>
#include <vector>

#include "exchange/python.h"
#include "exchange/reaper.h"

typedef struct CUstream_st* cudaStream_t;

namespace interop::exchange {

/// While it lives, consumers of the table in this thread work on `stream` of `device`, which a call has chosen, and not
/// on interop's own. The GIL is held as it is used.
class WorkingStream {
 public:
  WorkingStream(int device, cudaStream_t stream);
  ~WorkingStream();
  WorkingStream(const WorkingStream&) = delete;
  WorkingStream& operator=(const WorkingStream&) = delete;

  int device() const { return device_; }
  cudaStream_t stream() const { return stream_; }

  /// Makes the stream wait for an `interop.Array`, which a consumer gets.
  void lend(PyObject* array);
  /// Keeps memory that a consumer has allocated: it may let go of it before the work on it is done.
  void keep(std::shared_ptr<void> memory);
  /// Once the work is queued: notes it of all that was lent, and keeps what was allocated until it is done.
  void finish();

 private:
  struct Lent {
    nanobind::object array;
    unsigned uses;  // that the stream has waited for
  };

  const int device_;
  const cudaStream_t stream_;
  WorkingStream* const outer_;
  std::vector<Lent> lent_;
  std::vector<Held> kept_;
};

/// The value of `interop.Array.__dlpack_c_exchange_api__`. On a GPU its consumers work on interop's own stream of the
/// thread and device, or on that of a `WorkingStream`, which is made to wait for each array that they ask for.
nb::object own_exchange_api();

}  // namespace interop::exchange
