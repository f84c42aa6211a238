/// The variables of an image, and their order: what the host writes and reads, against the kernels' launches on all
/// streams. Private to src/cuda.
#pragma once

#include <interop/cuda/kernel.h>

#include <cstdint>
#include <mutex>
#include <vector>

#include "cuda/driver/driver_api.h"

namespace interop::cuda {

/// Where each stream has come to with the launches of one library's kernels, and with the writes to its variables.
///
/// A launch waits for the last write; a write waits for all launches since the last one, and for that. So launches do
/// not wait for each other. Each capture into a graph has an order of its own, beside that of the streams: what a graph
/// does is ordered by where it is launched. For what was queued outside before, a captured launch or write has the host
/// wait, as a graph cannot.
class VariableOrder {
  /// A point in a stream.
  struct Point {
    std::uint64_t context;
    std::uint64_t stream;   // an id, which no later stream has
    std::uint64_t capture;  // an id, too; 0 outside
    bool everywhere;
    CUevent event;
    std::uint64_t sees = 0;  // the last write that a launch comes behind
    std::uint64_t number = 0;
    bool is_recorded = false;
  };

 public:
  /// One launch, write or read on a stream of the current context, from before it is queued until `queued`. No other
  /// one of this library comes between.
  class Step {
   public:
    enum class Kind { launch, write, read };
    /// Makes `stream` wait. `everywhere`: the variable is managed, one for all devices.
    Step(VariableOrder& order, Kind kind, cudaStream_t stream, bool everywhere);
    /// It is queued: what comes later waits for it.
    void queued();

   private:
    Point* point();

    std::lock_guard<std::mutex> lock_;
    VariableOrder& order_;
    Kind kind_;
    cudaStream_t stream_;
    bool everywhere_;
    std::uint64_t context_, capture_, stream_id_;
    Point* point_ = nullptr;  // of a launch or a write
  };

 private:
  void forget_done(std::uint64_t capture);

  std::mutex mutex_;
  std::vector<Point> launches_;  // of each stream the last one since the last write
  std::vector<Point> writes_;    // of each context and capture the last one
  std::uint64_t count_ = 0;      // of writes
};

}  // namespace interop::cuda
