/// What `interop.jax` needs of the compiled half: the handlers that XLA calls on CUDA.
#pragma once

#include <nanobind/nanobind.h>

namespace interop {

#if INTEROP_JAX_FFI

/// The name of each XLA FFI target of platform CUDA, and the capsule of its handler. None in a build without CUDA.
nanobind::dict jax_ffi_targets();

#else  // built without XLA's headers: no targets, which interop.jax reports on first use

inline nanobind::dict jax_ffi_targets() { return {}; }

#endif

}  // namespace interop
