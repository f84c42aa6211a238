/// `interop.Array`, as Python sees it.
#include "exchange/array.h"

#include "bindings/bindings.h"

namespace interop::bindings {

using exchange::Array;

namespace {

PyType_Slot kSlots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(&exchange::get_buffer)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(&exchange::release_buffer)},
    {0, nullptr},
};

constexpr const char* kDoc = R"(A typed view of memory: the array of no other library.

Calls whose first array belongs to no known array library (a raw DLPack capsule, an object that has only
``__cuda_array_interface__``) return one. Every DLPack and CUDA array interface consumer reads it, without a copy, and
in host memory it has a buffer, so that ``numpy.asarray`` takes it. It cannot be made directly.
)";

constexpr const char* kDlpackDoc = R"(Export the memory as a DLPack capsule.

`stream` is None (the legacy default stream waits), -1 (no synchronisation), 1, 2 or a CUDA stream handle: that stream
waits, by an event, for the work that wrote the array. The capsule is versioned where `max_version` is (1, 0) or later.
`dl_device` may be the array's own device only, and `copy` None or False, else BufferError.
)";

std::string repr(const Array& array) {
  return "interop.Array(shape=" + shape_text(array.tensor()) + ", dtype=" + dtype_name(array.dtype) +
         ", device=" + device_text(array.device) + ")";
}

}  // namespace

void bind_array(nb::module_& m) {
  nb::class_<Array>(m, "Array", nb::type_slots(kSlots), kDoc)
      .def_prop_ro(
          "shape",
          [](const Array& a) { return exchange::shape_tuple(a.shape.data(), static_cast<int>(a.shape.size())); },
          nb::sig("def shape(self) -> tuple[int, ...]"), "The size of each dimension.")
      .def_prop_ro(
          "strides",
          [](const Array& a) { return exchange::shape_tuple(a.strides.data(), static_cast<int>(a.strides.size())); },
          nb::sig("def strides(self) -> tuple[int, ...]"), "The step of each dimension, in elements.")
      .def_prop_ro(
          "dtype", [](const Array& a) { return dtype_name(a.dtype); }, "The dtype's name, such as 'float32'.")
      .def_prop_ro(
          "device", [](const Array& a) { return device_text(a.device); },
          "Where the memory is, such as ``'cpu'`` or ``'cuda:0'``.")
      .def_prop_ro(
          "ndim", [](const Array& a) { return a.shape.size(); }, "The number of dimensions.")
      .def("__dlpack__", &exchange::export_dlpack, nb::kw_only(), nb::arg("stream") = nb::none(),
           nb::arg("max_version") = nb::none(), nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none(),
           nb::sig("def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, "
                   "dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> typing.Any"),
           kDlpackDoc)
      .def(
          "__dlpack_device__",
          [](const Array& a) { return nb::make_tuple(static_cast<int>(a.device.device_type), a.device.device_id); },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"), "The DLPack device type and id.")
      .def_prop_ro("__cuda_array_interface__", &exchange::export_cai,
                   nb::sig("def __cuda_array_interface__(self) -> dict[str, typing.Any]"),
                   "Version 3, with the stream to order on; AttributeError for host memory.")
      .def("__repr__", &repr);
}

}  // namespace interop::bindings
