/// What a call would do: each operation's `Decision`, in words and figures.
#pragma once

#include <nanobind/nanobind.h>

namespace interop::bindings {

// Each launches, compiles and allocates nothing, and throws what the call would. `given` are the arguments with a name.

/// `interop.matmul`; None for arrays of JAX alone, which JAX computes.
nanobind::object explain_matmul(nanobind::handle a, nanobind::handle b, nanobind::dict given);
/// An elementwise function by its name; None for arrays of JAX alone, which JAX computes.
nanobind::object explain_elementwise(nanobind::handle name, nanobind::handle a, nanobind::handle b,
                                     nanobind::dict given);
/// An expression; of arrays of JAX alone, which JAX computes, the split and the arguments.
nanobind::object explain_expression(nanobind::handle expression, nanobind::tuple args, nanobind::dict given);

}  // namespace interop::bindings
