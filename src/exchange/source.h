/// Where in the user's program a transfer comes from.
#pragma once

#include <interop/profile.h>

namespace interop::exchange {

/// What this thread runs: the public function, and who called it from outside the package. `function` is the one that
/// is known already, or null. Any thread may call it, with or without the GIL; it runs no Python code. Nothing is
/// known of a thread that never ran Python, as XLA's.
profile::Source find_source(const char* function);

}  // namespace interop::exchange
