/// What `interop.jax` needs of the compiled half: the handlers that XLA calls.
#pragma once

#include <nanobind/nanobind.h>

namespace interop {

#if INTEROP_JAX_FFI

/// The name of each XLA FFI target of platform CUDA, and the capsule of its handler. None in a build without CUDA.
nanobind::dict jax_ffi_targets();

/// The same of the handlers that call kernels and C functions of users: by platform, by name, by XLA's stage.
nanobind::dict jax_function_targets();

/// The handler that calls Python, by platform.
nanobind::dict jax_call_targets();

#else  // built without XLA's headers: no targets, which interop.jax reports on first use

inline nanobind::dict jax_ffi_targets() { return {}; }
inline nanobind::dict jax_function_targets() { return {}; }
inline nanobind::dict jax_call_targets() { return {}; }

#endif

}  // namespace interop
