/// Calls of other threads while the interpreter ends.
#include "exchange/closing.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "exchange/python.h"

namespace interop::exchange {
namespace {

std::atomic<int> calls{0};
std::atomic<bool> closed{false};
std::thread::id closer;  // written before `closed`

thread_local int depth = 0;  // of the calls that this thread is in

// A forked child has one thread, which is in a call only if that is where it forked.
const int registered = pthread_atfork(nullptr, nullptr, [] { calls.store(depth > 0); });

[[noreturn]] void sleep_for_ever() {
  PyEval_SaveThread();  // and never asks for the GIL again
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

}  // namespace

CallGuard::CallGuard() {
  if (depth++ > 0) return;  // part of a call under way
  calls.fetch_add(1);
  if (!closed.load() || std::this_thread::get_id() == closer) return;
  calls.fetch_sub(1);
  sleep_for_ever();
}

CallGuard::~CallGuard() {
  if (--depth == 0) calls.fetch_sub(1, std::memory_order_release);
}

void close_calls(double seconds) {
  closer = std::this_thread::get_id();
  closed.store(true);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (calls.load() > 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace interop::exchange
