/// The DLPack C exchange API of `interop.Array`: a table of C functions for kernel libraries that work on our stream.
#include "exchange/array/own_table.h"

#include <algorithm>

#include "exchange/array/export.h"
#include "exchange/array/view.h"
#include "exchange/checks.h"
#include "exchange/reaper.h"
#include "exchange/routes/dlpack.h"
#include "exchange/stream.h"

namespace interop::exchange {
namespace {

constexpr const char* kTableName = "dlpack_exchange_api";

thread_local WorkingStream* innermost = nullptr;

/// That of this thread, for this device; null if there is none.
WorkingStream* working_on(int device) { return innermost && innermost->device() == device ? innermost : nullptr; }

cudaStream_t work_stream(int device) {
  const WorkingStream* const working = working_on(device);
  return working ? working->stream() : cuda::own_stream();
}

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

Array& array_of(void* object) {
  const nb::handle handle(static_cast<PyObject*>(object));
  if (handle.is_valid() && nb::isinstance<Array>(handle)) return nb::cast<Array&>(handle);
  throw TypeError("interop: the exchange table of interop.Array is given " +
                  (handle.is_valid() ? type_text(handle) : std::string("NULL")) + "; accepted: an interop.Array");
}

/// The prototype's shape, and nothing else of it, as `new_array` takes it.
Shape read_shape(const DLTensor& prototype) {
  const std::string label = "interop: allocator: ";
  if (prototype.ndim < 0 || prototype.ndim > kMaxDims) {
    throw ValueError(label + "ndim is " + std::to_string(prototype.ndim) + "; accepted: up to " +
                     std::to_string(kMaxDims));
  }
  if (prototype.ndim > 0 && !prototype.shape) {
    throw ValueError(label + "shape is NULL; accepted: a size for each of " + std::to_string(prototype.ndim) +
                     " dimensions");
  }
  Shape shape;
  shape.ndim = prototype.ndim;
  std::copy(prototype.shape, prototype.shape + prototype.ndim, shape.sizes);
  if (std::any_of(shape.sizes, shape.sizes + shape.ndim, [](int64_t size) { return size < 0; })) {
    throw ValueError(label + "shape is " + shape_text(shape) + "; accepted: no negative sizes");
  }
  if (is_beyond_counting({nullptr, {}, shape.ndim, prototype.dtype, shape.sizes, nullptr, 0})) {
    throw ValueError(label + "shape is " + shape_text(shape) + ", more elements than any memory");
  }
  return shape;
}

Array allocate_like(const DLTensor* given) {
  if (!given) throw ValueError("interop: allocator: the prototype is NULL; accepted: a DLTensor");
  const DLTensor& prototype = *given;
  Operand operand;  // for messages
  operand.function = "interop";
  operand.name = "allocator: the prototype";
  check_dtype(operand, prototype.dtype);
  const Shape shape = read_shape(prototype);
  if (prototype.device.device_type == kDLCPU) return new_array(shape, prototype.dtype, {kDLCPU, 0}, nullptr);
  if (prototype.device.device_type != kDLCUDA) {
    throw ValueError("interop: allocator: device is " + device_text(prototype.device) +
                     "; accepted: host memory and CUDA devices");
  }
  const int device = prototype.device.device_id;
  const cuda::DeviceGuard guard(device);
  Array array = new_array(shape, prototype.dtype, prototype.device, work_stream(device));
  if (WorkingStream* const working = working_on(device)) working->keep(array.memory);
  return array;
}

void lend(void* object, Array& array) {
  if (WorkingStream* const working = working_on(array.gpu); working && array.work) {
    working->lend(static_cast<PyObject*>(object));
  } else {
    array.lend();
  }
}

using SetError = void (*)(void*, const char*, const char*);

int allocate_managed(DLTensor* prototype, DLManagedTensorVersioned** out, void* context, SetError set_error) {
  const auto refuse = [&](const char* kind, const char* message) {
    if (set_error) set_error(context, kind, message);
    return -1;
  };
  try {
    *out = export_managed(allocate_like(prototype));
    return 0;
  } catch (const std::bad_alloc&) {
    return refuse("MemoryError", "interop: out of memory");
  } catch (const TypeError& error) {
    return refuse("TypeError", error.what());
  } catch (const ValueError& error) {
    return refuse("ValueError", error.what());
  } catch (const std::exception& error) {
    return refuse("RuntimeError", error.what());
  }
}

int managed_from_py(void* object, DLManagedTensorVersioned** out) {
  return as_c([&] {
    Array& array = array_of(object);
    lend(object, array);
    *out = export_managed(array);
  });
}

int managed_to_py(DLManagedTensorVersioned* managed, void** out) {
  return as_c([&] {
    Operand operand;
    operand.function = "interop.Array";
    operand.name = "the tensor";
    operand.object = Py_None;  // for messages
    if (!managed) throw BufferError(operand.label() + " is NULL; accepted: a managed tensor");
    read_managed(operand, managed);
    check_address(operand);
    Array array = take_view(operand);
    if (array.gpu >= 0) {  // by the rules of the API, work on it goes on our stream of this thread
      const cuda::DeviceGuard guard(array.gpu);
      if (const WorkingStream* const working = working_on(array.gpu)) {
        array.used_on(working->stream(), 0);
      } else if (cuda::own_stream_is_captured()) {
        array.used_on(cuda::own_stream(), 0);
      } else {
        array.work->stream = cuda::own_stream();
        array.work->lent = {array.work->stream};
      }
    }
    *out = nb::cast(std::move(array)).release().ptr();
  });
}

int dltensor_from_py(void* object, DLTensor* out) {
  return as_c([&] {
    Array& array = array_of(object);
    lend(object, array);
    *out = array.tensor();
    out->device = array.exported_device();
    if (byte_count(array) == 0) out->data = nullptr;
  });
}

int own_work_stream(DLDeviceType type, int32_t device, void** out) {
  return as_c([&] {
    *out = nullptr;
    if (type != kDLCUDA && type != kDLCUDAManaged) return;
    const cuda::DeviceGuard guard(device);
    *out = work_stream(device);
  });
}

const DLPackExchangeAPI kOwnApi{{{DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION}, nullptr},
                                &allocate_managed,
                                &managed_from_py,
                                &managed_to_py,
                                &dltensor_from_py,
                                &own_work_stream};

}  // namespace

WorkingStream::WorkingStream(int device, cudaStream_t stream)
    : device_(device), stream_(stream), outer_(std::exchange(innermost, this)) {}

WorkingStream::~WorkingStream() { innermost = outer_; }

void WorkingStream::lend(PyObject* object) {
  const Array& array = array_of(object);
  array.make_wait(stream_);
  lent_.push_back({nb::borrow(object), array.work->uses});
}

void WorkingStream::keep(std::shared_ptr<void> memory) {
  Held held;
  held.release = Release(new std::shared_ptr<void>(std::move(memory)),
                         [](void* shared) { delete static_cast<std::shared_ptr<void>*>(shared); });
  kept_.push_back(std::move(held));
}

void WorkingStream::finish() {
  for (const Lent& lent : lent_) array_of(lent.array.ptr()).used_on(stream_, lent.uses);
  lent_.clear();
  if (!kept_.empty()) hold_for(stream_, device_, std::move(kept_));
  kept_.clear();
}

nb::object own_exchange_api() {
  PyObject* capsule = PyCapsule_New(const_cast<DLPackExchangeAPI*>(&kOwnApi), kTableName, nullptr);
  if (!capsule) nb::raise_python_error();
  return nb::steal(capsule);
}

}  // namespace interop::exchange
