/// What Python computes: operations on JAX arrays, by JAX, and on host arrays, by NumPy.
#pragma once

#include <interop/call.h>
#include <nanobind/nanobind.h>

namespace interop::bindings {

/// Enters JAX for the function of that name, and gives `interop.jax._door.compute`.
nanobind::handle enter_jax(const char* function);
/// The `stream=` of a call that JAX computes, as an int handle; None if it is None.
nanobind::object stream_for_jax(const char* function, nanobind::handle stream);

/// NumPy computes for another library: its floating-point warnings are not that library's.
bool led_by_numpy(const Call& call);
/// Writes an operation on the call's arrays to its output, by `interop._host.door.compute`, which says what these are.
void compute_on_host(const Call& call, nanobind::handle operation, nanobind::handle operands, nanobind::handle dtype,
                     nanobind::handle more);

}  // namespace interop::bindings
