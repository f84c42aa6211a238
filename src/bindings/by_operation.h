/// What is done with a call of an operation that is given: `interop._core.explain` and `below_autograd`.
#pragma once

#include <nanobind/nanobind.h>

namespace interop::bindings {

// `given` are the arguments with a name. An elementwise function is given by its name, and the second operand of a
// unary one is None. An expression is an `interop._core.Expression`.

// What a call would do: each operation's `Decision`, in words and figures. Each launches, compiles and allocates
// nothing, and throws what the call would. For arrays of JAX alone, which JAX computes, they give None, or of an
// expression the split and the arguments.

nanobind::object explain_matmul(nanobind::handle a, nanobind::handle b, nanobind::dict given);
nanobind::object explain_elementwise(nanobind::handle name, nanobind::handle a, nanobind::handle b,
                                     nanobind::dict given);
nanobind::object explain_expression(nanobind::handle expression, nanobind::tuple operands, nanobind::dict given);

// What a call computes of torch's tensors as memory: what the operators of `interop.torch` compute, once torch's
// dispatcher, or they, have seen to gradients, modes and transforms.

nanobind::object matmul_below_autograd(nanobind::handle a, nanobind::handle b, nanobind::dict given);
nanobind::object elementwise_below_autograd(nanobind::handle name, nanobind::handle a, nanobind::handle b,
                                            nanobind::dict given);
nanobind::object expression_below_autograd(nanobind::handle expression, nanobind::tuple operands, nanobind::dict given);

}  // namespace interop::bindings
