/// What calls of concrete JAX arrays run, found without Python's interpreter.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace interop::bindings {

/// Computes an operation, or a split expression, of JAX arrays alone by what `interop.jax._door` has compiled for their
/// dtypes. Returns a null object for all that is left to the door itself: traced and weakly typed arrays, arrays on
/// different devices, dtypes that JAX is asked about, and calls that fail.
nb::object compute_planned(nb::handle operation, const nb::handle* arrays, int count);

}  // namespace interop::bindings
