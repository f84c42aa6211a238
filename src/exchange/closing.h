/// Calls of other threads while the interpreter ends.
#pragma once

#include <chrono>

namespace interop::exchange {

/// Stands in every public function that calls Python, as its first statement.
///
/// Once the interpreter is gone, Python ends a thread at the next moment it asks for the GIL. Our own frames stop there
/// (unwinding.cpp); those of torch and JAX abort the process. So `close_calls`, at exit, waits for calls under way, and
/// holds back what another thread begins after it: till the interpreter is gone, or, where a handler at exit waits for
/// that thread, until the end it was given. Then the call runs, or for those libraries is refused.
class CallGuard {
 public:
  CallGuard();
  ~CallGuard();
  CallGuard(const CallGuard&) = delete;
  CallGuard& operator=(const CallGuard&) = delete;
};

/// Within a call, around what may take long, without the GIL: the exit does not wait for it.
class Unwaited {
 public:
  Unwaited();
  ~Unwaited();
  Unwaited(const Unwaited&) = delete;
  Unwaited& operator=(const Unwaited&) = delete;
};

/// Begins the end: waits for the calls of other threads under way, until `until` at the latest. Without the GIL.
void close_calls(std::chrono::steady_clock::time_point until);

/// After `close_calls`, in another thread: a RuntimeError of `function`, which is about to call a library of C++.
void refuse_after_close(const char* function, const char* library);

/// What a thread does that needs the GIL once there is no interpreter.
[[noreturn]] void sleep_for_ever();

}  // namespace interop::exchange
