/// Captures of streams into CUDA graphs, and the graphs that are launched of them. Knows no Python.
#pragma once

#include <interop/cuda/driver.h>

#include <cstdint>

namespace interop::cuda {

// ---- captures: the current context is the streams' own ----

/// The id of the capture that `stream` is a part of, which no other capture of the process ever has; 0 for none. Throws
/// ValueError for one that has failed, and for the legacy stream while a capture forbids it.
std::uint64_t capture_id(cudaStream_t stream);
enum class CaptureState { none, active, failed };
CaptureState capture_state(cudaStream_t stream);
/// A non-blocking stream of this thread on the current device that is there to be captured; made on first use, kept.
cudaStream_t stream_to_capture();
/// From now on `own_stream` of this thread on the current device is `stream`, which is captured; null: its own again.
void capture_own_stream(cudaStream_t stream);
/// Is `own_stream` of this thread, on whichever device, one that is captured? Never throws.
bool own_stream_is_captured();
/// The stream that `own_stream` is where none is captured.
cudaStream_t lasting_stream();

/// Begins a capture, in which this thread may do all that does not wait for `stream`, and other threads anything.
void begin_capture(cudaStream_t stream);
/// Ends the capture of `stream`, and drops what it has; nothing where there is none. Never throws.
void drop_capture(cudaStream_t stream) noexcept;

// ---- graphs ----

/// A graph that can be launched.
class GraphExec {
 public:
  /// Ends the capture of `stream`. Throws CudaError where it has failed, or has forked and not joined.
  explicit GraphExec(cudaStream_t stream);
  ~GraphExec();
  GraphExec(const GraphExec&) = delete;
  GraphExec& operator=(const GraphExec&) = delete;
  void launch(cudaStream_t stream) const;

 private:
  void* exec_ = nullptr;
};

}  // namespace interop::cuda
