/// What the build and the machine are, for `interop info`, and what the package needs once at import and at exit.
#include <interop/cuda/driver.h>
#include <interop/cuda/matmul.h>

#include <chrono>
#include <cstring>

#include "bindings/bindings.h"
#include "bindings/jax_ffi.h"
#include "bindings/matmul/device_product.h"
#include "exchange/closing.h"
#include "exchange/python.h"
#include "exchange/reaper.h"
#include "exchange/route.h"
#include "exchange/routes/jax.h"

namespace interop::bindings {
namespace {

nb::dict build_info() {
  nb::dict info;
  info["version"] = INTEROP_VERSION;
  info["cuda"] = cuda::built_for();
  info["compiler"] = cuda::built_compiler();
  info["architectures"] = cuda::built_architectures();
  info["jax_ffi"] = jax_ffi_targets();
  info["jax_functions"] = jax_function_targets();
  info["jax_call"] = jax_call_targets();
  return info;
}

nb::dict device_info(int device) {
  const cuda::DeviceInfo info = cuda::device_info(device);
  nb::dict result;
  result["name"] = info.name;
  result["compute_capability"] = nb::make_tuple(info.compute_major, info.compute_minor);
  result["multiprocessors"] = info.multiprocessors;
  result["memory_bytes"] = info.memory_bytes;
  return result;
}

nb::dict machine_info() {
  nb::list devices;
  nb::dict info;
  info["driver"] = nb::none();
  info["devices"] = devices;
  info["no_gpu"] = nb::none();
  try {
    cuda::require_driver();
    info["driver"] = cuda::driver_version();
    for (int k = 0; k < cuda::device_count(); ++k) devices.append(device_info(k));
  } catch (const CudaError& error) {
    info["no_gpu"] = nb::str(error.what());
  }
  find_cublas();
  info["cublas"] = cuda::cublas_version();
  info["cublas_status"] = cuda::cublas_status();
  return info;
}

nb::tuple route(nb::handle object) {
  const exchange::Route& found = exchange::route_of(object, "interop", "the object");
  return nb::make_tuple(found.library(), found.protocol());
}

}  // namespace

void bind_info(nb::module_& m) {
  m.def("build_info", &build_info, nb::sig("def build_info() -> dict[str, typing.Any]"),
        "Version of the package, CUDA version, compiler and architectures of the build; its XLA FFI handlers for JAX, "
        "name -> capsule.");
  m.def(
      "machine_info", &machine_info, nb::sig("def machine_info() -> dict[str, typing.Any]"),
      "The CUDA version that the driver supports, such as 13000; name, compute capability, multiprocessors and memory "
      "of each device; why there is no usable driver or GPU, or None; the version of cuBLASLt, \"\" if there is none, "
      "and where it was found, or why not.");
  m.def("route", &route, nb::arg("object"), nb::sig("def route(object: typing.Any) -> tuple[str, str]"),
        "The array library and the protocol by which an object would be read.");
  m.def("held_count", &exchange::held_count, "How many inputs are held until the GPU has finished with them.");
  m.def(
      "within",
      [](const char* function, const char* library, nb::callable call) {
        const exchange::CallGuard guard;
        std::strcmp(library, "jax") == 0 ? exchange::enter_jax(function) : exchange::enter_foreign(function, library);
        return call();
      },
      nb::arg("function"), nb::arg("library"), nb::arg("call"),
      nb::sig("def within(function: str, library: str, call: Callable[[], typing.Any]) -> typing.Any"),
      "Run what enters a library: the exit waits for it, and refuses it to other threads.");
  m.def(
      "close",
      [](double seconds) {
        const nb::gil_scoped_release no_gil;
        const auto end =
            std::chrono::steady_clock::now() +
            std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
        exchange::close_calls(end);
        exchange::stop_reaper(end);
      },
      nb::arg("seconds"),
      "Refuse calls of other threads, and wait for those under way and for what is held, no longer than this; for "
      "exit.");
}

}  // namespace interop::bindings
