/// JAX arrays on memory of ours.
#pragma once

#include "exchange/python.h"

namespace interop::exchange {

/// The JAX array of an `interop.Array`, by `interop._libraries.jax.jax_array`: of a result, or what
/// `jax.numpy.asarray` makes of it.
nb::object jax_array(nb::handle array, bool is_result);

}  // namespace interop::exchange
