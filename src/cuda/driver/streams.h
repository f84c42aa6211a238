/// Contexts, streams and events, as the memory needs them, too. Private to src/cuda/driver.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "cuda/driver/driver_api.h"

namespace interop::cuda {

/// The primary context of a device, retained on first use.
CUcontext primary_context(const DriverApi& api, int device);

/// An event of the current context, without timing.
CUevent new_event(const DriverApi& api);

/// Every stream that own_stream() has made, with an event to mark a point in it. None is ever destroyed.
struct OwnStream {
  std::uint64_t context_id;
  CUstream stream;
  CUevent event;
};
struct OwnStreams {
  std::mutex mutex;
  std::vector<OwnStream> entries;
};
OwnStreams& own_streams();

}  // namespace interop::cuda
