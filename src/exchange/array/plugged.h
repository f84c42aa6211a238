/// The allocator that a user has plugged in, in place of interop's own pool of device memory.
#pragma once

#include <optional>

#include "exchange/array/array.h"

namespace interop::exchange {

/// Takes a function (bytes, device, stream handle) -> an array with that memory; None takes it out again. Holds the
/// GIL.
void plug_allocator(nb::object allocator);

/// `bytes` > 0 of memory of the current device, which is `gpu`, ordered on `stream`, from that allocator: an array that
/// keeps what the allocator gave. None if none is plugged in. Throws what the allocator throws, and ValueError or
/// TypeError where that is no such memory.
std::optional<Array> plugged_memory(size_t bytes, int gpu, cudaStream_t stream);

}  // namespace interop::exchange
