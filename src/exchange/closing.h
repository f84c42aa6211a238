/// Calls of other threads while the interpreter ends.
#pragma once

namespace interop::exchange {

/// Stands in every public function that calls Python, as its first statement.
///
/// Python ends a daemon thread by unwinding its stack at the next moment it asks for the GIL. C++ frames would then
/// drop references without the GIL, and crash. So at exit the calls under way are waited for, and other threads that
/// make a new one sleep for ever instead.
class CallGuard {
 public:
  CallGuard();
  ~CallGuard();
  CallGuard(const CallGuard&) = delete;
  CallGuard& operator=(const CallGuard&) = delete;
};

/// No more calls by other threads than this one; waits, no longer than `seconds`, for those under way. Without the GIL.
void close_calls(double seconds);

}  // namespace interop::exchange
