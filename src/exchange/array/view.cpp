/// `interop.Array` on the memory of other libraries' arrays: `interop.asarray`.
#include "exchange/array/view.h"

#include <algorithm>

#include "exchange/array/shown.h"
#include "exchange/checks.h"
#include "exchange/closing.h"
#include "exchange/reaper.h"
#include "exchange/routes/buffer.h"

namespace interop::exchange {
namespace {

/// Owns the owners. The last view or export lets them go, wherever that happens: a thread without the GIL does not wait
/// for it, and memory that a GPU may still be using is held until it is not. `shown`: a note of `note_shown`, or 0.
std::shared_ptr<void> keep_alive(std::vector<Held> owners, int gpu, std::shared_ptr<Work> work, uint64_t shown = 0) {
  auto* kept = new std::vector<Held>(std::move(owners));
  return std::shared_ptr<void>(kept, [gpu, work = std::move(work), shown](void* pointer) {
    const std::unique_ptr<std::vector<Held>> box(static_cast<std::vector<Held>*>(pointer));
    if (shown) forget_shown(shown);
    if (work) {
      if (work->last_use) cuda::release_behind(*work->last_use, gpu);
      work->readers.hold(std::move(*box), gpu);
    } else if (interpreter_is_gone() || !PyGILState_Check()) {
      give_back_later(std::move(*box));
    }
  });
}

/// The memory of a tensor, with no owner yet.
Array describe(const DLTensor& tensor) {
  Array array;
  array.data = tensor.data;
  array.device = tensor.device;
  array.dtype = tensor.dtype;
  array.shape.assign(tensor.shape, tensor.shape + tensor.ndim);
  array.strides.assign(tensor.strides, tensor.strides + tensor.ndim);
  return array;
}

/// A share of the memory, to be held.
std::vector<Held> share_of(const Array& array) {
  std::vector<Held> held(1);
  held[0].release = Release(new std::shared_ptr<void>(array.memory),
                            [](void* shared) { delete static_cast<std::shared_ptr<void>*>(shared); });
  return held;
}

/// The device that a pointer belongs to; -1 if CUDA does not know the pointer, or there is no CUDA.
int find_gpu(const void* pointer) {
  try {
    return pointer ? cuda::pointer_device(pointer).value_or(-1) : -1;
  } catch (const CudaError&) {
    return -1;
  }
}

/// The stream on which the operand's producer would work on it now; null if it names none.
cudaStream_t producer_stream(const Operand& operand, int gpu) {
  if (operand.has_stream) return operand.stream;
  cudaStream_t current = nullptr;
  return operand.route->current_stream(gpu, &current) ? current : nullptr;
}

/// Makes an operand on a GPU ready: on `stream` if one is given, else where its producer has it ready. Returns which.
cudaStream_t acquire_on_gpu(Operand& operand, int gpu, cudaStream_t stream) {
  const cuda::DeviceGuard guard(gpu);
  const cudaStream_t theirs = producer_stream(operand, gpu);
  if (!stream) {
    // A producer that exports for the stream that we name may have our own. Memory that was read without a stream is
    // ready on the legacy default stream, if on any.
    const bool exports = !operand.tensor.shape;
    stream = theirs ? theirs : exports ? cuda::own_stream() : cuda::kLegacyStream;
  }
  if (theirs) cuda::wait_stream(stream, theirs);
  operand.route->acquire(operand, stream);
  return stream;
}

}  // namespace

std::vector<Held> owners_of(Operand& operand, nb::handle owner) {
  std::vector<Held> owners;
  owners.push_back({nb::borrow(owner), std::move(operand.release)});
  // The object of a registered library, or of a protocol: what was read may depend on it.
  if (!operand.source().is(operand.object)) owners.push_back({nb::borrow(operand.object)});
  // NumPy need not keep what it made an array of, by `__array_interface__`.
  if (operand.exported.is_valid()) owners.push_back({operand.exported});
  return owners;
}

Array take_view(Operand& operand) {
  Array array = describe(operand.tensor);
  array.read_only = operand.read_only;
  DLDevice& device = array.device;
  if (device.device_type == kDLCUDA) {
    array.gpu = device.device_id;
  } else if (device.device_type != kDLCPU) {
    array.gpu = find_gpu(array.data);
    device.device_id = 0;  // what DLPack says of pinned and managed memory
  }
  if (array.gpu >= 0) array.work = std::make_shared<Work>();
  array.is_view = true;
  if (!operand.route) {  // a tensor that came without an array
    std::vector<Held> owners(1);
    owners[0].release = std::move(operand.release);
    array.memory = keep_alive(std::move(owners), array.gpu, array.work);
    return array;
  }
  const Route& route = *operand.source_route();
  const nb::object owner = route.view_owner(operand.source());
  std::vector<Held> owners = owners_of(operand, owner);
  uint64_t note = 0;
  if (route.counts_writes()) {
    array.owner = owner;
    array.owner_route = &route;
    array.owner_data = array.data;
    note = note_shown(route, owner, operand.tensor);
  }
  array.memory = keep_alive(std::move(owners), array.gpu, array.work, note);
  return array;
}

nb::object view_of(Operand& operand) {
  if (operand.view.is_valid()) return operand.view;
  Array array = describe(operand.tensor);
  array.read_only = operand.read_only;
  // NumPy's view may stay in an exception's traceback.
  const nb::object owner =
      operand.route ? operand.source_route()->owner(operand.source()) : nb::borrow(operand.memory());
  array.memory = keep_alive(owners_of(operand, owner), -1, nullptr);
  array.is_view = true;
  array.device = {kDLCPU, 0};
  operand.view = nb::cast(std::move(array));
  return operand.view;
}

nb::object view_within_call(const DLTensor& tensor, int gpu, bool read_only, nb::handle owner) {
  Array array = describe(tensor);
  array.read_only = read_only;
  // All memory that the GPU of the call can use is its own to whoever is given the array.
  array.device = gpu >= 0 ? DLDevice{kDLCUDA, gpu} : DLDevice{kDLCPU, 0};
  array.gpu = gpu;
  array.is_view = true;
  std::vector<Held> owners(1);
  owners[0].object = nb::borrow(owner);
  array.memory = keep_alive(std::move(owners), gpu, nullptr);
  return nb::cast(std::move(array));
}

nb::object lent_array(const DLTensor& tensor, int gpu, bool read_only, std::shared_ptr<Loan> loan) {
  Array array = describe(tensor);
  array.read_only = read_only;
  array.device = gpu >= 0 ? DLDevice{kDLCUDA, gpu} : DLDevice{kDLCPU, 0};
  array.gpu = gpu;
  array.bound = loan->stream();
  array.is_view = true;
  array.loan = std::move(loan);
  return nb::cast(std::move(array));
}

nb::object asarray(nb::handle x, const char* function, cudaStream_t stream, const char* name) {
  const auto refuse_stream = [&] {
    throw ValueError(std::string(function) + ": stream is given, but " + name +
                     " is in host memory, which has none; accepted: None");
  };
  if (nb::isinstance<Array>(x)) {
    const Array& array = nb::cast<const Array&>(x);
    array.check_address();
    if (stream && array.gpu < 0) refuse_stream();
    if (stream) array.make_wait(stream);
    return nb::borrow(x);
  }
  Operand operand;
  operand.function = function;
  operand.name = name;
  operand.object = x;
  operand.route = &route_of(x, function, name);
  operand.route->enter(operand);
  operand.route->inspect(operand);
  if (operand.copied) {
    throw BufferError(operand.label() + " is " + operand.copied +
                      "; accepted: an array with its values in memory, as "
                      "a view of this one is a copy (pass x.resolve_conj().resolve_neg())");
  }
  DLDevice& device = operand.tensor.device;
  const bool on_gpu = device.device_type == kDLCUDA || device.device_type == kDLCUDAManaged;
  if (!on_gpu) {
    if (stream) refuse_stream();
    operand.route->acquire(operand, nullptr);
    operand.read_only = operand.read_only || !operand.route->is_own_memory(operand, nullptr);
    return nb::cast(take_view(operand));
  }
  if (device.device_type == kDLCUDAManaged) {
    device.device_id = std::max(0, find_gpu(operand.tensor.data));  // DLPack says 0 for all of them
  }
  enter_foreign(function, "CUDA");
  cudaStream_t ready = nullptr;
  try {
    ready = acquire_on_gpu(operand, device.device_id, stream);
  } catch (const CudaError&) {
    refuse_device(operand);
  }
  check_address(operand);
  operand.read_only = operand.read_only || !operand.route->is_own_memory(operand, ready);
  Array view = take_view(operand);
  if (operand.has_stream) {
    view.bound = operand.stream;
  } else {
    view.producer = operand.route;
  }
  if (view.gpu >= 0) {
    const cuda::DeviceGuard guard(view.gpu);
    view.used_on(ready, 0);
  }
  return nb::cast(std::move(view));
}

// What refers to the owners is `memory`, which exports share. An object may be visited only on behalf of references
// that are the array's own: so only while nobody else has a share. An export that is dropped meanwhile, without the
// GIL, makes no difference: what was not visited at first stays reachable.
int visit_owners(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const Array& array = nb::cast<const Array&>(nb::handle(self));
  if (!array.is_view || array.memory.use_count() != 1) return 0;
  for (const Held& held : *static_cast<const std::vector<Held>*>(array.memory.get())) {
    Py_VISIT(held.object.ptr());
    Py_VISIT(buffer_owner(held.release));
  }
  return 0;
}

// The collector empties all objects of a cycle, one after another, the owner perhaps before its view. A GPU that still
// reads takes a share of the memory first: then nothing is emptied now, and the next collection finds the cycle again.
void finish_reading(PyObject* self) {
  const nb::error_scope kept;
  const Array& array = nb::cast<const Array&>(nb::handle(self));
  if (!array.is_view || !array.work) return;
  try {
    hold_behind_known_streams(array.gpu, share_of(array), array.work->readers.streams());
  } catch (...) {
    set_python_error();
    PyErr_WriteUnraisable(self);
  }
}

// A memoryview of the same cycle, which has the array's buffer, is emptied itself, and then releases the array.
int let_owners_go(PyObject* self) {
  Array& array = nb::cast<Array&>(nb::handle(self));
  if (!array.is_view || array.buffers > 0) return 0;
  std::fill(array.shape.begin(), array.shape.end(), 0);
  array.data = nullptr;
  array.owner_route = nullptr;
  array.is_view = false;
  array.memory.reset();
  return 0;
}

void check_foreign_write(const Array& array, const char* function, const char* name, const char* accepted) {
  Operand operand;
  operand.function = function;
  operand.name = name;
  if (array.read_only) {
    throw TypeError(operand.label() + " is read-only, and the function may write to it; accepted: " + accepted);
  }
  if (array.owner_route) array.owner_route->check_write(operand, array.owner);
}

void note_foreign_use(Array& array, cudaStream_t stream, bool is_given, bool is_written) {
  if (is_written && array.owner_route && !array.read_only) array.owner_route->count_write(array.owner);
  const int gpu = stream ? readable_by_gpu(array).value_or(-1) : -1;
  if (gpu < 0) return;
  const cuda::DeviceGuard guard(gpu);
  const cudaStream_t theirs = is_given ? nullptr : array.producer_stream();
  if (theirs) {
    cuda::wait_stream(theirs, stream);
  } else if (array.is_view) {
    hold_for(stream, gpu, share_of(array));
  }
  array.used_on(stream, 0);
}

std::optional<int> readable_by_gpu(const Array& array) {
  // Pinned memory is not always called so: torch's exchange API says CPU.
  const int gpu = array.gpu >= 0 ? array.gpu : find_gpu(array.data);
  return gpu >= 0 ? std::optional<int>(gpu) : std::nullopt;
}

}  // namespace interop::exchange
