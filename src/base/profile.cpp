/// What profiles count.
#include <interop/profile.h>

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace interop::profile {
namespace {

struct Running {
  std::mutex mutex;  // of the tallies, too; who holds it calls nothing of Python or CUDA
  std::vector<std::shared_ptr<Tally>> tallies;
};

// Never destroyed: threads may outlive static destruction. A forked child starts with none.
Running* running = new Running;
const int registered = pthread_atfork(nullptr, nullptr, [] {
  running = new Running;
  g_running.store(0);
});

std::atomic<Source (*)(const char*)> source_finder{nullptr};

struct OfThread {
  const char* function = nullptr;
  bool is_background = false;
};
thread_local OfThread of_thread;

void add(Count& to, uint64_t count, uint64_t bytes, double seconds) {
  to.count += count;
  to.bytes += bytes;
  to.seconds += seconds;
}

}  // namespace

std::atomic<int> g_running{0};

void start(std::shared_ptr<Tally> tally) {
  const std::lock_guard<std::mutex> lock(running->mutex);
  running->tallies.push_back(std::move(tally));
  g_running.fetch_add(1);
}

void stop(const std::shared_ptr<Tally>& tally) {
  const std::lock_guard<std::mutex> lock(running->mutex);
  auto& tallies = running->tallies;
  const auto found = std::find(tallies.begin(), tallies.end(), tally);
  if (found == tallies.end()) return;
  tallies.erase(found);
  g_running.fetch_sub(1);
}

Tally copy_of(const Tally& tally) {
  const std::lock_guard<std::mutex> lock(running->mutex);
  return tally;
}

void note(What what, const char* kind, uint64_t count, uint64_t bytes, double seconds) {
  Source source;
  if (what == What::transfer) {
    if (const auto finder = source_finder.load()) source = finder(of_thread.function);  // may wait for Python's lock
  }
  const std::lock_guard<std::mutex> lock(running->mutex);
  for (const std::shared_ptr<Tally>& tally : running->tallies) {
    add(tally->counts[{what, kind}], count, bytes, seconds);
    if (what == What::transfer) add(tally->transfers[{source, kind}], count, bytes, seconds);
  }
}

bool Within::enter(const char* function) {
  if (of_thread.function) return false;
  of_thread.function = function;
  return true;
}
void Within::leave() { of_thread.function = nullptr; }

void mark_background() { of_thread.is_background = true; }
bool is_background() { return of_thread.is_background; }

void set_source_finder(Source (*finder)(const char* function)) { source_finder.store(finder); }

}  // namespace interop::profile
