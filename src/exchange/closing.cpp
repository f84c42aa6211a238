/// Calls of other threads while the interpreter ends.
#include "exchange/closing.h"

#include <pthread.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>

#include "exchange/python.h"

namespace interop::exchange {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<int> calls{0};
std::atomic<bool> closed{false};
std::thread::id closer;  // this and `end` are written before `closed`
Clock::time_point end;

thread_local int depth = 0;  // of the calls that this thread is in

// A forked child has one thread, and an interpreter that goes on.
const int registered = pthread_atfork(nullptr, nullptr, [] {
  calls.store(depth > 0 ? 1 : 0);
  closed.store(false);
});

bool is_others_after_close() { return closed.load() && std::this_thread::get_id() != closer; }

void nap() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

/// Until the interpreter is gone, which in most programs it is at once; in some, a handler at exit waits for this thread.
void wait_for_end() {
  PyThreadState* const state = PyEval_SaveThread();
  while (Clock::now() < end && !interpreter_is_gone()) nap();
  if (interpreter_is_gone()) sleep_for_ever();
  PyEval_RestoreThread(state);
}

}  // namespace

CallGuard::CallGuard() {
  if (depth > 0) {  // part of a call under way
    ++depth;
    return;
  }
  calls.fetch_add(1);
  if (is_others_after_close()) {
    calls.fetch_sub(1);
    wait_for_end();
    calls.fetch_add(1);
  }
  depth = 1;
}

CallGuard::~CallGuard() {
  if (--depth == 0) calls.fetch_sub(1, std::memory_order_release);
}

Unwaited::Unwaited() { calls.fetch_sub(1); }
Unwaited::~Unwaited() { calls.fetch_add(1); }

void close_calls(Clock::time_point until) {
  closer = std::this_thread::get_id();
  end = until;
  closed.store(true);
  while (calls.load() > 0 && Clock::now() < until) nap();
}

void refuse_after_close(const char* function, const char* library) {
  if (!is_others_after_close()) return;
  throw std::runtime_error(std::string(function) + ": the interpreter is shutting down, and a thread inside " + library +
                           " would abort it; accepted: calls of the main thread, or before the exit");
}

void sleep_for_ever() {
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

}  // namespace interop::exchange
