/// What `interop.asarray` and `interop.convert` need of the compiled half: views, and exports for one importer.
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

nb::object asarray(nb::handle x, const char* function, std::optional<int64_t> stream) {
  const exchange::CallGuard guard;
  return exchange::as_call(function, false, [&] { return exchange::asarray(x, function, from_int(stream)); });
}

nb::object export_dlpack(const Array& array, nb::handle stream, nb::handle max_version, nb::handle dl_device,
                         bool to_immutable) {
  const exchange::CallGuard guard;
  return exchange::export_dlpack(array, stream, max_version, dl_device, nb::none(), to_immutable);
}

nb::dict export_cai(const Array& array, int64_t stream) {
  const exchange::CallGuard guard;
  return exchange::export_cai(array, exchange::stream_from_handle(stream));
}

int64_t stream_handle(nb::handle stream, const char* function) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(exchange::stream_argument(stream, function)));
}

}  // namespace

void bind_convert(nb::module_& m) {
  m.def("asarray", &asarray, nb::arg("x").none(), nb::arg("function"), nb::arg("stream") = nb::none(),
        nb::sig("def asarray(x: typing.Any, function: str, stream: int | None = None) -> Array"),
        "The array itself if it is an Array, else one on its memory, ready on `stream`, or on its producer's own.");
  m.def("export_dlpack", &export_dlpack, nb::arg("array"), nb::arg("stream").none(), nb::arg("max_version").none(),
        nb::arg("dl_device"), nb::arg("to_immutable"),
        nb::sig("def export_dlpack(array: Array, stream: int | None, max_version: tuple[int, int] | None, "
                "dl_device: tuple[int, int], to_immutable: bool) -> typing.Any"),
        "Array.__dlpack__ for one importer: as memory of that device, also where the array says another.");
  m.def("export_cai", &export_cai, nb::arg("array"), nb::arg("stream"),
        nb::sig("def export_cai(array: Array, stream: int) -> dict[str, typing.Any]"),
        "Array.__cuda_array_interface__, ready on that stream.");
  m.def("readable_by_host", &Array::host_readable, nb::arg("array"), "Can the host read the array where it is?");
  m.def("readable_by_gpu", &exchange::readable_by_gpu, nb::arg("array"),
        "The CUDA device whose kernels can read the array where it is, or None.");
  m.def("stream_handle", &stream_handle, nb::arg("stream").none(), nb::arg("function"),
        nb::sig("def stream_handle(stream: typing.Any, function: str) -> int"),
        "The handle that a `stream=` argument names.");
}

}  // namespace interop::bindings
