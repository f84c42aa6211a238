/// `Kernel.globals`: the variables of the images that kernels are in.
#include <interop/call.h>
#include <interop/cuda/driver.h>
#include <interop/cuda/kernel.h>
#include <interop/tensor.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "bindings/bindings.h"
#include "bindings/functions/loaded_kernel.h"
#include "exchange/closing.h"
#include "exchange/python.h"
#include "exchange/stream.h"

namespace interop::bindings {
namespace {

using exchange::as_call;
using exchange::CallGuard;

/// A variable that users name, which Python finds in the image for a device's architecture.
struct NamedVariable {
  NamedVariable(std::string label_, nb::object find_) : label(std::move(label_)), find(std::move(find_)) {}

  std::string label;  // such as "interop.kernel('blur').globals['filter']"
  nb::object find;    // of an architecture's name: the library, and the symbol
};

/// The variable on one device, which is current.
struct Found {
  Found(const NamedVariable& named, int device) {
    const nb::object found = named.find(cuda::architecture_name(device));
    const auto [loaded, symbol] = nb::cast<std::tuple<LoadedLibrary, std::string>>(found);
    library = loaded.library;
    const nb::gil_scoped_release no_gil;
    variable = cuda::find_variable(*library, symbol);
  }

  cuda::Library* library;
  cuda::Variable variable;
};

void check_device(const NamedVariable& named, int device) {
  cuda::require_driver();
  if (device >= 0 && device < cuda::device_count()) return;
  throw ValueError(named.label + ": device is " + std::to_string(device) + "; this machine has " +
                   std::to_string(cuda::device_count()) + " CUDA device(s)");
}

/// Where the work of a call without device arrays goes.
cudaStream_t stream_of(const NamedVariable& named, nb::handle stream) {
  return stream.is_none() ? cuda::own_stream() : exchange::stream_argument(stream, named.label.c_str());
}

/// The bytes of an array that is as large as the variable; throws ValueError for another one.
size_t checked_bytes(const NamedVariable& named, const Call& call, const cuda::Variable& variable) {
  call.check(0, {nullptr, {}, -1, call.on_host() ? kDLCPU : kDLCUDA, 'C', 0});
  const auto bytes = static_cast<size_t>(element_count(call.tensor(0)) * item_bytes(call.tensor(0).dtype));
  if (bytes == variable.bytes) return bytes;
  throw ValueError(named.label + ": the array has " + std::to_string(bytes) + " bytes, and the variable " +
                   std::to_string(variable.bytes) + "; accepted: an array of exactly as many bytes");
}

void write_from_host(const NamedVariable& named, const Call& call, int device, nb::handle stream) {
  exchange::enter_foreign(named.label.c_str(), "CUDA");
  const cuda::DeviceGuard guard(device);
  const cudaStream_t on = stream_of(named, stream);
  const Found found(named, device);
  const size_t bytes = checked_bytes(named, call, found.variable);
  // The values of now: the caller may change the array at once, also where it is pinned, or read by a graph.
  std::unique_ptr<void, decltype(&std::free)> values(std::malloc(bytes), &std::free);
  if (!values) throw std::bad_alloc();
  std::memcpy(values.get(), call.tensor(0).data, bytes);
  const nb::gil_scoped_release no_gil;
  const void* const from = values.get();
  if (cuda::give_to_graph(on, values.get(), &std::free)) values.release();
  cuda::write_variable(*found.library, found.variable, from, true, on);
}

void write_from_device(const NamedVariable& named, Call& call, std::optional<int> device) {
  if (device && *device != call.device()) {
    throw ValueError(named.label + ": device is " + std::to_string(*device) + ", and the array is on cuda:" +
                     std::to_string(call.device()) + "; accepted: the array's own device");
  }
  const Found found(named, call.device());
  checked_bytes(named, call, found.variable);
  call.launch(
      [&](cudaStream_t s) { cuda::write_variable(*found.library, found.variable, call.tensor(0).data, false, s); });
  call.hand_over();
}

void write(const NamedVariable& named, nb::handle array, std::optional<int> device, nb::handle stream) {
  const CallGuard guard;
  as_call(named.label.c_str(), false, [&] {
    const char* const label = named.label.c_str();
    const Argument argument("the array", array);
    CallOptions options;
    options.stream = nb::none();
    options.only_looks = true;
    const bool on_host = Call(label, &argument, 1, options).on_host();
    options.only_looks = false;
    if (!on_host) options.stream = stream;
    Call call(label, &argument, 1, options);
    if (!on_host) return write_from_device(named, call, device);
    check_device(named, device.value_or(0));
    write_from_host(named, call, device.value_or(0), stream);
  });
}

/// Runs `use` with the variable on a device that is current.
template <class Use>
nb::object with_variable(const NamedVariable& named, int device, Use&& use) {
  const CallGuard guard;
  return as_call(named.label.c_str(), false, [&]() -> nb::object {
    check_device(named, device);
    exchange::enter_foreign(named.label.c_str(), "CUDA");
    const cuda::DeviceGuard current(device);
    return use(Found(named, device));
  });
}

nb::object read(const NamedVariable& named, int device, nb::handle stream) {
  return with_variable(named, device, [&](const Found& found) {
    const cudaStream_t on = stream_of(named, stream);
    if (cuda::is_capturing(on)) {
      throw ValueError(named.label + ": the stream is being captured into a CUDA graph, and reading waits for it; " +
                       "accepted: a read outside the capture");
    }
    const nb::object bytes =
        nb::steal(PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(found.variable.bytes)));
    if (!bytes.is_valid()) nb::raise_python_error();
    char* const to = PyByteArray_AS_STRING(bytes.ptr());
    const nb::gil_scoped_release no_gil;
    cuda::read_variable(*found.library, found.variable, to, on);
    return bytes;
  });
}

nb::object byte_count(const NamedVariable& named, int device) {
  return with_variable(named, device, [](const Found& found) -> nb::object { return nb::int_(found.variable.bytes); });
}

}  // namespace

void bind_variables(nb::module_& m) {
  nb::class_<NamedVariable>(m, "NamedVariable", "A variable of a kernel's image, on every device.")
      .def(
          nb::init<std::string, nb::object>(),
          nb::sig("def __init__(self, label: str, find: typing.Callable[[str], tuple[LoadedLibrary, str]], /) -> None"))
      .def("write", &write, nb::arg().none(), nb::arg().none(), nb::arg().none(),
           nb::sig("def write(self, array: typing.Any, device: int | None, stream: typing.Any, /) -> None"),
           "Write an array's bytes to it, ordered with the launches of its kernels on all streams.")
      .def("read", &read, nb::arg(), nb::arg().none(),
           nb::sig("def read(self, device: int, stream: typing.Any, /) -> bytearray"),
           "Its bytes on a device, once all launches before are done.")
      .def("byte_count", &byte_count, nb::arg(), nb::sig("def byte_count(self, device: int, /) -> int"),
           "How many bytes it has.");
}

}  // namespace interop::bindings
