/// The compiled half of the package: `interop._core`.
#include <interop/api.h>
#include <nanobind/nanobind.h>

#include "bindings/bindings.h"
#include "exchange/python.h"

namespace nb = nanobind;

// Exports PyInit_in_main_interpreter; `PyInit__core` below is what Python calls.
NB_MODULE(in_main_interpreter, m) {
  m.doc() = "The compiled half of interop. Private: use the names of `interop`.";
  // Types are kept in caches that outlive the module (style of CPython's own static types).
  nb::set_leak_warnings(false);

  interop::initialize();
  auto cuda_error = nb::exception<interop::CudaError>(m, "CudaError", PyExc_RuntimeError);
  cuda_error.attr("__doc__") = "CUDA or cuBLAS failed, or no driver, GPU or library is there.";
  interop::exchange::set_cuda_error(cuda_error);
  m.attr("_c_api") =
      nb::steal(PyCapsule_New(const_cast<InteropApi*>(&interop::core_api), INTEROP_API_CAPSULE, nullptr));

  interop::bindings::bind_adopted(m);
  interop::bindings::bind_arguments(m);
  interop::bindings::bind_array(m);
  interop::bindings::bind_by_operation(m);
  interop::bindings::bind_convert(m);
  interop::bindings::bind_elementwise(m);
  interop::bindings::bind_expression(m);
  interop::bindings::bind_graph(m);
  interop::bindings::bind_info(m);
  interop::bindings::bind_loaded_kernel(m);
  interop::bindings::bind_kernel(m);
  interop::bindings::bind_variables(m);
  interop::bindings::bind_load(m);
  interop::bindings::bind_xla_function(m);
  interop::bindings::bind_matmul(m);
  interop::bindings::bind_operator_gradient(m);
  interop::bindings::bind_operators(m);
  interop::bindings::bind_memory(m);
  interop::bindings::bind_profile(m);
  interop::bindings::bind_register(m);
  interop::bindings::bind_timing(m);
}

namespace {

int (*initialize_module)(PyObject*) = nullptr;  // nanobind's

/// nanobind has one state for all interpreters, and so have the caches here: a second one would use the first one's
/// objects. So the ImportError comes before any of that is touched.
bool refuse_subinterpreter() {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) return false;
  PyErr_SetString(PyExc_ImportError, "interop: cannot be imported in a subinterpreter; accepted: the main interpreter");
  return true;
}

int initialize_in_main_interpreter(PyObject* m) { return refuse_subinterpreter() ? -1 : initialize_module(m); }

}  // namespace

// Python 3.13 runs this in the main interpreter, whichever imports, and before 3.12 none but us refuses: so the check
// is here and in the module's own initialisation.
extern "C" NB_EXPORT PyObject* PyInit__core() {
  if (refuse_subinterpreter()) return nullptr;
  PyObject* const module = PyInit_in_main_interpreter();
  if (!module || initialize_module) return module;
  PyModuleDef_Slot* slot = reinterpret_cast<PyModuleDef*>(module)->m_slots;
  while (slot->slot != Py_mod_exec) ++slot;
  initialize_module = reinterpret_cast<int (*)(PyObject*)>(slot->value);
  slot->value = reinterpret_cast<void*>(&initialize_in_main_interpreter);
  return module;
}
