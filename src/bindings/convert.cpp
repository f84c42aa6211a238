/// What `interop.asarray`, `interop.convert` and `interop.adapt` need of the compiled half: views, exports for one
/// importer, and notes of what others do with the memory.
#include <nanobind/stl/optional.h>

#include "bindings/bindings.h"
#include "exchange/array/array.h"
#include "exchange/array/export.h"
#include "exchange/array/view.h"
#include "exchange/closing.h"
#include "exchange/stream.h"

namespace interop::bindings {
namespace {

using exchange::Array;

cudaStream_t from_int(const std::optional<int64_t>& handle) {
  return handle ? exchange::stream_from_handle(*handle) : nullptr;
}

nb::object asarray(nb::handle x, const char* function, std::optional<int64_t> stream, const char* name) {
  const exchange::CallGuard guard;
  return exchange::as_call(function, false, [&] { return exchange::asarray(x, function, from_int(stream), name); });
}

/// An `Array` for one importer, whatever that says of device and stream.
struct Export {
  nb::object array;
  nb::tuple device;
  std::optional<int64_t> stream;
  bool to_immutable;

  const Array& get() const { return nb::cast<const Array&>(array); }

  nb::object dlpack(nb::handle importers, nb::handle max_version, nb::handle, nb::handle) const {
    const exchange::CallGuard guard;
    const nb::object chosen = stream ? nb::object(nb::int_(*stream)) : nb::borrow(importers);
    return exchange::export_dlpack(get(), chosen, max_version, device, nb::none(), to_immutable);
  }
  nb::dict cai() const {
    const exchange::CallGuard guard;
    return exchange::export_cai(get(), from_int(stream));
  }
};

std::optional<int> readable_by(const Array& array, int device_type) {
  if (device_type == kDLCUDA) return exchange::readable_by_gpu(array);
  return array.host_readable() ? std::optional<int>(0) : std::nullopt;
}

int64_t stream_handle(nb::handle stream, const char* function) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(exchange::stream_argument(stream, function)));
}

void check_foreign_write(const Array& array, const char* function, const char* name, const char* accepted) {
  const exchange::CallGuard guard;
  exchange::check_foreign_write(array, function, name, accepted);
}

void note_foreign_use(Array& array, std::optional<int64_t> stream, bool is_given, bool is_written) {
  const exchange::CallGuard guard;
  exchange::note_foreign_use(array, from_int(stream), is_given, is_written);
}

nb::object producer_stream(const Array& array) {
  const exchange::CallGuard guard;
  const cudaStream_t stream = array.producer_stream();
  return stream ? nb::object(nb::int_(reinterpret_cast<uintptr_t>(stream))) : nb::none();
}

void wait_stream(int64_t waiter, int64_t stream, int device) {
  const exchange::CallGuard guard;
  const cuda::DeviceGuard on_device(device);
  cuda::wait_stream(exchange::stream_from_handle(waiter), exchange::stream_from_handle(stream));
}

void hold_for(const nb::list& objects, int64_t stream, int device) {
  const exchange::CallGuard guard;
  const cuda::DeviceGuard on_device(device);
  std::vector<exchange::Held> held;
  for (nb::handle object : objects) held.push_back({nb::borrow(object)});
  exchange::hold_for(exchange::stream_from_handle(stream), device, std::move(held));
}

}  // namespace

void bind_convert(nb::module_& m) {
  m.def("asarray", &asarray, nb::arg("x").none(), nb::arg("function"), nb::arg("stream") = nb::none(),
        nb::arg("name") = "x",
        nb::sig("def asarray(x: typing.Any, function: str, stream: int | None = None, name: str = 'x') -> Array"),
        "The array itself if it is an Array, else one on its memory, ready on `stream`, or on its producer's own.");
  nb::class_<Export>(m, "Export",
                     "An Array for one importer: memory of `device`, also where the array says another, ready on "
                     "`stream` if that is given. `to_immutable`: the importer never writes.")
      .def(
          "__init__",
          [](Export* self, nb::handle_t<Array> array, nb::tuple device, std::optional<int64_t> stream,
             bool to_immutable) { new (self) Export{nb::borrow(array), std::move(device), stream, to_immutable}; },
          nb::arg("array"), nb::arg("device"), nb::arg("stream") = nb::none(), nb::kw_only(),
          nb::arg("to_immutable") = false,
          nb::sig("def __init__(self, array: Array, device: tuple[int, int], stream: int | None = None, *, "
                  "to_immutable: bool = False) -> None"))
      .def(
          "__dlpack_device__", [](const Export& x) { return x.device; },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"), "The DLPack device type and id.")
      .def("__dlpack__", &Export::dlpack, nb::kw_only(), nb::arg("stream") = nb::none(),
           nb::arg("max_version") = nb::none(), nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none(),
           nb::sig("def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, "
                   "dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> typing.Any"),
           "Array.__dlpack__ of that device and stream; what the importer says of them does not count.")
      .def_prop_ro("__cuda_array_interface__", &Export::cai,
                   nb::sig("def __cuda_array_interface__(self) -> dict[str, typing.Any]"),
                   "Array.__cuda_array_interface__, ready on that stream.");
  m.def(
      "address_of",
      [](const Array& array) {
        array.check_address();
        return reinterpret_cast<uintptr_t>(array.data);
      },
      nb::arg("array"), nb::sig("def address_of(array: Array) -> int"),
      "Where the elements are, in no order with the work on them.");
  m.def("readable_by", &readable_by, nb::arg("array"), nb::arg("device_type"),
        nb::sig("def readable_by(array: Array, device_type: int) -> int | None"),
        "The index of the host (DLPack's type 1: 0) or the CUDA device (2) that can read the array where it is, or "
        "None.");
  m.def("check_foreign_write", &check_foreign_write, nb::arg("array"), nb::arg("function"), nb::arg("name"),
        nb::arg("accepted"),
        nb::sig("def check_foreign_write(array: Array, function: str, name: str, accepted: str) -> None"),
        "Throws for an array that nobody may write to, which another library's function may write to.");
  m.def("note_foreign_use", &note_foreign_use, nb::arg("array"), nb::arg("stream").none(), nb::arg("is_given"),
        nb::arg("is_written"),
        nb::sig("def note_foreign_use(array: Array, stream: int | None, is_given: bool, is_written: bool) -> None"),
        "Another library's work, queued on `stream` or done on the host, uses the array: whoever uses it next waits, "
        "the stream of its producer, too, unless the stream was given; then, and where there is none, it is held.");
  m.def("producer_stream", &producer_stream, nb::arg("array"),
        nb::sig("def producer_stream(array: Array) -> int | None"),
        "Of a view: the stream that its producer's array names, or on which its library works now. None if there is "
        "none.");
  m.def("wait_stream", &wait_stream, nb::arg("waiter"), nb::arg("stream"), nb::arg("device"),
        nb::sig("def wait_stream(waiter: int, stream: int, device: int) -> None"),
        "Let one stream wait for what is queued on another. Nothing is done where they are the same.");
  m.def("hold_for", &hold_for, nb::arg("objects"), nb::arg("stream"), nb::arg("device"),
        nb::sig("def hold_for(objects: list[typing.Any], stream: int, device: int) -> None"),
        "Keep the objects until all that is queued on the stream is done.");
  m.def("stream_handle", &stream_handle, nb::arg("stream").none(), nb::arg("function"),
        nb::sig("def stream_handle(stream: typing.Any, function: str) -> int"),
        "The handle that a `stream=` argument names.");
}

}  // namespace interop::bindings
