/// Calls on torch's tensors as memory: what the operators of `interop.torch` compute, once torch's dispatcher, or they,
/// have seen to gradients, modes and transforms.
#pragma once

#include <nanobind/nanobind.h>

namespace interop::bindings {

// `given` are the arguments with a name.

nanobind::object matmul_below_autograd(nanobind::handle a, nanobind::handle b, nanobind::dict given);
/// An elementwise function by its name; the second operand of a unary one is None.
nanobind::object elementwise_below_autograd(nanobind::handle name, nanobind::handle a, nanobind::handle b,
                                            nanobind::dict given);
/// An expression, `interop._core.Expression`, of operands by position.
nanobind::object expression_below_autograd(nanobind::handle expression, nanobind::tuple operands, nanobind::dict given);

}  // namespace interop::bindings
