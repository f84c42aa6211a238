/// What keeps the stack of nested calls small.
///
/// Reading an array runs foreign Python (`__dlpack__`, an `export` of `interop.register`), and so may making a result.
/// That may call interop again, as deep as Python's recursion limit allows. So nothing large is on the stack until a
/// call has read its arrays and made its result.
#pragma once

#include <cstddef>
#include <memory>

namespace interop::bindings {

/// Runs `body`, which puts something large on the stack, on a frame of its own: not on that of a caller whose arrays
/// are yet to be read.
template <class Body>
[[gnu::noinline]] auto on_own_frame(Body&& body) {
  return body();
}

/// An array of a size known at run time; for a few there is room without an allocation.
template <class T>
class Room {
 public:
  explicit Room(int size)
      : many_(size > kInside ? new T[static_cast<std::size_t>(size)] : nullptr), at_(many_ ? many_.get() : inside_) {}
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  T* data() { return at_; }
  const T* data() const { return at_; }
  T& operator[](int i) { return at_[i]; }
  const T& operator[](int i) const { return at_[i]; }

 private:
  static constexpr int kInside = 24;
  T inside_[kInside];
  const std::unique_ptr<T[]> many_;
  T* const at_;
};

}  // namespace interop::bindings
