/// `interop.Array`, as Python sees it.
#include "exchange/array/array.h"

#include "bindings/bindings.h"
#include "exchange/array/export.h"
#include "exchange/array/own_table.h"
#include "exchange/array/view.h"
#include "exchange/closing.h"
#include "exchange/routes/buffer.h"
#include "exchange/routes/jax.h"

namespace interop::bindings {

using exchange::Array;

namespace {

const exchange::Lookup kNumpyArray("numpy", "array");

PyObject* refuse_new(PyTypeObject*, PyObject*, PyObject*) {
  PyErr_SetString(PyExc_TypeError,
                  "interop.Array: it is not made directly; accepted: interop.empty(shape, dtype) and "
                  "its like, interop.asarray(x), or the result of a call");
  return nullptr;
}

PyType_Slot kSlots[] = {
    {Py_tp_new, reinterpret_cast<void*>(&refuse_new)},
    {Py_bf_getbuffer, reinterpret_cast<void*>(&exchange::get_buffer)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(&exchange::release_buffer)},
    {Py_tp_traverse, reinterpret_cast<void*>(&exchange::visit_owners)},
    {Py_tp_clear, reinterpret_cast<void*>(&exchange::let_owners_go)},
    {0, nullptr},
};

constexpr const char* kDoc = R"(An array on memory of interop's own, or a typed view of another library's memory.

`interop.empty` and its like make one; so does `interop.asarray`, on another array's memory, and a call whose first array
belongs to no known array library (a raw DLPack capsule, an object that has only ``__cuda_array_interface__``). Every
DLPack and CUDA array interface consumer reads it, without a copy, and where the host can read it it has a buffer, so that
``numpy.asarray`` takes it. On a GPU every export waits, by events, for the work that wrote the array.

Indexing by ints, slices, Ellipsis and None, `reshape`, `transpose`, `T` and `mT` give views. Operators are interop's own
operations. ``x[key] = y`` is `interop.copyto`. What needs a value (`item`, `tolist`, `bool`, `int`, `float`, printing)
waits for it, and copies it from device memory. It may stand in a set or be a key, by its identity. `copy.copy` and
`copy.deepcopy` copy it within its memory, and `pickle` through the host. It cannot be made directly.
)";

constexpr const char* kDlpackDoc = R"(Export the memory as a DLPack capsule.

`stream` is None (the legacy default stream waits), -1 (no synchronisation), 1, 2 or a CUDA stream handle: that stream
waits, by events, for the work that wrote the array. For host memory it is None, and the host waits. Pinned and managed
memory is ready for the host, too, where `stream` is None. The capsule is versioned where `max_version` is (1, 0) or later.

`dl_device` is None, the array's own device, ``(1, 0)`` for host memory, or ``(2, id)`` for pinned or managed memory that
this GPU can read. Managed memory is plain memory of its GPU, ``(2, id)``, unless ``(13, 0)`` is asked for. Host memory of a device array is a copy, ready on return; else the memory is shared. With `copy` True
it is always a copy, made on `stream`, with the layout of the array, gaps included. BufferError where `copy` is False
and a copy would be needed, for another device, and for a read-only array in an unversioned capsule.
)";

const char* memory_name(const Array& array) {
  switch (array.device.device_type) {
    case kDLCUDAHost:
      return "pinned";
    case kDLCUDAManaged:
      return "managed";
    case kDLCUDA:
      return array.host_readable() ? "managed" : "device";
    default:
      return "host";
  }
}

nb::object stream(const Array& array) {
  const cudaStream_t stream = array.loan ? array.loan->stream() : array.work ? array.work->stream : nullptr;
  return stream ? nb::object(nb::int_(reinterpret_cast<uintptr_t>(stream))) : nb::none();
}

Py_ssize_t length(const Array& array) {
  if (array.shape.empty()) throw TypeError("interop.Array: a 0-d array has no len()");
  return array.shape[0];
}

/// NumPy asks for this where there is no buffer: device memory, and the dtypes of ml_dtypes.
nb::object numpy_array(nb::handle self, nb::handle dtype, nb::handle copy) {
  const exchange::CallGuard guard;
  exchange::read_copy("interop.Array.__array__", copy);
  const nb::object array =
      exchange::as_call("interop.Array.__array__", false, [&] { return exchange::numpy_array(self); });
  if (dtype.is_none() && copy.is_none()) return array;
  return kNumpyArray.get()(array, nb::arg("dtype") = dtype, nb::arg("copy") = copy);
}

nb::object dlpack(const Array& array, nb::handle stream, nb::handle max_version, nb::handle dl_device,
                  nb::handle copy) {
  const exchange::CallGuard guard;
  return exchange::as_call("interop.Array.__dlpack__", false,
                           [&] { return exchange::export_dlpack(array, stream, max_version, dl_device, copy); });
}

}  // namespace

void bind_array(nb::module_& m) {
  nb::class_<Array> type(m, "Array", nb::type_slots(kSlots), kDoc);
  // Not among the slots: those make a method of it, `__del__`.
  reinterpret_cast<PyTypeObject*>(type.ptr())->tp_finalize = &exchange::finish_reading;
  reinterpret_cast<PyTypeObject*>(type.ptr())->tp_name = "interop.Array";  // in Python's own messages
  type.def_prop_ro(
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
          "device",
          [](const Array& a) {
            const bool is_gpus = a.device.device_type == kDLCUDA || a.device.device_type == kDLCUDAManaged;
            return is_gpus ? device_text({kDLCUDA, a.gpu}) : std::string("cpu");
          },
          "Where the work on it goes, ``'cpu'``, also of pinned memory, or ``'cuda:0'``, also of managed memory.")
      .def_prop_ro("memory", &memory_name, nb::sig("def memory(self) -> str"),
                   "The memory that it lies in, ``'device'``, ``'managed'``, ``'pinned'`` or ``'host'``.")
      .def_prop_ro(
          "ndim", [](const Array& a) { return a.shape.size(); }, "The number of dimensions.")
      .def_prop_ro("stream", &stream, nb::sig("def stream(self) -> int | None"),
                   "The handle of the CUDA stream on which the array was last used or made; None if there is none.")
      .def("__dlpack__", &dlpack, nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("max_version") = nb::none(),
           nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none(),
           nb::sig("def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, "
                   "dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> typing.Any"),
           kDlpackDoc)
      .def(
          "__dlpack_device__",
          [](const Array& a) {
            const DLDevice device = a.exported_device();
            return nb::make_tuple(static_cast<int>(device.device_type), device.device_id);
          },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"), "The DLPack device type and id.")
      .def_prop_ro(
          "__cuda_array_interface__", [](const Array& a) { return exchange::export_cai(a, nullptr); },
          nb::sig("def __cuda_array_interface__(self) -> dict[str, typing.Any]"),
          "Version 3, with the stream to order on; AttributeError for host memory.")
      .def("__array__", &numpy_array, nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none(),
           nb::sig("def __array__(self, dtype: typing.Any = None, copy: bool | None = None) -> typing.Any"),
           "A NumPy array on the memory, also of the dtypes of ml_dtypes; TypeError for device memory.")
      .def(
          "__jax_array__", [](nb::handle self) { return exchange::jax_array(self, false); },
          nb::sig("def __jax_array__(self) -> typing.Any"),
          "What jax.numpy.asarray(x) makes of it: host memory as it takes NumPy's, device memory shared.")
      .def("__len__", &length, "The size of the first dimension.")
      .def_prop_ro_static(
          "__dlpack_c_exchange_api__", [](nb::handle) { return exchange::own_exchange_api(); },
          nb::sig("def __dlpack_c_exchange_api__(cls: object, /) -> typing.Any"),
          "The C functions of DLPack 1.3, in a capsule.");
  add_operators(type);
  add_resize(type);
  add_values(type);
  add_views(type);
}

}  // namespace interop::bindings
