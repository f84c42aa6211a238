/// Calls of other threads while the interpreter ends.
#include "exchange/closing.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>

#include "exchange/python.h"

namespace interop::exchange {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<int> calls{0};  // those that `enter_foreign` has counted, and that are running
std::atomic<bool> closed{false};
const std::thread::id importer = std::this_thread::get_id();  // mostly the main thread
std::atomic<bool> others_called{false};
constexpr std::chrono::milliseconds kDropping{20};

std::thread::id closer;  // this and `end` are written before `closed`
Clock::time_point end;

/// The state of a thread. It is one object, as each access to thread-local memory is a function call.
struct OfThread {
  int depth = 0;  // of calls
  bool counted = false;
};
thread_local OfThread of_thread;

// A forked child has one thread, and an interpreter that goes on.
const int registered = pthread_atfork(nullptr, nullptr, [] {
  calls.store(of_thread.counted ? 1 : 0);
  closed.store(false);
});

bool is_others_after_close() { return closed.load() && std::this_thread::get_id() != closer; }

void nap() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

/// Sleeps until `end`, then throws. Most programs have ended by then; in some, a handler at exit waits for this thread,
/// or for a lock that it holds.
[[noreturn]] void refuse(const char* function, const char* library) {
  PyThreadState* const state = PyEval_SaveThread();
  while (Clock::now() < end && !interpreter_is_gone()) nap();
  if (interpreter_is_gone()) sleep_for_ever();
  PyEval_RestoreThread(state);
  throw std::runtime_error(
      std::string(function) + ": the interpreter is shutting down, which " + library +
      " does not survive in another thread; accepted: calls of the main thread, or before the exit");
}

}  // namespace

CallGuard::CallGuard() { ++of_thread.depth; }

CallGuard::~CallGuard() {
  OfThread& mine = of_thread;
  if (--mine.depth > 0 || !mine.counted) return;
  mine.counted = false;
  calls.fetch_sub(1, std::memory_order_release);
}

void enter_foreign(const char* function, const char* library) {
  OfThread& mine = of_thread;
  if (mine.counted) return;
  if (std::this_thread::get_id() != importer) others_called.store(true, std::memory_order_relaxed);
  calls.fetch_add(1);
  const bool refused = is_others_after_close();
  mine.counted = mine.depth > 0 && !refused;
  if (!mine.counted) calls.fetch_sub(1);
  if (refused) refuse(function, library);
}

Unwaited::Unwaited() {
  if (of_thread.counted) calls.fetch_sub(1);
}
Unwaited::~Unwaited() {
  if (of_thread.counted) calls.fetch_add(1);
}

void close_calls(Clock::time_point until) {
  closer = std::this_thread::get_id();
  end = until;
  closed.store(true);
  while (calls.load() > 0 && Clock::now() < until) nap();
  // A thread that has just left its call drops the result. For that torch releases the GIL, and would be ended where it
  // takes the GIL again. With this pause the thread reaches its next call, which is refused.
  if (others_called.load()) std::this_thread::sleep_until(std::min(until, Clock::now() + kDropping));
}

void sleep_for_ever() {
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

}  // namespace interop::exchange
