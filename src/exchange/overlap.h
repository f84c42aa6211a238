/// Do two arrays share memory?
#pragma once

#include <interop/tensor.h>

namespace interop::exchange {

/// Exact: NumPy's solver is asked where the byte ranges meet, so interleaved views of one array do not count.
/// True where even that cannot tell in a bounded time.
bool share_memory(const DLTensor& x, const DLTensor& y);

}  // namespace interop::exchange
