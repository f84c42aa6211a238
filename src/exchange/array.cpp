/// `interop.Array`: its memory, its exports, and its route as an operand.
#include "exchange/array.h"

#include <cstdlib>

#include "exchange/reaper.h"
#include "exchange/stream.h"
#include "exchange/typestr.h"

namespace interop::exchange {
namespace {

constexpr size_t kHostAlignment = 64;  // what JAX needs to take host memory as it is

size_t byte_count(const Array& array) {
  return static_cast<size_t>(element_count(array.shape.data(), static_cast<int>(array.shape.size())) *
                             item_bytes(array.dtype));
}

std::shared_ptr<void> host_memory(size_t bytes) {
  void* pointer = std::aligned_alloc(kHostAlignment, (bytes + kHostAlignment - 1) / kHostAlignment * kHostAlignment);
  if (!pointer) throw std::bad_alloc();
  return std::shared_ptr<void>(pointer, &std::free);
}

// ---- DLPack ----

/// What an exported tensor owns: the managed struct the consumer sees, and all that it points to.
template <class Managed>
struct Export {
  Managed managed{};
  std::shared_ptr<void> memory;
  std::vector<int64_t> shape, strides;
};

// Runs on any thread, with or without the GIL: the memory's own deleter knows what it needs.
template <class Managed>
void delete_export(Managed* managed) {
  delete static_cast<Export<Managed>*>(managed->manager_ctx);
}

template <class Managed>
void destroy_capsule(PyObject* capsule, const char* name) {
  if (!PyCapsule_IsValid(capsule, name)) return;  // consumed: renamed
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  managed->deleter(managed);
}
void destroy_legacy(PyObject* capsule) { destroy_capsule<DLManagedTensor>(capsule, "dltensor"); }
void destroy_versioned(PyObject* capsule) {
  destroy_capsule<DLManagedTensorVersioned>(capsule, "dltensor_versioned");
}

template <class Managed>
Export<Managed>* new_export(const Array& array) {
  auto* out = new Export<Managed>{{}, array.memory, array.shape, array.strides};
  const bool empty = byte_count(array) == 0;
  out->managed.dl_tensor = {empty ? nullptr : array.data, array.device,       static_cast<int32_t>(array.shape.size()),
                            array.dtype,                  out->shape.data(), out->strides.data(), 0};
  out->managed.manager_ctx = out;
  out->managed.deleter = &delete_export<Managed>;
  return out;
}

nb::object new_capsule(void* managed, const char* name, PyCapsule_Destructor destructor) {
  PyObject* capsule = PyCapsule_New(managed, name, destructor);
  if (!capsule) nb::raise_python_error();
  return nb::steal(capsule);
}

/// Makes the array ready on the stream that a consumer named in `__dlpack__(stream=)`.
void order_export(const Array& array, nb::handle stream) {
  if (array.on_host()) {
    if (!stream.is_none()) {
      throw ValueError("interop.Array.__dlpack__: stream is " + nb::cast<std::string>(nb::repr(stream)) +
                       "; accepted for host memory: None");
    }
    return;
  }
  if (stream.is_none()) {
    array.make_wait(cuda::kLegacyStream);
    return;
  }
  const int64_t handle = to_int64(stream);
  if (handle == -1) return;  // the consumer orders itself
  if (handle < -1) {
    throw ValueError("interop.Array.__dlpack__: stream is " + std::to_string(handle) +
                     "; accepted: None, -1, 1, 2 or a CUDA stream handle");
  }
  array.make_wait(stream_from_handle(handle));
}

bool same_device(nb::handle dl_device, DLDevice device) {
  const nb::object pair = nb::borrow(dl_device);
  const auto number = [&](int i) { return to_int64(nb::steal<nb::object>(PyNumber_Long(nb::object(pair[i]).ptr()))); };
  return number(0) == device.device_type && number(1) == device.device_id;
}

// ---- the route ----

const Array& array_of(nb::handle object) { return nb::cast<const Array&>(object); }

class ArrayRoute final : public Route {
 public:
  const char* library() const override { return "interop"; }
  const char* protocol() const override { return "interop.Array"; }

  void inspect(Operand& operand) const override {
    const Array& array = array_of(operand.object);
    operand.tensor = array.tensor();
    std::copy(array.shape.begin(), array.shape.end(), operand.shape);
    std::copy(array.strides.begin(), array.strides.end(), operand.strides);
    operand.tensor.shape = operand.shape;
    operand.tensor.strides = operand.strides;
    operand.read_only = array.read_only;
  }
  void acquire(Operand& operand, cudaStream_t stream) const override {
    if (stream) array_of(operand.object).make_wait(stream);
  }
  void used(Operand& operand, cudaStream_t stream) const override {
    nb::cast<Array&>(operand.object).used_on(stream);
  }
  bool own_stream() const override { return true; }
};

}  // namespace

DLTensor Array::tensor() const {
  return {data,  device, static_cast<int32_t>(shape.size()), dtype, const_cast<int64_t*>(shape.data()),
          const_cast<int64_t*>(strides.data()), 0};
}

void Array::make_wait(cudaStream_t waiter) const {
  if (!last_use) return;
  const cuda::DeviceGuard guard(device.device_id);
  if (cuda::is_capturing(waiter)) {
    // What was queued outside the capture cannot become part of it; on its own stream it comes before every replay.
    if (waiter == stream || last_use.done()) return;
    throw ValueError("interop: an interop.Array is still in use by work that was queued before the capture into a CUDA "
                     "graph; synchronise before the capture");
  }
  // Also where `waiter` has the handle of `stream`: a destroyed stream's handle may be a new stream's.
  last_use.make_wait(waiter);
}

void Array::used_on(cudaStream_t used) {
  if (on_host()) return;
  stream = used;
  // In a capture nothing runs yet: its replays are ordered by whoever launches them.
  last_use = cuda::is_capturing(used) ? cuda::Event() : cuda::Event(used);
}

Array new_array(const Shape& shape, DLDataType dtype, DLDevice device, cudaStream_t stream) {
  Array array;
  array.device = device;
  array.dtype = dtype;
  array.shape.assign(shape.sizes, shape.sizes + shape.ndim);
  array.strides.resize(shape.ndim);
  compact_strides(shape.sizes, shape.ndim, array.strides.data());
  const size_t bytes = byte_count(array);
  if (bytes == 0) return array;
  if (array.on_host()) {
    array.memory = host_memory(bytes);
  } else {
    array.memory = std::shared_ptr<void>(cuda::allocate(bytes, stream),
                                         [id = device.device_id](void* pointer) { cuda::release(pointer, id); });
    array.stream = stream;
    if (cuda::is_capturing(stream)) {  // replays write to it, whatever becomes of the array
      std::vector<Held> held(1);
      held[0].release = Release(new std::shared_ptr<void>(array.memory),
                                [](void* shared) { delete static_cast<std::shared_ptr<void>*>(shared); });
      hold_for(stream, device.device_id, std::move(held));
    }
  }
  array.data = array.memory.get();
  return array;
}

nb::object view_of(const Operand& operand) {
  Array array;
  const nb::handle object = operand.memory();
  // Views live as long as NumPy's arrays on them; they are made and dropped with the GIL.
  array.memory = std::shared_ptr<void>(object.inc_ref().ptr(), [](void* owner) {
    if (interpreter_is_gone()) return;
    const nb::gil_scoped_acquire gil;
    Py_DECREF(static_cast<PyObject*>(owner));
  });
  const DLTensor& tensor = operand.tensor;
  array.data = tensor.data;
  array.device = {kDLCPU, 0};
  array.dtype = tensor.dtype;
  array.shape.assign(tensor.shape, tensor.shape + tensor.ndim);
  array.strides.assign(tensor.strides, tensor.strides + tensor.ndim);
  array.read_only = operand.read_only;
  return nb::cast(std::move(array));
}

nb::object export_dlpack(const Array& array, nb::handle stream, nb::handle max_version, nb::handle dl_device,
                         nb::handle copy) {
  if (!dl_device.is_none() && !same_device(dl_device, array.device)) {
    throw BufferError("interop.Array.__dlpack__: dl_device is " + nb::cast<std::string>(nb::repr(dl_device)) +
                      "; accepted: None, or the array's own device, " + device_text(array.device));
  }
  if (!copy.is_none() && nb::cast<bool>(copy)) {
    throw BufferError("interop.Array.__dlpack__: copy is True; accepted: None, False (the memory is shared)");
  }
  order_export(array, stream);
  const bool versioned =
      !max_version.is_none() && to_int64(nb::object(nb::borrow(max_version)[0])) >= DLPACK_MAJOR_VERSION;
  if (versioned) {
    auto* out = new_export<DLManagedTensorVersioned>(array);
    out->managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    out->managed.flags = array.read_only ? DLPACK_FLAG_BITMASK_READ_ONLY : 0;
    return new_capsule(&out->managed, "dltensor_versioned", &destroy_versioned);
  }
  if (array.read_only) {
    throw BufferError("interop.Array.__dlpack__: the array is read-only, which an unversioned capsule cannot say; "
                      "ask with max_version=(1, 0) or later");
  }
  return new_capsule(&new_export<DLManagedTensor>(array)->managed, "dltensor", &destroy_legacy);
}

nb::dict export_cai(const Array& array) {
  if (array.on_host()) {
    throw nb::attribute_error("__cuda_array_interface__: the array is in host memory; use the buffer protocol");
  }
  const std::string typestr = typestr_of(array.dtype);
  if (typestr.empty()) {
    throw nb::attribute_error(("__cuda_array_interface__ cannot express " + dtype_name(array.dtype)).c_str());
  }
  const int ndim = static_cast<int>(array.shape.size());
  const int64_t item = item_bytes(array.dtype);
  nb::dict interface;
  interface["shape"] = shape_tuple(array.shape.data(), ndim);
  interface["typestr"] = typestr;
  const uintptr_t pointer = byte_count(array) == 0 ? 0 : reinterpret_cast<uintptr_t>(array.data);
  interface["data"] = nb::make_tuple(pointer, array.read_only);
  interface["version"] = 3;
  if (is_compact(array.tensor())) {
    interface["strides"] = nb::none();
  } else {
    std::vector<int64_t> bytes(array.strides);
    for (int64_t& stride : bytes) stride *= item;
    interface["strides"] = shape_tuple(bytes.data(), ndim);
  }
  if (array.last_use) {
    // Named to the consumer: a stream that outlives the array, ordered behind its last use. The array's own stream may
    // be the user's, and gone by then.
    const cuda::DeviceGuard guard(array.device.device_id);
    const cudaStream_t ready = cuda::own_stream();
    array.make_wait(ready);
    interface["stream"] = reinterpret_cast<uintptr_t>(ready);
  } else {
    interface["stream"] = nb::none();
  }
  return interface;
}

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const Array& array = array_of(self);
  view->obj = nullptr;
  const char* format = format_of(array.dtype);
  if (!array.on_host() || !format || ((flags & PyBUF_WRITABLE) && array.read_only)) {
    PyErr_SetString(PyExc_BufferError, !array.on_host() ? "interop.Array: device memory has no buffer; use __dlpack__"
                                       : !format        ? "interop.Array: the buffer protocol has no such dtype"
                                                        : "interop.Array: the array is read-only");
    return -1;
  }
  const int ndim = static_cast<int>(array.shape.size());
  if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES && !is_compact(array.tensor())) {
    PyErr_SetString(PyExc_BufferError, "interop.Array: the array is strided; ask for strides");
    return -1;
  }
  const int64_t item = item_bytes(array.dtype);
  // One block: the shape, then the strides in bytes; released with the view.
  auto* sizes = new Py_ssize_t[2 * static_cast<size_t>(ndim) + 1];
  for (int i = 0; i < ndim; ++i) {
    sizes[i] = array.shape[i];
    sizes[ndim + i] = array.strides[i] * item;
  }
  view->buf = array.data;
  view->len = static_cast<Py_ssize_t>(byte_count(array));
  view->itemsize = item;
  view->readonly = array.read_only;
  view->ndim = ndim;
  view->format = (flags & PyBUF_FORMAT) ? const_cast<char*>(format) : nullptr;
  view->shape = (flags & PyBUF_ND) ? sizes : nullptr;
  view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? sizes + ndim : nullptr;
  view->suboffsets = nullptr;
  view->internal = sizes;
  view->obj = Py_NewRef(self);
  return 0;
}

void release_buffer(PyObject*, Py_buffer* view) { delete[] static_cast<Py_ssize_t*>(view->internal); }

const Route& array_route() {
  static const ArrayRoute route;
  return route;
}

// The default of every library that cannot be asked to allocate: interop's own array.
Made Route::empty(const Shape& shape, DLDataType dtype, DLDevice device, cudaStream_t stream, bool) const {
  Array array = new_array(shape, dtype, device, stream);
  void* data = array.data;
  return {nb::cast(std::move(array)), data};
}

nb::object Route::hand_over(nb::object made, cudaStream_t stream) const {
  if (stream && nb::isinstance<Array>(made)) nb::cast<Array&>(made).used_on(stream);
  return made;
}

}  // namespace interop::exchange
