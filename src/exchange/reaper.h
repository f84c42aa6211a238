/// Keeps imported arrays alive until the GPU has finished with them.
#pragma once

#include <interop/cuda/driver.h>

#include <chrono>

#include "exchange/python.h"
#include "exchange/route.h"

namespace interop::exchange {

/// What is given back later: a Python object, and what its producer wants released.
struct Held {
  nb::object object;
  Release release{nullptr, [](void*) {}};
};

/// Gives `held` back once all that is queued on `stream` of `device` now is done; if the stream is being captured, once
/// the graph is gone. Returns at once; one background thread waits.
void hold_for(cudaStream_t stream, int device, std::vector<Held> held);

/// The same for memory that may be in use on any stream of `device`. It waits for the streams that are known to exist,
/// and for `readers`, which must exist (`cuda::Event::of_known_streams`). Makes no CUDA call itself. Any thread may
/// call it, with or without the GIL.
void hold_behind_known_streams(int device, std::vector<Held> held, std::vector<cudaStream_t> readers);
/// Gives `held` back soon, on the background thread: for threads without the GIL.
void give_back_later(std::vector<Held> held);

/// How many owners are still held. For tests.
size_t held_count();

/// Waits for what is held, until `end` at the latest, then stops the thread and leaks the rest. Run at exit.
void stop_reaper(std::chrono::steady_clock::time_point end);

}  // namespace interop::exchange
