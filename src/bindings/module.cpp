/// The compiled half of the package: `interop._core`.
#include <interop/error.h>
#include <nanobind/nanobind.h>

#include "bindings/bindings.h"
#include "bindings/jax_ffi.h"

namespace nb = nanobind;

namespace {

/// C++ errors of ours to the Python exceptions that they stand for; CudaError has a type of its own.
void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const interop::TypeError& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
  } catch (const interop::ValueError& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const interop::BufferError& error) {
    PyErr_SetString(PyExc_BufferError, error.what());
  }
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "The compiled half of interop. Private: use the names of `interop`.";
  m.attr("version") = INTEROP_VERSION;
  // Types are kept in caches that outlive the module (style of CPython's own static types).
  nb::set_leak_warnings(false);

  nb::register_exception_translator(&translate);
  auto cuda_error = nb::exception<interop::CudaError>(m, "CudaError", PyExc_RuntimeError);
  cuda_error.attr("__doc__") = "CUDA or cuBLAS failed, or no driver, GPU or library is there.";

  interop::bindings::bind_array(m);
  interop::bindings::bind_convert(m);
  interop::bindings::bind_elementwise(m);
  interop::bindings::bind_expression(m);
  interop::bindings::bind_info(m);
  interop::bindings::bind_matmul(m);
  interop::bindings::bind_register(m);
  interop::bindings::bind_timing(m);
  interop::bind_jax_ffi(m);
}
