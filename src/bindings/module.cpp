/// The compiled half of the package: `interop._core`.
#include <interop/api.h>
#include <nanobind/nanobind.h>

#include "bindings/bindings.h"
#include "bindings/jax_ffi.h"

namespace nb = nanobind;

NB_MODULE(_core, m) {
  m.doc() = "The compiled half of interop. Private: use the names of `interop`.";
  m.attr("version") = INTEROP_VERSION;
  // Types are kept in caches that outlive the module (style of CPython's own static types).
  nb::set_leak_warnings(false);

  interop::initialize();
  auto cuda_error = nb::exception<interop::CudaError>(m, "CudaError", PyExc_RuntimeError);
  cuda_error.attr("__doc__") = "CUDA or cuBLAS failed, or no driver, GPU or library is there.";
  m.attr("_c_api") =
      nb::steal(PyCapsule_New(const_cast<InteropApi*>(&interop::core_api), INTEROP_API_CAPSULE, nullptr));

  interop::bindings::bind_arguments(m);
  interop::bindings::bind_array(m);
  interop::bindings::bind_convert(m);
  interop::bindings::bind_elementwise(m);
  interop::bindings::bind_expression(m);
  interop::bindings::bind_info(m);
  interop::bindings::bind_kernel(m);
  interop::bindings::bind_load(m);
  interop::bindings::bind_matmul(m);
  interop::bindings::bind_register(m);
  interop::bindings::bind_timing(m);
  interop::bind_jax_ffi(m);
}
