/// Keeps imported arrays alive until the GPU has finished with them: one thread, started when first needed.
#include "exchange/reaper.h"

#include <interop/profile.h>
#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

namespace interop::exchange {
namespace {

struct Entry {
  cuda::Event event;  // none: nothing to wait for
  int device = 0;
  std::vector<Held> held;
  bool behind_known_streams =
      false;  // the event is yet to be recorded: by the thread, which can wait for a capture to end
  std::vector<cudaStream_t> readers;  // to be waited for as well
};

constexpr int kMostAtOnce = 1000;
// What is handed over meanwhile is given back with it: where the GIL changes hands, that costs more than a call.
constexpr auto kGathering = std::chrono::microseconds(200);
constexpr auto kCapturePoll = std::chrono::milliseconds(5);

struct Reaper {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Entry> entries;  // oldest first
  size_t count = 0;           // owners in `entries` and in the thread's hands
  bool running = false;
  bool idle = false;  // the thread waits for an entry
  bool stopping = false;
};

// Never destroyed: the thread may outlive static destruction. A forked child starts with a new, empty one; what the
// parent held stays the parent's.
Reaper* reaper = new Reaper;

const int registered = pthread_atfork(nullptr, nullptr, [] { reaper = new Reaper; });

/// Leaks what is held without touching Python or the producer.
void leak(Entry& entry) {
  for (Held& held : entry.held) {
    held.object.release();
    held.release.release();
  }
}

/// The oldest entry, if the GPU has finished with it.
std::optional<Entry> take_done(Reaper& state) {
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (state.entries.empty() || state.entries.front().behind_known_streams) return std::nullopt;
  Entry& oldest = state.entries.front();
  try {
    if (oldest.event) {
      const cuda::DeviceGuard guard(oldest.device);
      if (!oldest.event.done()) return std::nullopt;
    }
  } catch (const CudaError&) {
    // A device fault: nothing will use the memory any more.
  }
  Entry entry = std::move(oldest);
  state.entries.pop_front();
  return entry;
}

/// Gives back this entry, and all others that are done by now. One at a time would be too slow: a thread may let the
/// GIL go only a few hundred times a second. Returns how many owners were given back.
size_t give_back(Reaper& state, Entry entry) {
  std::vector<Entry> done;
  done.push_back(std::move(entry));
  while (done.size() < kMostAtOnce) {
    std::optional<Entry> next = take_done(state);
    if (!next) break;
    done.push_back(std::move(*next));
  }
  size_t owners = 0;
  const nb::gil_scoped_acquire gil;
  for (Entry& each : done) {
    owners += each.held.size();
    each.held.clear();
  }
  return owners;
}

void run(Reaper& state) {
  profile::mark_background();
  std::unique_lock<std::mutex> lock(state.mutex);
  while (true) {
    state.idle = true;
    state.changed.wait(lock, [&] { return !state.entries.empty() || state.stopping; });
    state.idle = false;
    if (state.entries.empty()) break;
    state.changed.wait_for(lock, kGathering, [&] { return state.stopping; });
    Entry entry = std::move(state.entries.front());
    state.entries.pop_front();
    lock.unlock();
    size_t owners = entry.held.size();
    try {
      if (entry.behind_known_streams) {
        entry.event = cuda::Event::of_known_streams(entry.device, entry.readers);
        if (!entry.event) {  // a capture prevents that: the others first
          lock.lock();
          state.entries.push_back(std::move(entry));
          state.changed.wait_for(lock, kCapturePoll);
          continue;
        }
      }
      if (entry.event) {
        const cuda::DeviceGuard guard(entry.device);
        entry.event.synchronize();
      }
    } catch (const CudaError&) {
      // A device fault: nothing will use the memory any more.
    }
    if (interpreter_is_gone()) {
      leak(entry);
    } else {
      owners = give_back(state, std::move(entry));
    }
    lock.lock();
    state.count -= owners;
    state.changed.notify_all();
  }
  state.running = false;
  state.changed.notify_all();
}

/// Hands an entry to the thread, and starts it if needed.
void enqueue(Entry entry) {
  Reaper& state = *reaper;
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.count += entry.held.size();
  state.entries.push_back(std::move(entry));
  if (!state.running && !state.stopping) {
    state.running = true;
    std::thread(run, std::ref(state)).detach();
  }
  if (state.idle) state.changed.notify_all();
}

/// CUDA calls this when a graph is gone, on a thread of its own, where neither CUDA nor Python may be called.
void graph_is_gone(void* data) {
  auto* held = static_cast<std::vector<Held>*>(data);
  give_back_later(std::move(*held));
  delete held;  // emptied: no Python object is touched
}

}  // namespace

void hold_for(cudaStream_t stream, int device, std::vector<Held> held) {
  const profile::Stopwatch watch;
  auto owned = std::make_unique<std::vector<Held>>(std::move(held));
  if (cuda::give_to_graph(stream, owned.get(), &graph_is_gone)) {
    owned.release();
    return watch.note(profile::What::hold, "until a graph is gone", 0);
  }
  enqueue({cuda::Event(stream), device, std::move(*owned), false, {}});
  watch.note(profile::What::hold, "until a stream's work is done", 0);
}

void hold_behind_known_streams(int device, std::vector<Held> held, std::vector<cudaStream_t> readers) {
  const profile::Stopwatch watch;
  enqueue({cuda::Event(), device, std::move(held), true, std::move(readers)});
  watch.note(profile::What::hold, "until all streams' work is done", 0);
}

void give_back_later(std::vector<Held> held) { enqueue({cuda::Event(), 0, std::move(held), false, {}}); }

size_t held_count() {
  const std::lock_guard<std::mutex> lock(reaper->mutex);
  return reaper->count;
}

void stop_reaper(std::chrono::steady_clock::time_point end) {
  Reaper& state = *reaper;
  std::unique_lock<std::mutex> lock(state.mutex);
  state.stopping = true;
  state.changed.notify_all();
  state.changed.wait_until(lock, end, [&] { return !state.running; });
}

}  // namespace interop::exchange
