/// Who computes a call.
#pragma once

#include <interop/call.h>

namespace interop::exchange {

/// Who computes a call.
enum class Computes : uint8_t {
  interop,  ///< this package, on the host or on a GPU
  jax       ///< JAX, in a primitive of `interop.jax`, on XLA's stream
};

/// Decides who computes a call, by the types of its arrays alone: no array is read before, and none is refused.
///
/// A library that traces functions computes the calls of its own arrays alone. `execution` takes such a call back,
/// unless one of the arrays is traced. Throws TypeError, naming the argument, for what is no array.
Computes who_computes(const char* function, const Argument* arrays, int count, nanobind::handle execution);

/// Is it an array of JAX's that has values, not a tracer?
bool is_concrete_in_jax(nanobind::handle x);

}  // namespace interop::exchange
