/// What `interop.jax` needs of the compiled half: the handlers that XLA calls on CUDA.
#pragma once

#include <nanobind/nanobind.h>

namespace interop {

#if INTEROP_JAX_FFI

/// Adds `jax_ffi_targets()`: the name of each XLA FFI target of platform CUDA, and the capsule of its handler.
void bind_jax_ffi(nanobind::module_& m);

#else  // built without XLA's headers: no targets, which interop.jax reports on first use

inline void bind_jax_ffi(nanobind::module_& m) {
  m.def(
      "jax_ffi_targets", [] { return nanobind::dict(); },
      nanobind::sig("def jax_ffi_targets() -> dict[str, typing.Any]"), "No XLA FFI handlers in this build.");
}

#endif

}  // namespace interop
