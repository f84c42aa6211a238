/// New torch tensors: torch's own in every way, as `torch.empty_strided` makes them.
#pragma once

#include "exchange/route.h"

namespace interop::exchange {

/// A new compact tensor from torch's allocator, on torch's current stream. Throws torch's own error.
Made new_tensor(const Shape& shape, DLDataType dtype, DLDevice device);

/// By which of torch's functions, for `explain`.
const char* new_tensor_way();

}  // namespace interop::exchange
