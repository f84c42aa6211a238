/// Keeps imported arrays alive until the GPU has finished with them: one thread, started when first needed.
#include "exchange/reaper.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace interop::exchange {
namespace {

struct Entry {
  cuda::Event event;
  int device = 0;
  std::vector<Held> held;
};

struct Reaper {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Entry> entries;  // oldest first
  size_t count = 0;           // owners in `entries` and in the thread's hands
  bool running = false;
  bool stopping = false;
};

// Never destroyed: the thread may outlive static destruction. A forked child starts with a new, empty one; what the
// parent held stays the parent's.
Reaper* reaper = new Reaper;

void start_afresh_in_child() { reaper = new Reaper; }

/// Leaks what is held without touching Python or the producer.
void leak(Entry& entry) {
  for (Held& held : entry.held) {
    held.object.release();
    held.release.release();
  }
}

void give_back(Entry entry) {
  const nb::gil_scoped_acquire gil;
  entry.held.clear();
}

void run(Reaper& state) {
  std::unique_lock<std::mutex> lock(state.mutex);
  while (true) {
    state.changed.wait(lock, [&] { return !state.entries.empty() || state.stopping; });
    if (state.entries.empty()) break;
    Entry entry = std::move(state.entries.front());
    state.entries.pop_front();
    lock.unlock();
    const size_t owners = entry.held.size();
    try {
      const cuda::DeviceGuard guard(entry.device);
      entry.event.synchronize();
    } catch (const CudaError&) {
      // A device fault: nothing will use the memory any more.
    }
    if (interpreter_is_gone()) {
      leak(entry);
    } else {
      give_back(std::move(entry));
    }
    lock.lock();
    state.count -= owners;
    state.changed.notify_all();
  }
  state.running = false;
  state.changed.notify_all();
}

}  // namespace

void hold_until(cuda::Event event, int device, std::vector<Held> held) {
  static const int registered = pthread_atfork(nullptr, nullptr, &start_afresh_in_child);
  (void)registered;
  Reaper& state = *reaper;
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.count += held.size();
  state.entries.push_back({std::move(event), device, std::move(held)});
  if (!state.running) {
    state.running = true;
    std::thread(run, std::ref(state)).detach();
  }
  state.changed.notify_all();
}

size_t held_count() {
  const std::lock_guard<std::mutex> lock(reaper->mutex);
  return reaper->count;
}

void stop_reaper(double seconds) {
  Reaper& state = *reaper;
  std::unique_lock<std::mutex> lock(state.mutex);
  state.stopping = true;
  state.changed.notify_all();
  state.changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return !state.running; });
}

}  // namespace interop::exchange
