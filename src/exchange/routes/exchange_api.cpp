/// The DLPack C exchange API: tvm-ffi's and cuda.core's views, Paddle, and whoever else puts the table on a type.
#include "exchange/routes/exchange_api.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "exchange/stream.h"

namespace interop::exchange {
namespace {

const Name kCapsule("__dlpack_c_exchange_api__");
const Name kOlder("__c_dlpack_exchange_api__");  // of late 2025, still about: an int, or the capsule again

const DLPackExchangeAPI* table_of(nb::handle value) {
  if (PyCapsule_IsValid(value.ptr(), "dlpack_exchange_api")) {
    return static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(value.ptr(), "dlpack_exchange_api"));
  }
  if (PyLong_CheckExact(value.ptr())) return static_cast<const DLPackExchangeAPI*>(PyLong_AsVoidPtr(value.ptr()));
  return nullptr;
}

std::string package_of(nb::handle type) {
  const nb::object module = nb::getattr(type, "__module__", nb::none());
  if (!nb::isinstance<nb::str>(module)) return "unknown";
  const std::string text = text_of(module);
  return text.substr(0, text.find('.'));
}

}  // namespace

const DLPackExchangeAPI* find_exchange_api(nb::handle type) {
  for (const Name* name : {&kCapsule, &kOlder}) {
    const nb::object value = attribute_or_null(type, *name);
    const DLPackExchangeAPI* table = value.is_valid() ? table_of(value) : nullptr;
    if (!table) PyErr_Clear();  // an int beyond all addresses
    // Of a table from another major version nothing but its header can be read: it names the one before it.
    while (table && table->header.version.major != DLPACK_MAJOR_VERSION) {
      table = reinterpret_cast<const DLPackExchangeAPI*>(table->header.prev_api);
    }
    if (table && table->managed_tensor_from_py_object_no_sync) return table;
  }
  return nullptr;
}

namespace {

/// Is the tensor what was asked of an allocator? What it points to is written without a further look.
bool is_as_asked(const DLTensor& made, const DLTensor& asked) {
  if (made.ndim != asked.ndim || made.dtype != asked.dtype) return false;
  if (made.ndim > 0 && (!made.shape || !std::equal(asked.shape, asked.shape + asked.ndim, made.shape))) return false;
  if (made.strides && !is_compact(made)) return false;
  return made.data || element_count(asked) == 0;
}

}  // namespace

Made allocate_by(const DLPackExchangeAPI& api, const Shape& shape, DLDataType dtype, DLDevice device) {
  DLTensor prototype{nullptr, device, shape.ndim, dtype, const_cast<int64_t*>(shape.sizes), nullptr, 0};
  DLManagedTensorVersioned* managed = nullptr;
  std::array<std::string, 2> error;
  const auto set_error = [](void* context, const char* kind, const char* message) {
    *static_cast<std::array<std::string, 2>*>(context) = {kind, message};
  };
  if (api.managed_tensor_allocator(&prototype, &managed, &error, set_error) != 0) {
    if (PyErr_Occurred()) nb::raise_python_error();
    PyErr_SetString(error[0] == "MemoryError" ? PyExc_MemoryError : PyExc_RuntimeError, error[1].c_str());
    nb::raise_python_error();
  }
  if (!managed || !is_as_asked(managed->dl_tensor, prototype)) {
    if (managed && managed->deleter) managed->deleter(managed);
    throw BufferError("interop: the allocator of an array library makes another tensor than the one asked for, " +
                      dtype_name(dtype) + " of shape " + shape_text(shape) + "; accepted: a new row-major one");
  }
  void* data =
      managed->dl_tensor.data ? static_cast<char*>(managed->dl_tensor.data) + managed->dl_tensor.byte_offset : nullptr;
  PyObject* array = nullptr;
  if (api.managed_tensor_to_py_object_no_sync(managed, reinterpret_cast<void**>(&array)) != 0) {
    nb::raise_python_error();
  }
  return {nb::steal(array), data};
}

// The owning form of the export, not the borrowing one: it alone says whether the memory may be written to.
void ExchangeApiRoute::inspect(Operand& operand) const {
  DLManagedTensorVersioned* managed = nullptr;
  if (api_.managed_tensor_from_py_object_no_sync(operand.object.ptr(), &managed) != 0) {
    throw BufferError(operand.label() + ": " + type_text(operand.object) + " refuses to export: " + take_error_text());
  }
  read_managed(operand, managed);
  // Without its stream, nothing orders the producer's allocator.
  operand.hold = !operand.on_host() && !api_.current_work_stream;
}

bool ExchangeApiRoute::current_stream(int device, cudaStream_t* stream) const {
  if (!api_.current_work_stream) return false;
  void* current = nullptr;
  if (api_.current_work_stream(kDLCUDA, device, &current) != 0) {
    throw BufferError("interop: the current stream of " + library_ + ": " + take_error_text());
  }
  *stream = stream_from_handle(static_cast<int64_t>(reinterpret_cast<uintptr_t>(current)));
  return true;
}

// On a stream that is not the library's, its allocator could not tell when the memory is free again: then, and where
// there is no allocator (views have none), the result is interop's own array.
Made ExchangeApiRoute::empty(const Shape& shape, DLDataType dtype, DLDevice device, cudaStream_t stream,
                             bool foreign) const {
  const bool complete = api_.managed_tensor_allocator && api_.managed_tensor_to_py_object_no_sync;
  if (!complete || foreign) return Route::empty(shape, dtype, device, stream, foreign);
  try {
    return allocate_by(api_, shape, dtype, device);
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_NotImplementedError)) throw;
  }
  return Route::empty(shape, dtype, device, stream, foreign);
}

const Route& exchange_api_route(nb::handle type, const DLPackExchangeAPI& api) {
  struct Known {
    const DLPackExchangeAPI* api;
    const Route* route;
    Known* next;
  };
  static std::mutex mutex;
  static Known* known = nullptr;  // as few as there are libraries
  std::string library = package_of(type);
  const std::lock_guard<std::mutex> lock(mutex);
  for (const Known* entry = known; entry; entry = entry->next) {
    if (entry->api == &api) return *entry->route;
  }
  known = new Known{&api, new ExchangeApiRoute(api, std::move(library)), known};
  return *known->route;
}

}  // namespace interop::exchange
