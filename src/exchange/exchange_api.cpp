/// The DLPack C exchange API: a table of C functions on the type, for kernel libraries that work on the producer's own
/// stream. As its consumer (types of which no more is known), and as a producer (`interop.Array`).
#include "exchange/exchange_api.h"

#include <array>

#include "exchange/dlpack.h"
#include "exchange/export.h"
#include "exchange/stream.h"
#include "exchange/view.h"

namespace interop::exchange {
namespace {

const Name kAttribute("__dlpack_c_exchange_api__");
constexpr const char* kCapsule = "dlpack_exchange_api";

}  // namespace

// ---- the consumer ----

const DLPackExchangeAPI* find_exchange_api(nb::handle type) {
  const nb::object capsule = attribute_or_null(type, kAttribute);
  if (!capsule.is_valid() || !PyCapsule_IsValid(capsule.ptr(), kCapsule)) return nullptr;
  auto* header = static_cast<const DLPackExchangeAPIHeader*>(PyCapsule_GetPointer(capsule.ptr(), kCapsule));
  while (header && header->version.major != DLPACK_MAJOR_VERSION) header = header->prev_api;
  return reinterpret_cast<const DLPackExchangeAPI*>(header);
}

Made allocate(const DLPackExchangeAPI& api, const Shape& shape, DLDataType dtype, DLDevice device) {
  DLTensor prototype{nullptr, device, shape.ndim, dtype, const_cast<int64_t*>(shape.sizes), nullptr, 0};
  DLManagedTensorVersioned* managed = nullptr;
  std::array<std::string, 2> error;
  const auto set_error = [](void* context, const char* kind, const char* message) {
    auto& words = *static_cast<std::array<std::string, 2>*>(context);
    words = {kind, message};
  };
  if (api.managed_tensor_allocator(&prototype, &managed, &error, set_error) != 0) {
    if (PyErr_Occurred()) nb::raise_python_error();
    PyErr_SetString(error[0] == "MemoryError" ? PyExc_MemoryError : PyExc_RuntimeError, error[1].c_str());
    nb::raise_python_error();
  }
  void* data = static_cast<char*>(managed->dl_tensor.data) + managed->dl_tensor.byte_offset;
  PyObject* made = nullptr;
  if (api.managed_tensor_to_py_object_no_sync(managed, reinterpret_cast<void**>(&made)) != 0 || !made) {
    throw BufferError("interop: the C exchange API makes no array: " + take_error_text());
  }
  return {nb::steal(made), data};
}

cudaStream_t current_work_stream(const DLPackExchangeAPI& api, int device) {
  void* current = nullptr;
  if (api.current_work_stream(kDLCUDA, device, &current) != 0) nb::raise_python_error();
  return stream_from_handle(static_cast<int64_t>(reinterpret_cast<uintptr_t>(current)));
}

namespace {

class ExchangeApiRoute final : public Route {
 public:
  ExchangeApiRoute(PyTypeObject* type, const DLPackExchangeAPI& api) : api_(api) {
    const nb::object module = nb::getattr(nb::handle((PyObject*)type), "__module__", nb::none());
    const std::string name = nb::isinstance<nb::str>(module) ? nb::cast<std::string>(module) : type->tp_name;
    library_ = name.substr(0, name.find('.'));
  }
  const char* library() const override { return library_.c_str(); }
  const char* protocol() const override { return "__dlpack_c_exchange_api__"; }

  // The owning form: a view of the array may outlive the call.
  void inspect(Operand& operand) const override {
    DLManagedTensorVersioned* managed = nullptr;
    if (api_.managed_tensor_from_py_object_no_sync(operand.object.ptr(), &managed) != 0 || !managed) {
      throw BufferError(operand.label() + ": " + type_text(operand.object) +
                        " refuses to export: " + take_error_text());
    }
    operand.release = Release(managed, [](void* pointer) {
      auto* owned = static_cast<DLManagedTensorVersioned*>(pointer);
      if (owned->deleter) owned->deleter(owned);
    });
    operand.read_only = (managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
    read_dltensor(operand, managed->dl_tensor);
  }
  bool current_stream(int device, cudaStream_t* stream) const override {
    *stream = current_work_stream(api_, device);
    return true;
  }
  Made empty(const Shape& shape, DLDataType dtype, DLDevice device, cudaStream_t, bool) const override {
    return allocate(api_, shape, dtype, device);
  }
  nb::object hand_over(nb::object made, cudaStream_t) const override { return made; }

 private:
  const DLPackExchangeAPI& api_;
  std::string library_;
};

// ---- the producer ----

/// Runs `body` as a C function of the table: 0, or -1 with the Python error set.
template <class Body>
int as_c(Body&& body) noexcept {
  try {
    body();
    return 0;
  } catch (...) {
    set_python_error();
    return -1;
  }
}

Array& array_of(void* object) { return nb::cast<Array&>(nb::handle(static_cast<PyObject*>(object))); }

Array allocate_like(const DLTensor& prototype) {
  if (prototype.ndim < 0 || prototype.ndim > kMaxDims) {
    throw ValueError("interop: allocator: ndim is " + std::to_string(prototype.ndim) + "; accepted: up to " +
                     std::to_string(kMaxDims));
  }
  Shape shape;
  shape.ndim = prototype.ndim;
  std::copy(prototype.shape, prototype.shape + prototype.ndim, shape.sizes);
  if (prototype.device.device_type == kDLCPU) return new_array(shape, prototype.dtype, {kDLCPU, 0}, nullptr);
  if (prototype.device.device_type != kDLCUDA) {
    throw ValueError("interop: allocator: device is " + device_text(prototype.device) +
                     "; accepted: host memory and CUDA devices");
  }
  const cuda::DeviceGuard guard(prototype.device.device_id);
  return new_array(shape, prototype.dtype, prototype.device, cuda::own_stream());
}

using SetError = void (*)(void*, const char*, const char*);

int allocate_managed(DLTensor* prototype, DLManagedTensorVersioned** out, void* context, SetError set_error) {
  const char* kind = "RuntimeError";
  try {
    *out = export_managed(allocate_like(*prototype));
    return 0;
  } catch (const std::bad_alloc&) {
    set_error(context, "MemoryError", "interop: out of memory");
    return -1;
  } catch (const ValueError& error) {
    kind = "ValueError";
    set_error(context, kind, error.what());
    return -1;
  } catch (const std::exception& error) {
    set_error(context, kind, error.what());
    return -1;
  }
}

int managed_from_py(void* object, DLManagedTensorVersioned** out) {
  return as_c([&] {
    Array& array = array_of(object);
    array.lend();
    *out = export_managed(array);
  });
}

int managed_to_py(DLManagedTensorVersioned* managed, void** out) {
  return as_c([&] {
    Operand operand;
    operand.function = "interop.Array";
    operand.name = "the tensor";
    operand.object = Py_None;  // for messages
    operand.release = Release(managed, [](void* pointer) {
      auto* owned = static_cast<DLManagedTensorVersioned*>(pointer);
      if (owned->deleter) owned->deleter(owned);
    });
    operand.read_only = (managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
    read_dltensor(operand, managed->dl_tensor);
    Array array = take_view(operand);
    if (array.gpu >= 0) {  // by the rules of the API, work on it goes on our stream of this thread
      const cuda::DeviceGuard guard(array.gpu);
      array.stream = array.lent = cuda::own_stream();
    }
    *out = nb::cast(std::move(array)).release().ptr();
  });
}

int dltensor_from_py(void* object, DLTensor* out) {
  return as_c([&] {
    Array& array = array_of(object);
    array.lend();
    *out = array.tensor();
    if (byte_count(array) == 0) out->data = nullptr;
  });
}

int own_work_stream(DLDeviceType type, int32_t device, void** out) {
  return as_c([&] {
    *out = nullptr;
    if (type != kDLCUDA && type != kDLCUDAManaged) return;
    const cuda::DeviceGuard guard(device);
    *out = cuda::own_stream();
  });
}

const DLPackExchangeAPI kOwnApi{{{DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION}, nullptr},
                                &allocate_managed,
                                &managed_from_py,
                                &managed_to_py,
                                &dltensor_from_py,
                                &own_work_stream};

}  // namespace

const Route* exchange_api_route(PyTypeObject* type) {
  const DLPackExchangeAPI* api = find_exchange_api(nb::handle((PyObject*)type));
  return api ? new ExchangeApiRoute(type, *api) : nullptr;  // kept with the type, by the cache of routes
}

nb::object own_exchange_api() {
  PyObject* capsule = PyCapsule_New(const_cast<DLPackExchangeAPI*>(&kOwnApi), kCapsule, nullptr);
  if (!capsule) nb::raise_python_error();
  return nb::steal(capsule);
}

}  // namespace interop::exchange
