/// CuPy arrays, by their own attributes: exact for every layout (CuPy's DLPack export garbles negative strides) and
/// free of CuPy's event waits.
#include <optional>

#include "exchange/checks.h"
#include "exchange/route.h"
#include "exchange/routes/numpy.h"
#include "exchange/stream.h"
#include "exchange/strides.h"

namespace interop::exchange {
namespace {

const Name kData("data");
const Name kPtr("ptr");
const Name kDeviceId("device_id");
const Name kShape("shape");
const Name kStrides("strides");
const Name kDtype("dtype");
const Name kInit("_init");
const Fact kDataOf("cupy", "ndarray", "data");
const Fact kShapeOf("cupy", "ndarray", "shape");
const Fact kStridesOf("cupy", "ndarray", "strides");
const Fact kDtypeOf("cupy", "ndarray", "dtype");
const Fact kIsContiguous("cupy", "ndarray", "_c_contiguous");  // what CuPy's own kernels go by
const Fact kPtrOf("cupy.cuda", "MemoryPointer", "ptr");
const Fact kDeviceIdOf("cupy.cuda", "MemoryPointer", "device_id");
const Lookup kMemoryPointer("cupy.cuda", "MemoryPointer");
const Lookup kNdarray("cupy", "ndarray");
const Lookup kCore("cupy", "_core.core");
const Lookup kBase("cupy", "_core.core._ndarray_base");
const Lookup kCurrentStream("cupy.cuda", "get_current_stream");
const Lookup kStream("cupy.cuda", "Stream");
const Lookup kExternalStream("cupy.cuda", "ExternalStream");
const Lookup kNamespace("types", "SimpleNamespace");
const Name kFromExternal("from_external");

DLDataType read_dtype(const Operand& operand, nb::handle dtype) {
  if (const auto found = dtype_of(dtype)) return *found;
  throw TypeError(operand.label() + " is " + text_of(dtype) +
                  "; accepted: bool, integers, floats and complex numbers in native byte order");
}

/// Reads an array of CuPy's own type past Python's lookup by name, which takes most of the time otherwise. False for
/// others: a subclass may have attributes of its own, and another CuPy not all of these in C.
bool read_exact(Operand& operand) {
  static bool is_other = false;
  const nb::handle array = operand.object;
  if (is_other || !array.type().is(kNdarray.get())) return false;
  try {
    for (const Fact* fact : {&kDataOf, &kShapeOf, &kStridesOf, &kDtypeOf, &kIsContiguous}) fact->require();
    for (const Fact* fact : {&kPtrOf, &kDeviceIdOf}) fact->require();
  } catch (const std::exception&) {
    is_other = true;
    return false;
  }
  const nb::object memory = kDataOf(array);
  if (!memory.type().is(kMemoryPointer.get())) return false;
  DLTensor& tensor = operand.tensor;
  tensor.dtype = read_dtype(operand, kDtypeOf(array));
  tensor.ndim = read_ints(operand, kShapeOf(array), operand.shape);
  tensor.data = reinterpret_cast<void*>(static_cast<uintptr_t>(to_int64(kPtrOf(memory))));
  tensor.device.device_id = static_cast<int32_t>(to_int64(kDeviceIdOf(memory)));
  if (!kIsContiguous(array).is(Py_True)) {
    read_strides(operand, kStridesOf(array));
    return true;
  }
  check_sizes(operand);
  compact_strides(operand.shape, tensor.ndim, operand.strides);
  for (int i = 0; i < tensor.ndim; ++i) {
    if (operand.shape[i] == 1) operand.strides[i] = 1;  // as `read_strides` has them
  }
  check_extent(operand);
  return true;
}

/// CuPy's stream of a handle: a context manager that makes it CuPy's current stream of the current device.
nb::object stream_of(cudaStream_t stream, int device) {
  const auto handle = reinterpret_cast<uintptr_t>(stream);
  const nb::object from_external = attribute_or_null(kStream.get(), kFromExternal);
  if (!from_external.is_valid()) return kExternalStream.get()(handle, device);  // CuPy 14 deprecates that
  nb::dict protocol;
  protocol["__cuda_stream__"] = nb::cpp_function([handle] { return nb::make_tuple(0, handle); });
  return from_external(kNamespace.get()(**protocol));
}

class CupyRoute final : public Route {
 public:
  const char* library() const override { return "cupy"; }
  const char* protocol() const override { return "attributes of cupy.ndarray"; }

  void inspect(Operand& operand) const override {
    DLTensor& tensor = operand.tensor;
    tensor = DLTensor{nullptr, {kDLCUDA, 0}, 0, {}, operand.shape, operand.strides, 0};
    if (read_exact(operand)) return;
    const nb::object memory = attribute(operand.object, kData);
    const nb::object shape = attribute(operand.object, kShape);
    const nb::object strides = attribute(operand.object, kStrides);
    tensor.dtype = read_dtype(operand, attribute(operand.object, kDtype));
    tensor.ndim = read_ints(operand, shape, operand.shape);
    tensor.data = reinterpret_cast<void*>(static_cast<uintptr_t>(to_int64(attribute(memory, kPtr))));
    tensor.device.device_id = static_cast<int32_t>(to_int64(attribute(memory, kDeviceId)));
    read_strides(operand, strides);
  }

  bool current_stream(int device, cudaStream_t* stream) const override {
    const nb::object current = kCurrentStream.get()(device);
    *stream = stream_from_handle(to_int64(attribute(current, kPtr)));
    return true;
  }

  Made empty(const Shape& shape, DLDataType dtype, DLDevice device, cudaStream_t stream, bool foreign) const override {
    if (!foreign) return allocate(shape, dtype);
    // CuPy's pool keeps memory apart by the stream that is current.
    const Within guard(stream_of(stream, device.device_id));
    return allocate(shape, dtype);
  }
  nb::object hand_over(nb::object made, cudaStream_t) const override { return made; }

 private:
  /// The constructor in C behind `cupy.ndarray`; null where this CuPy has another.
  static newfunc find_constructor() {
    const nb::handle base = nb::hasattr(kCore.get(), "_ndarray_base") ? nb::handle(kBase.get()) : nb::handle();
    return base && nb::hasattr(base, "_init") ? reinterpret_cast<PyTypeObject*>(base.ptr())->tp_new : nullptr;
  }

  // What `cupy.ndarray(shape, dtype)` does, past its generic __new__. The device of the call is current.
  static Made allocate(const Shape& shape, DLDataType dtype) {
    // Not in the initialiser of a static: its lock would be held across calls of Python.
    static std::optional<newfunc> found;
    if (!found) found = find_constructor();
    const newfunc make = *found;
    Made made;
    const nb::object sizes = shape_tuple(shape);
    if (make) {
      static PyObject* const no_arguments = PyTuple_New(0);
      made.object = nb::steal(make(reinterpret_cast<PyTypeObject*>(kNdarray.get().ptr()), no_arguments, nullptr));
      if (!made.object.is_valid()) nb::raise_python_error();
      PyObject* const arguments[] = {made.object.ptr(), sizes.ptr(), numpy_dtype(dtype).ptr()};
      PyObject* none = PyObject_VectorcallMethod(kInit.get(), arguments, 3, nullptr);
      if (!none) nb::raise_python_error();
      Py_DECREF(none);
    } else {
      made.object = kNdarray.get()(sizes, numpy_dtype(dtype));
    }
    made.data =
        reinterpret_cast<void*>(static_cast<uintptr_t>(to_int64(attribute(attribute(made.object, kData), kPtr))));
    return made;
  }
};

}  // namespace

const Route& cupy_route() {
  static const CupyRoute route;
  return route;
}

}  // namespace interop::exchange
