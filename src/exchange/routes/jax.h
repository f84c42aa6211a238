/// JAX arrays on memory of ours.
#pragma once

#include "exchange/python.h"

namespace interop::exchange {

/// The JAX array of an `interop.Array`, by `interop._libraries.jax.jax_array`: of a result, or what
/// `jax.numpy.asarray` makes of it.
nb::object jax_array(nb::handle array, bool is_result);

/// While it lives, this thread runs a function that XLA calls, and that XLA waits for.
class WithinXla {
 public:
  WithinXla();
  ~WithinXla();
  WithinXla(const WithinXla&) = delete;
  WithinXla& operator=(const WithinXla&) = delete;
};

/// Enters JAX for the function of that name. Throws RuntimeError in such a thread, where JAX might wait for XLA.
void enter_jax(const char* function);

}  // namespace interop::exchange
