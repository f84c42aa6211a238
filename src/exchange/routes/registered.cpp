/// Array libraries that a user teaches from Python: `interop.register`.
#include "exchange/routes/registered.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "exchange/checks.h"
#include "exchange/stream.h"

namespace interop::exchange {
namespace {

/// While it lives, the operand is what was exported, for the route that reads that.
class AsExported {
 public:
  explicit AsExported(Operand& operand) : operand_(operand), object_(operand.object) {
    operand.object = operand.exported;
  }
  ~AsExported() { operand_.object = object_; }

 private:
  Operand& operand_;
  nb::handle object_;
};

constexpr const char* kExports = "an array with DLPack, __cuda_array_interface__ or a buffer, or a DLPack capsule";

/// One registration, which never changes: a call goes on by it while the type is registered again.
class RegisteredRoute final : public Route {
 public:
  /// `own` reads the type where there is no `export_array`.
  RegisteredRoute(const Registration& registration, const Route* own)
      : name_(registration.name), own_(own), writable_(registration.writable) {
    // Kept for ever, as the route is: no destructor here may need Python.
    type_ = registration.type.inc_ref().ptr();
    const auto keep = [](const nb::object& object) { return object.is_none() ? nullptr : object.inc_ref().ptr(); };
    export_ = keep(registration.export_array);
    current_stream_ = keep(registration.current_stream);
    empty_ = keep(registration.empty);
  }

  const char* library() const override { return name_.c_str(); }
  const char* protocol() const override { return export_ ? "interop.register" : own_->protocol(); }
  bool writable() const override { return writable_; }

  void inspect(Operand& operand) const override {
    const Route& inner = export_ ? export_by_user(operand) : use_object(operand);
    operand.exported_route = &inner;
    const AsExported exported(operand);
    inner.enter(operand);
    inner.inspect(operand);
    if (operand.tensor.device.device_type != kDLCUDA || operand.has_stream) return;
    if (current_stream_) {
      // Work is joined both ways with the stream by which the library orders its memory: not that of a temporary, which
      // may be another library's.
      operand.hold = operand.temporary;
    } else {
      operand.hold = operand.hold || operand.temporary;
      // The exported object's library may have a stream, which then is the array's own.
      operand.has_stream = inner.current_stream(operand.tensor.device.device_id, &operand.stream);
    }
  }
  void acquire(Operand& operand, cudaStream_t stream) const override {
    {
      const AsExported exported(operand);
      operand.exported_route->acquire(operand, stream);
    }
    operand.read_only = operand.read_only || !writable_;
    if (!operand.is_output || operand.read_only || is_own_memory(operand, stream)) return;
    throw BufferError(operand.label() + ": `export` of " + name_ + " returns a copy of the memory of " +
                      type_text(operand.object) + ", to which writing would be lost; accepted: its own memory, or " +
                      "writable=False in interop.register");
  }
  /// Exported again, the array's own memory has the same address; a copy has not, as the first one is still there.
  bool is_own_memory(const Operand& operand, cudaStream_t stream) const override {
    if (operand.exported.is(operand.object)) return true;
    Operand again;
    again.function = operand.function;
    again.name = operand.name;
    again.object = operand.object;
    again.exported_route = &export_by_user(again);
    const AsExported exported(again);
    again.exported_route->inspect(again);
    if (!again.tensor.shape) again.exported_route->acquire(again, stream);
    return again.tensor.data == operand.tensor.data || element_count(operand.tensor) == 0;
  }
  void used(Operand& operand, cudaStream_t stream) const override {
    const AsExported exported(operand);
    operand.exported_route->used(operand, stream);
  }

  void written(Operand& operand) const override {
    const AsExported exported(operand);
    operand.exported_route->written(operand);
  }

  bool current_stream(int device, cudaStream_t* stream) const override {
    if (!current_stream_) return false;
    PyObject* answer = PyObject_CallFunction(current_stream_, "i", device);
    if (!answer) throw BufferError("interop: the current stream of " + name_ + ": " + take_error_text());
    *stream = stream_argument(nb::steal(answer), ("interop: the current stream of " + name_).c_str());
    return true;
  }

  Made empty(const Shape& shape, DLDataType dtype, DLDevice device, cudaStream_t stream, bool foreign) const override {
    if (!empty_) return Route::empty(shape, dtype, device, stream, foreign);
    const nb::object handle =
        stream ? nb::steal(PyLong_FromVoidPtr(static_cast<void*>(stream))) : nb::object(nb::none());
    Made made;
    made.object = nb::handle(empty_)(shape_tuple(shape), dtype_name(dtype), device_text(device), handle);
    Operand array;
    array.function = "interop.register";
    array.name = "the array that `empty` returns";
    array.object = made.object;
    array.is_output = true;
    if (!is_own_type(made.object)) {
      throw BufferError(array.label() + " is " + type_text(made.object) + "; accepted: " + name_ + "'s own type");
    }
    inspect(array);
    acquire(array, stream);
    check_empty(array, shape, dtype, device);
    check_address(array);
    made.data = array.tensor.data;
    return made;
  }

 private:
  /// Is this how an array of the type is read, or was it until the type was registered again, during the call?
  bool is_own_type(nb::handle array) const;

  const Route& export_by_user(Operand& operand) const {
    PyObject* exported = PyObject_CallOneArg(export_, operand.object.ptr());
    if (!exported) {
      throw BufferError(operand.label() + ": " + type_text(operand.object) +
                        " refuses to export: " + take_error_text());
    }
    operand.exported = nb::steal(exported);
    if (exported == Py_NotImplemented) return use_object(operand);
    operand.temporary = Py_REFCNT(exported) == 1;
    const Route* inner = find_route(operand.exported);
    if (!inner || registered_route(Py_TYPE(exported))) {
      throw BufferError(operand.label() + ": `export` of " + name_ + " returns " + type_text(operand.exported) +
                        "; accepted: " + kExports);
    }
    return *inner;
  }
  /// The object is read by a protocol of its own. Where `export` left it to that, one of a subclass counts, too.
  const Route& use_object(Operand& operand) const {
    const bool is_known = own_ && (!export_ || reinterpret_cast<PyObject*>(Py_TYPE(operand.object.ptr())) == type_);
    const Route* own = is_known ? own_ : built_in_route_of(operand.object);
    if (!own) {
      throw BufferError(operand.label() + ": `export` of " + name_ + " returns NotImplemented, and " +
                        type_text(operand.object) + " is read by no other protocol; accepted: " + kExports);
    }
    operand.exported = nb::borrow(operand.object);
    return *own;
  }

  static void check_empty(const Operand& array, const Shape& shape, DLDataType dtype, DLDevice device) {
    const DLTensor& tensor = array.tensor;
    const auto refuse = [&](const std::string& got, const std::string& accepted) {
      throw BufferError(array.label() + " " + got + "; accepted: " + accepted);
    };
    if (tensor.ndim != shape.ndim || !std::equal(shape.sizes, shape.sizes + shape.ndim, tensor.shape)) {
      refuse("has shape " + shape_text(tensor), shape_text(shape));
    }
    if (tensor.dtype != dtype) refuse("is " + dtype_name(tensor.dtype), dtype_name(dtype));
    if (tensor.device.device_type != device.device_type || tensor.device.device_id != device.device_id) {
      if (element_count(tensor) > 0) refuse("is on " + device_text(tensor.device), device_text(device));
    }
    if (!is_compact(tensor)) refuse("is strided", "a compact row-major array");
    if (array.read_only) refuse("is read-only", "a writable array");
  }

  const std::string name_;
  const Route* const own_;
  const bool writable_;
  PyObject* type_ = nullptr;
  PyObject* export_ = nullptr;
  PyObject* current_stream_ = nullptr;
  PyObject* empty_ = nullptr;
};

/// One for each registered type, the latest first; a list that only grows, so that it is read without a lock.
struct Node {
  PyObject* type;
  std::atomic<const RegisteredRoute*> route;  // the latest registration of the type
  Node* next;
};
std::atomic<Node*> nodes{nullptr};

Node* find_node(PyObject* type) {
  Node* node = nodes.load(std::memory_order_acquire);
  while (node && node->type != type) node = node->next;
  return node;
}

const RegisteredRoute* find_nearest(PyTypeObject* type) {
  if (!nodes.load(std::memory_order_acquire)) return nullptr;
  PyObject* mro = type->tp_mro;
  for (Py_ssize_t i = 0; mro && i < PyTuple_GET_SIZE(mro); ++i) {
    if (const Node* node = find_node(PyTuple_GET_ITEM(mro, i))) return node->route.load(std::memory_order_acquire);
  }
  return nullptr;
}

bool RegisteredRoute::is_own_type(nb::handle array) const {
  if (find_route(array) == this) return true;
  const RegisteredRoute* nearest = find_nearest(Py_TYPE(array.ptr()));
  return nearest && nearest->type_ == type_;
}

}  // namespace

const Route* registered_route(PyTypeObject* type) { return find_nearest(type); }

void register_library(Registration registration) {
  auto* type = reinterpret_cast<PyTypeObject*>(registration.type.ptr());
  const std::string text = shown(registration.type);
  const Route* own = built_in_route(type);
  if (is_known_library(type)) {
    throw ValueError("interop.register: " + text + " is an array of " + own->library() +
                     ", which interop knows; accepted: types of other libraries, and subclasses");
  }
  if (registration.export_array.is_none() && !own) {
    throw TypeError("interop.register: " + text +
                    " has no protocol by which it could be read; pass `export`, which returns an array that has one");
  }
  // The looks above called Python, which lets other threads in. From here on nothing does.
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto* route = new RegisteredRoute(registration, own);
  if (Node* node = find_node(registration.type.ptr())) {
    node->route.store(route, std::memory_order_release);  // what it was before stays, for the calls that are about
  } else {
    nodes.store(new Node{registration.type.ptr(), route, nodes.load()}, std::memory_order_release);
  }
  refresh_routes(type);
}

}  // namespace interop::exchange
