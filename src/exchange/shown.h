/// Arrays that interop has made views of, of libraries that count the writes to an array (torch's version counter): a
/// write through such a view, or through whatever was made of it, counts as a write to the array.
#pragma once

#include <atomic>

#include "exchange/operand.h"

namespace interop::exchange {

namespace shown {
extern std::atomic<size_t> count;
}

/// Are there any at all? For paths that should cost nothing where there are none.
inline bool any_shown() { return shown::count.load(std::memory_order_relaxed) > 0; }

/// Notes that `range` is memory of `array`, which lives at least until `forget_shown`. Returns the note's number.
uint64_t note_shown(const Route& route, nanobind::handle array, ByteRange range);
/// From any thread, with or without the GIL.
void forget_shown(uint64_t number) noexcept;

/// The arrays that have memory in `range`. Holds the GIL.
std::vector<Shown> find_shown(ByteRange range);

}  // namespace interop::exchange
