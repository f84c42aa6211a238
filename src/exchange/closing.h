/// Calls of other threads while the interpreter ends.
#pragma once

#include <chrono>

namespace interop::exchange {

// Once the interpreter is gone, Python ends a thread when it next asks for the GIL. Our own frames, and those of NumPy,
// stop there (unwinding.cpp). A thread inside torch or JAX would abort the process, and one inside CUDA would meet a
// driver that is being unloaded. So at exit `close_calls` waits for running calls into these libraries, and no other
// thread begins one.

/// The first statement of every public function that enters such a library. A call lasts as long as this object.
class CallGuard {
 public:
  CallGuard();
  ~CallGuard();
  CallGuard(const CallGuard&) = delete;
  CallGuard& operator=(const CallGuard&) = delete;
};

/// Announces that the call enters torch, JAX, CUDA or the like, so that the exit waits for the call's end. After
/// `close_calls`, it throws RuntimeError in every other thread, once the time that was given there is over. Holds the
/// GIL.
void enter_foreign(const char* function, const char* library);

/// Within a call, surrounds what may take long without the GIL. The exit does not wait for that.
class Unwaited {
 public:
  Unwaited();
  ~Unwaited();
  Unwaited(const Unwaited&) = delete;
  Unwaited& operator=(const Unwaited&) = delete;
};

/// Begins the exit: waits for calls of other threads, until `until` at the latest. Does not hold the GIL.
void close_calls(std::chrono::steady_clock::time_point until);

/// For a thread that needs the GIL after the interpreter is gone.
[[noreturn]] void sleep_for_ever();

}  // namespace interop::exchange
