/// The table of <interop/c_api.h>, as C++ sees it, and interop's errors as the Python exceptions that they stand for.
#pragma once

#include <interop/c_api.h>
#include <interop/error.h>
#include <nanobind/nanobind.h>

#include <string>

namespace interop {

#ifdef INTEROP_BUILDS_CORE  // interop itself, which has the table
extern const InteropApi core_api;
inline const InteropApi& api() { return core_api; }
#else

namespace detail {

inline const InteropApi* load_api() {
  const auto* table = static_cast<const InteropApi*>(PyCapsule_Import(INTEROP_API_CAPSULE, 0));
  if (!table) nanobind::raise_python_error();
  if (table->version != INTEROP_API_VERSION || table->bytes < sizeof(InteropApi)) {
    const std::string message =
        "interop: this module was built for version " + std::to_string(INTEROP_API_VERSION) + " of its C functions (" +
        std::to_string(sizeof(InteropApi)) + " bytes), and the installed interop-dlpack has version " +
        std::to_string(table->version) + " (" + std::to_string(table->bytes) + " bytes); " +
        (table->version > INTEROP_API_VERSION ? "build the module again" : "install a newer interop-dlpack");
    PyErr_SetString(PyExc_ImportError, message.c_str());
    nanobind::raise_python_error();
  }
  return table;
}

}  // namespace detail

/// The functions of the installed interop, which is imported on first use. Throws ImportError if there is none, or
/// none that this module can use.
inline const InteropApi& api() {
  static const InteropApi* const table = detail::load_api();
  return *table;
}
#endif

/// Imports interop, and lets this module throw `interop::TypeError`, `ValueError`, `BufferError` and `CudaError` as the
/// exceptions of Python: the first statement of an NB_MODULE.
inline void initialize() {
  api();
  nanobind::register_exception_translator(
      [](const std::exception_ptr& pointer, void*) {
        try {
          std::rethrow_exception(pointer);
        } catch (const TypeError& error) {
          api().set_error(INTEROP_TYPE_ERROR, error.what());
        } catch (const ValueError& error) {
          api().set_error(INTEROP_VALUE_ERROR, error.what());
        } catch (const BufferError& error) {
          api().set_error(INTEROP_BUFFER_ERROR, error.what());
        } catch (const CudaError& error) {
          api().set_error(INTEROP_CUDA_ERROR, error.what());
        }
      },
      nullptr);
}

}  // namespace interop
