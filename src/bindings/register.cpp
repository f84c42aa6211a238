/// `interop.register`, and the reading of one array that `interop.testing` checks producers with.
#include <interop/cuda/driver.h>

#include <cstring>
#include <vector>

#include "bindings/bindings.h"
#include "exchange/call.h"
#include "exchange/route.h"
#include "exchange/routes/registered.h"

namespace interop::bindings {
namespace {

void register_library(nb::object type, const std::string& name, nb::object export_array, nb::object current_stream,
                      nb::object empty, bool writable) {
  exchange::register_library({type, name, export_array, current_stream, empty, writable});
}

/// Copies the elements of dimension `dim` and beyond to `to`, in row-major order; returns the end of what it wrote.
char* gather(const DLTensor& tensor, int dim, const char* from, char* to) {
  const int64_t item = item_bytes(tensor.dtype);
  if (dim == tensor.ndim) {
    std::memcpy(to, from, static_cast<size_t>(item));
    return to + item;
  }
  for (int64_t i = 0; i < tensor.shape[dim]; ++i)
    to = gather(tensor, dim + 1, from + i * tensor.strides[dim] * item, to);
  return to;
}

/// The values of an imported array, from the host or from the device in the order of the call's stream.
nb::bytes values(const exchange::Call& call) {
  const DLTensor& tensor = call.tensor(0);
  const ByteRange range = byte_range(tensor);
  std::vector<char> elements(static_cast<size_t>(element_count(tensor) * item_bytes(tensor.dtype)));
  const char* first = static_cast<const char*>(tensor.data);
  std::vector<char> copy;
  if (!call.on_host() && range.end > range.begin) {
    copy.resize(range.end - range.begin);
    {
      const nb::gil_scoped_release no_gil;
      cuda::copy_to_host(copy.data(), reinterpret_cast<const void*>(range.begin), copy.size(), call.stream());
      cuda::synchronize(call.stream());
    }
    first = copy.data() + (reinterpret_cast<uintptr_t>(tensor.data) - range.begin);
  }
  if (!elements.empty()) gather(tensor, 0, first, elements.data());
  return nb::bytes(elements.data(), elements.size());
}

nb::dict read(nb::handle array, nb::handle stream) {
  const InteropArgument argument{"the array", array.ptr(), 0};
  const exchange::Call call("interop.testing", &argument, 1, {nullptr, stream.ptr(), nullptr, 0});
  const exchange::Operand& operand = call.operand(0);
  const DLTensor& tensor = call.tensor(0);
  nb::dict facts;
  facts["library"] = operand.route->library();
  facts["protocol"] = exchange::protocol_of(operand);
  facts["pointer"] = reinterpret_cast<uintptr_t>(tensor.data);
  facts["shape"] = exchange::shape_tuple(tensor.shape, tensor.ndim);
  facts["strides"] = exchange::shape_tuple(tensor.strides, tensor.ndim);
  facts["dtype"] = dtype_name(tensor.dtype);
  facts["device"] = device_text(tensor.device);
  facts["read_only"] = operand.read_only;
  facts["stream"] = reinterpret_cast<uintptr_t>(call.stream());
  facts["values"] = values(call);
  return facts;
}

}  // namespace

void bind_register(nb::module_& m) {
  m.def("register_library", &register_library, nb::arg("type"), nb::arg("name"), nb::arg("export").none(),
        nb::arg("current_stream").none(), nb::arg("empty").none(), nb::arg("writable"),
        nb::sig("def register_library(type: type, name: str, export: typing.Any, current_stream: typing.Any, "
                "empty: typing.Any, writable: bool) -> None"),
        "See interop.register.");
  m.def("read", &read, nb::arg("array"), nb::arg("stream") = nb::none(),
        nb::sig("def read(array: typing.Any, stream: typing.Any = None) -> dict[str, typing.Any]"),
        "Import an array as a call does, and return what was found, with the values in row-major order as bytes.");
}

}  // namespace interop::bindings
