/// The arrays that interop has made views of, of libraries that count the writes to an array (torch's version counter).
/// A write through such a view, or through whatever was made from it, counts as a write to the array.
#pragma once

#include <atomic>

#include "exchange/operand.h"

namespace interop::exchange {

namespace detail {
extern std::atomic<size_t> shown_count;
}

/// Are there any such arrays? For paths that should cost nothing if there are none.
inline bool any_shown() { return detail::shown_count.load(std::memory_order_relaxed) > 0; }

/// Notes that `tensor` is memory of `array`, which lives at least until `forget_shown`. Returns the note's number.
uint64_t note_shown(const Route& route, nanobind::handle array, const DLTensor& tensor);
/// From any thread, with or without the GIL.
void forget_shown(uint64_t number) noexcept;

/// The arrays that share memory with `tensor`. Holds the GIL.
std::vector<Shown> find_shown(const DLTensor& tensor);

}  // namespace interop::exchange
