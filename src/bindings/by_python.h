/// What Python computes: operations on JAX arrays, by JAX, on tensors that are more than memory, by torch, and on host
/// arrays, by NumPy.
#pragma once

#include <interop/call.h>
#include <nanobind/nanobind.h>

#include "exchange/door.h"

namespace interop::bindings {

/// Enters JAX for the function of that name, and gives `interop.jax._door.compute`.
nanobind::handle enter_jax(const char* function);
inline bool is_left_to_torch(exchange::Computes who) { return who >= exchange::Computes::torch; }
/// Computes in torch: by `interop.torch._door`, of which `who` chooses the function. `options` are the arguments with a
/// name, as given; an operation is "matmul", an elementwise function's name, or an expression with its split.
nanobind::object in_torch(exchange::Computes who, nanobind::handle operation, nanobind::handle options,
                          nanobind::tuple operands);
/// The `stream=` of a call that JAX computes, as an int handle; None if it is None.
nanobind::object stream_for_jax(const char* function, nanobind::handle stream);

/// NumPy computes for another library: its floating-point warnings are not that library's.
bool led_by_numpy(const Call& call);
/// Writes an operation on the call's arrays to its output, by `interop._host.door.compute`, which says what these are.
/// `out`: the output in another view.
void compute_on_host(const Call& call, nanobind::handle operation, nanobind::handle operands, nanobind::handle dtype,
                     nanobind::handle more, nanobind::object out = {});

/// What of an operation on NumPy's own arrays is kept: `interop._host.door.keep`, which says what these are.
nanobind::object kept_on_host(nanobind::handle operation, nanobind::handle names, bool has_out, nanobind::handle dtype,
                              nanobind::handle out_dtype);

}  // namespace interop::bindings
