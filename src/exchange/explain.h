/// What a call would do, in words and figures, for `interop.explain`.
#pragma once

#include <interop/call.h>

#include "exchange/python.h"

namespace interop::exchange {

/// All of the record that does not depend on the operation. `call` only looks, and its output has been asked for.
nb::dict explain(const Call& call, const DLTensor& output);

}  // namespace interop::exchange
