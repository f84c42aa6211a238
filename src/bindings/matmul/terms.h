/// The terms of `interop.matmul` besides the operands.
#pragma once

#include <interop/cuda/matmul.h>
#include <interop/gemm.h>
#include <nanobind/nanobind.h>

namespace interop::bindings {

inline constexpr const char* kMatmul = "interop.matmul";

/// The arguments with a name, each None where it is left out.
struct Terms {
  nanobind::handle out = Py_None, dtype = Py_None, c = Py_None, alpha = Py_None, beta = Py_None, bias = Py_None,
                   epilogue = Py_None, aux = Py_None, scale_a = Py_None, scale_b = Py_None, precision = Py_None,
                   backend = Py_None, autotune = Py_None, stream = Py_None, execution = Py_None;
};

/// The keywords of a call by name. Throws the TypeError of a call that does not fit the signature.
Terms read_terms(nanobind::handle a, nanobind::handle b, nanobind::dict given);
/// Throws ValueError for options that are wrong for any arrays.
void check_terms(const Terms& terms);
/// Those that are given, for `interop.jax.matmul`. Throws ValueError for what no products of JAX have.
nanobind::dict jax_keywords(const Terms& terms);

Activation read_epilogue(nanobind::handle epilogue);
cuda::MatmulOptions read_kernel_options(nanobind::handle backend, nanobind::handle precision);
/// Is it a number of Python or NumPy, not an array?
bool is_number(nanobind::handle x);

}  // namespace interop::bindings
