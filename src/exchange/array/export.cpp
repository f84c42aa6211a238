/// What `interop.Array` shows to other libraries: DLPack, `__cuda_array_interface__`, the buffer protocol.
#include "exchange/array/export.h"

#include <interop/profile.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "exchange/array/view.h"
#include "exchange/closing.h"
#include "exchange/stream.h"
#include "exchange/typestr.h"

namespace interop::exchange {
namespace {

constexpr const char* kDlpack = "interop.Array.__dlpack__";

// ---- capsules ----

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
void destroy_versioned(PyObject* capsule) { destroy_capsule<DLManagedTensorVersioned>(capsule, "dltensor_versioned"); }

template <class Managed>
Managed* new_export(const Array& array, DLDevice device) {
  auto* out = new Export<Managed>{{}, array.memory, array.shape, array.strides};
  const bool empty = byte_count(array) == 0;
  const auto ndim = static_cast<int32_t>(array.shape.size());
  out->managed.dl_tensor = {empty ? nullptr : array.data, device,           ndim, array.dtype, out->shape.data(),
                            out->strides.data(),          /*byte_offset=*/0};
  out->managed.manager_ctx = out;
  out->managed.deleter = &delete_export<Managed>;
  return &out->managed;
}

DLManagedTensorVersioned* new_versioned(const Array& array, DLDevice device, uint64_t flags) {
  auto* managed = new_export<DLManagedTensorVersioned>(array, device);
  managed->version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  managed->flags = flags | (array.read_only ? DLPACK_FLAG_BITMASK_READ_ONLY : 0);
  return managed;
}

nb::object new_capsule(void* managed, const char* name, PyCapsule_Destructor destructor) {
  PyObject* capsule = PyCapsule_New(managed, name, destructor);
  if (!capsule) nb::raise_python_error();
  return nb::steal(capsule);
}

// ---- where, and when ----

/// Two integers, of which a device type is often an IntEnum. What is beyond `int32_t` is -1 or its largest value.
std::pair<int32_t, int32_t> read_pair(const char* name, nb::handle given) {
  const auto number = [&](Py_ssize_t i) -> std::optional<int32_t> {
    PyObject* const item = PyTuple_GET_ITEM(given.ptr(), i);
    // An array with one element has an index, too; an int need not be asked whether it is one, which takes long.
    const bool is_number = PyLong_CheckExact(item) || (PyIndex_Check(item) && !find_route(item));
    const nb::object integer = is_number ? nb::steal(PyNumber_Index(item)) : nb::object();
    if (!integer.is_valid()) {
      if (PyErr_Occurred()) nb::raise_python_error();
      return std::nullopt;
    }
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(integer.ptr(), &overflow);
    constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
    if (overflow > 0 || value > kMost) return kMost;
    return overflow < 0 || value < 0 ? -1 : static_cast<int32_t>(value);
  };
  if (PyTuple_Check(given.ptr()) && PyTuple_GET_SIZE(given.ptr()) == 2) {
    const std::optional<int32_t> first = number(0), second = number(1);
    if (first && second) return {*first, *second};
  }
  throw TypeError(std::string(kDlpack) + ": " + name + " is " + shown(given) +
                  "; accepted: None, or a tuple of two ints");
}

DLDevice read_device(nb::handle dl_device) {
  const auto [type, id] = read_pair("dl_device", dl_device);
  return {static_cast<DLDeviceType>(type), id};
}

bool is_host(DLDevice device) { return device.device_type == kDLCPU && device.device_id == 0; }

/// Is the memory, where it is, also memory of `device`?
bool is_memory_of(const Array& array, DLDevice device) {
  if (device.device_type == array.device.device_type && device.device_id == array.device.device_id) return true;
  if (device.device_type == kDLCPU) return is_host(device) && array.host_readable();
  return device.device_type == kDLCUDA && !(array.device.device_type == kDLCUDA) &&
         readable_by_gpu(array) == device.device_id;
}

[[noreturn]] void bad_stream(const std::string& stream, const char* accepted) {
  throw ValueError(std::string(kDlpack) + ": stream is " + stream + "; accepted" + accepted);
}

constexpr int64_t kNoSynchronisation = -1;

/// The handle that a consumer on a GPU named in `__dlpack__(stream=)`; 0 is taken for 1, and so is None.
int64_t read_stream(nb::handle stream) {
  if (stream.is_none()) return 1;
  if (!PyLong_Check(stream.ptr()) || PyBool_Check(stream.ptr())) {
    throw TypeError(std::string(kDlpack) + ": stream is " + type_text(stream) + "; accepted: None or an int");
  }
  int overflow = 0;
  const long long handle = PyLong_AsLongLongAndOverflow(stream.ptr(), &overflow);
  if (overflow || handle < kNoSynchronisation) bad_stream(shown(stream), ": None, -1, 1, 2 or a CUDA stream handle");
  return handle == 0 ? 1 : handle;
}

void require_no_stream(nb::handle stream) {
  if (!stream.is_none()) bad_stream(shown(stream), " for host memory: None");
}

/// Makes the array ready for a consumer that takes it as memory of `device`.
void order_export(const Array& array, DLDevice device, nb::handle stream) {
  array.check_address();
  if (device.device_type == kDLCPU) {
    require_no_stream(stream);
    array.make_host_wait();
    return;
  }
  const int64_t handle = read_stream(stream);
  if (array.work) array.work->is_of_one_stream = false;
  if (handle == kNoSynchronisation) return;
  const cudaStream_t reader = stream_from_handle(handle);
  array.make_wait(reader);
  array.shown_to(reader);
  // A consumer that names no stream may be about to read on the host, as NumPy is.
  if (stream.is_none() && array.host_readable()) array.make_host_wait();
}

// ---- copies ----

/// The same layout in memory of its own; gaps between the elements are copied with them.
Array copy_for(const Array& array, DLDevice device, nb::handle stream) {
  const DLTensor tensor = array.tensor();
  const ByteRange range = byte_range(tensor);
  const size_t bytes = range.end - range.begin;
  Array copy;
  copy.device = device;
  copy.dtype = array.dtype;
  copy.shape = array.shape;
  copy.strides = array.strides;
  const auto place = [&](std::shared_ptr<void> memory) {
    copy.memory = std::move(memory);
    copy.data = static_cast<char*>(copy.memory.get()) + (reinterpret_cast<uintptr_t>(tensor.data) - range.begin);
  };
  const auto* source = reinterpret_cast<const void*>(range.begin);

  if (device.device_type == kDLCPU) {
    require_no_stream(stream);
    if (bytes == 0) return copy;
    place(host_memory(bytes));
    if (array.host_readable()) {
      array.make_host_wait();
      const profile::Stopwatch watch;
      std::memcpy(copy.memory.get(), source, bytes);
      watch.note(profile::What::transfer, profile::kHostToHost, bytes);
      return copy;
    }
    const cuda::DeviceGuard guard(array.gpu);
    const cudaStream_t own = cuda::own_stream();
    refuse_host_wait(own);
    array.make_wait(own);
    const nb::gil_scoped_release no_gil;
    cuda::copy_to_host(copy.memory.get(), source, bytes, own);
    cuda::synchronize(own);
    return copy;
  }
  const int64_t handle = read_stream(stream);
  copy.gpu = device.device_id;
  if (bytes == 0) return copy;
  const cuda::DeviceGuard guard(copy.gpu);
  const bool unordered = handle == kNoSynchronisation;
  const cudaStream_t where = unordered ? cuda::own_stream() : stream_from_handle(handle);
  array.make_wait(where);
  copy.work = std::make_shared<Work>();
  place(device_memory(bytes, copy.gpu, where, copy.work));
  if (!unordered) {
    copy.shown_to(where);
    array.shown_to(where);  // the copy may still be read when the array is gone
  }
  const nb::gil_scoped_release no_gil;
  cuda::copy_on_device(copy.memory.get(), source, bytes, where);
  if (unordered) cuda::synchronize(where);  // nobody else can know of the copy
  return copy;
}

}  // namespace

bool read_copy(const char* function, nb::handle copy) {
  if (copy.is_none() || copy.is(Py_False)) return false;
  if (copy.is(Py_True)) return true;
  throw TypeError(std::string(function) + ": copy is " + shown(copy) + "; accepted: None, True or False");
}

nb::object export_dlpack(const Array& array, nb::handle stream, nb::handle max_version, nb::handle dl_device,
                         nb::handle copy, bool to_immutable) {
  const DLDevice device = dl_device.is_none() ? array.exported_device() : read_device(dl_device);
  const bool copies = read_copy(kDlpack, copy);
  const bool shared = is_memory_of(array, device) && !copies;
  const bool can_copy = is_host(device) || (device.device_type == kDLCUDA && is_memory_of(array, device));
  if (!shared && !can_copy) {
    if (copies && is_memory_of(array, device)) {
      throw BufferError(std::string(kDlpack) + ": copy is True for " + device_text(device) +
                        "; accepted: with dl_device=(1, 0), host memory, or (2, id), device memory");
    }
    throw BufferError(std::string(kDlpack) + ": dl_device is " + shown(dl_device) +
                      "; accepted: None, or the array's own " + "device, " + device_text(array.device) +
                      ", or (1, 0), host memory");
  }
  if (!shared && !copies && !copy.is_none()) {
    throw BufferError(std::string(kDlpack) + ": copy is False, and dl_device=" + shown(dl_device) +
                      " takes a copy of " + "memory on " + device_text(array.device) + "; accepted: copy=None or True");
  }
  const bool versioned = !max_version.is_none() && read_pair("max_version", max_version).first >= DLPACK_MAJOR_VERSION;
  if (shared && array.read_only && !versioned && !to_immutable) {
    throw BufferError(std::string(kDlpack) +
                      ": the array is read-only, which an unversioned capsule cannot say; accepted: max_version=" +
                      "(1, 0) or later; where JAX asks, interop.convert(x, \"jax\") in place of its from_dlpack");
  }
  Array copied;
  if (shared) {
    order_export(array, device, stream);
  } else {
    copied = copy_for(array, device, stream);
  }
  const Array& exported = shared ? array : copied;
  if (versioned) {
    const uint64_t flags = shared ? 0 : DLPACK_FLAG_BITMASK_IS_COPIED;
    return new_capsule(new_versioned(exported, device, flags), "dltensor_versioned", &destroy_versioned);
  }
  return new_capsule(new_export<DLManagedTensor>(exported, device), "dltensor", &destroy_legacy);
}

DLManagedTensorVersioned* export_managed(const Array& array) {
  return new_versioned(array, array.exported_device(), 0);
}

nb::dict export_cai(const Array& array, cudaStream_t stream) {
  array.check_address();
  const int gpu = readable_by_gpu(array).value_or(array.gpu);
  if (gpu < 0 || (array.on_host() && !stream)) {
    throw nb::attribute_error(
        "__cuda_array_interface__: the array is in host memory; accepted: __dlpack__, or numpy.asarray(x)");
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
  const cudaStream_t theirs = array.producer_stream();
  if (!stream && (array.is_worked_on() || theirs)) {
    // The stream must outlive the array. The array's own stream may be the user's, and destroyed by then; our own is
    // not. In a capture there is no other. The lender of memory has its stream as long as the array may be used.
    const cuda::DeviceGuard guard(gpu);
    stream = array.loan || (theirs && cuda::is_capturing(theirs)) ? theirs : cuda::own_stream();
  }
  interface["stream"] = nb::none();
  if (stream) {
    array.make_wait(stream);
    array.shown_to(stream);
    interface["stream"] = reinterpret_cast<uintptr_t>(stream);
  }
  return interface;
}

// ---- the buffer protocol ----

namespace {

/// Throws BufferError if the memory is not in the order that the consumer asks for. A consumer that asks for no strides
/// takes the elements as row-major.
void check_order(const Array& array, int flags) {
  const auto asks = [flags](int flag) { return (flags & flag) == flag; };
  const bool rows = is_compact(array.tensor()), columns = is_compact_backwards(array.tensor());
  if (asks(PyBUF_C_CONTIGUOUS) && !rows) {
    throw BufferError("interop.Array: the array is not C-contiguous; ask for strides");
  }
  if (asks(PyBUF_F_CONTIGUOUS) && !columns) {
    throw BufferError("interop.Array: the array is not Fortran-contiguous; ask for strides");
  }
  if (asks(PyBUF_ANY_CONTIGUOUS) && !rows && !columns) {
    throw BufferError("interop.Array: the array is not contiguous; ask for strides");
  }
  if (!asks(PyBUF_STRIDES) && !rows) throw BufferError("interop.Array: the array is strided; ask for strides");
}

/// The strides in bytes. Those of size-1 dimensions mean nothing, but consumers of contiguous memory may compare them.
void fill_strides(const Array& array, bool prefers_columns, Py_ssize_t* strides) {
  const DLTensor tensor = array.tensor();
  const bool columns = is_compact_backwards(tensor) && (prefers_columns || !is_compact(tensor));
  const bool rows = !columns && is_compact(tensor);
  const int64_t item = item_bytes(array.dtype);
  int64_t step = item;
  for (int i = 0; i < tensor.ndim; ++i) {
    const int dim = rows ? tensor.ndim - 1 - i : i;
    strides[dim] = rows || columns ? step : tensor.strides[dim] * item;
    step *= std::max<int64_t>(tensor.shape[dim], 1);
  }
}

void fill_buffer(PyObject* self, Py_buffer* view, int flags) {
  Array& array = nb::cast<Array&>(nb::handle(self));
  const char* format = format_of(array.dtype);
  if (!array.host_readable())
    throw BufferError(
        "interop.Array: device memory has no buffer; accepted: __dlpack__, or interop.convert(x, library)");
  if (!format)
    throw BufferError("interop.Array: the buffer protocol has no " + dtype_name(array.dtype) +
                      "; accepted: __dlpack__, or numpy.asarray(x)");
  if ((flags & PyBUF_WRITABLE) && array.read_only) throw BufferError("interop.Array: the array is read-only");
  check_order(array, flags);
  array.make_host_wait();
  const int ndim = static_cast<int>(array.shape.size());
  // One block: the shape, then the strides in bytes; released with the view.
  auto* sizes = new Py_ssize_t[2 * static_cast<size_t>(ndim) + 1];
  std::copy(array.shape.begin(), array.shape.end(), sizes);
  fill_strides(array, (flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS, sizes + ndim);
  view->buf = array.data;
  view->len = static_cast<Py_ssize_t>(byte_count(array));
  view->itemsize = item_bytes(array.dtype);
  view->readonly = array.read_only;
  view->ndim = (flags & PyBUF_ND) ? ndim : 0;  // as NumPy has it: bytes, of whose shape nobody asked
  view->format = (flags & PyBUF_FORMAT) ? const_cast<char*>(format) : nullptr;
  view->shape = view->ndim > 0 ? sizes : nullptr;
  view->strides = view->ndim > 0 && (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? sizes + ndim : nullptr;
  view->suboffsets = nullptr;
  view->internal = sizes;
  view->obj = Py_NewRef(self);
  ++array.buffers;
}

}  // namespace

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const CallGuard guard;
  view->obj = nullptr;
  try {
    fill_buffer(self, view, flags);
    return 0;
  } catch (...) {
    set_python_error();
    return -1;
  }
}

void release_buffer(PyObject* self, Py_buffer* view) {
  --nb::cast<Array&>(nb::handle(self)).buffers;
  delete[] static_cast<Py_ssize_t*>(view->internal);
}

}  // namespace interop::exchange
