/// `__cuda_array_interface__`, versions 2 and 3.
#pragma once

#include "exchange/route.h"

namespace interop::exchange {

/// Completes the operand from the interface's dictionary, its stream included. Throws BufferError for what is
/// malformed, TypeError for a mask or a dtype that it cannot express.
void read_cai(Operand& operand);

}  // namespace interop::exchange
