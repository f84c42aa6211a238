/// What a call would do, in words and figures, for `interop.explain`.
#pragma once

#include "exchange/call.h"
#include "exchange/python.h"

namespace interop::exchange {

/// All of the record that does not depend on the operation. `call` only looks, and its outputs have been asked for.
nb::dict explain(const Call& call);

}  // namespace interop::exchange
