/// Calls of other threads while the interpreter ends.
#pragma once

#include <chrono>

namespace interop::exchange {

// Once the interpreter is gone, Python ends a thread at the next moment it asks for the GIL. Our own frames, and those
// of NumPy, stop there (unwinding.cpp). A thread inside torch or JAX would abort the process, and one inside CUDA meets
// a driver that is being unloaded. So at exit `close_calls` waits for the calls of these that are under way, and no
// other thread begins one.

/// Stands in every public function that enters such a library, as its first statement: a call lasts as long as it does.
class CallGuard {
 public:
  CallGuard();
  ~CallGuard();
  CallGuard(const CallGuard&) = delete;
  CallGuard& operator=(const CallGuard&) = delete;
};

/// The call is about to enter torch, JAX, CUDA or the like: the exit waits for its end. In another thread than that of
/// `close_calls` and after it, RuntimeError, once the end that was given there has come. Holds the GIL.
void enter_foreign(const char* function, const char* library);

/// Within a call, around what may take long without the GIL: the exit does not wait for it.
class Unwaited {
 public:
  Unwaited();
  ~Unwaited();
  Unwaited(const Unwaited&) = delete;
  Unwaited& operator=(const Unwaited&) = delete;
};

/// Begins the end: waits for calls of other threads, until `until` at the latest. Without the GIL.
void close_calls(std::chrono::steady_clock::time_point until);

/// What a thread does that needs the GIL once there is no interpreter.
[[noreturn]] void sleep_for_ever();

}  // namespace interop::exchange
