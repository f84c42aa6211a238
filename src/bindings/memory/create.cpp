/// New arrays of interop's own, and what is known of the memory that they come from.
#include <interop/cuda/memory.h>
#include <nanobind/stl/optional.h>

#include "bindings/bindings.h"
#include "bindings/memory/arguments.h"
#include "exchange/array/array.h"
#include "exchange/array/plugged.h"
#include "exchange/closing.h"
#include "exchange/stream.h"

namespace interop::bindings {
namespace {

using exchange::Array;
using exchange::Name;

const Name kDevice("device"), kManaged("managed"), kPinned("pinned"), kHost("host");

// ---- arguments ----

/// An object as one of the four words; none for any other.
std::optional<DLDeviceType> memory_of(nb::handle memory) {
  if (!PyUnicode_Check(memory.ptr())) return std::nullopt;
  const auto is = [&](const Name& name) { return PyUnicode_Compare(memory.ptr(), name.get()) == 0; };
  if (is(kDevice)) return kDLCUDA;
  if (is(kManaged)) return kDLCUDAManaged;
  if (is(kPinned)) return kDLCUDAHost;
  if (is(kHost)) return kDLCPU;
  return std::nullopt;
}

DLDeviceType read_memory(const char* function, nb::handle memory) {
  if (const auto found = memory_of(memory)) return *found;
  throw ValueError(std::string(function) + ": memory is " + exchange::shown(memory) +
                   "; accepted: 'device', 'managed', 'pinned' or 'host'");
}

constexpr const char* kDevices = "; accepted: None, an index, 'cuda' or 'cuda:<index>'";
constexpr const char* kPlaces = "; accepted: None, 'host', an index, 'cuda' or 'cuda:<index>'";

/// The index that a device names; none where that of the current context is meant, -1 for what no GPU has. Throws
/// TypeError for what is no device.
std::optional<long> index_of(const char* function, nb::handle device, const char* accepted) {
  if (device.is_none()) return std::nullopt;
  if (PyUnicode_Check(device.ptr())) {
    const std::string text = exchange::text_of(device);
    if (text == "cuda") return std::nullopt;
    const bool is_numbered = text.rfind("cuda:", 0) == 0 && text.size() > 5 && text.size() < 9;
    if (!is_numbered || text.find_first_not_of("0123456789", 5) != std::string::npos) return -1;
    return std::stol(text.substr(5));
  }
  if (!PyLong_Check(device.ptr()) || PyBool_Check(device.ptr())) {
    throw TypeError(std::string(function) + ": device is " + exchange::type_text(device) + accepted);
  }
  int overflow = 0;
  const long index = PyLong_AsLongAndOverflow(device.ptr(), &overflow);
  return overflow ? -1 : index;
}

std::string device_label(const char* function, nb::handle device) {
  return std::string(function) + ": device is " + exchange::shown(device);
}

/// The GPU of an index that is not negative. Throws ValueError where the machine has none of it, and CudaError where it
/// has none at all.
int existing_device(const char* function, nb::handle device, std::optional<long> index, const char* accepted) {
  const auto label = [&] { return device_label(function, device); };
  try {
    cuda::require_driver();
  } catch (const CudaError& error) {
    throw CudaError(of_call(label().c_str(), false, error.what()));
  }
  if (!index) return cuda::default_device();
  const int count = cuda::device_count();
  if (*index < count) return static_cast<int>(*index);
  throw ValueError(label() + "; this machine has " + std::to_string(count) + " CUDA device(s)" + accepted);
}

/// Throws TypeError and ValueError for what names no GPU of this machine, and CudaError where it has none.
int read_device(const char* function, nb::handle device) {
  const std::optional<long> index = index_of(function, device, kDevices);
  if (index && *index < 0) {
    const bool is_host = PyUnicode_Check(device.ptr()) && exchange::text_of(device) == "cpu";
    throw ValueError(device_label(function, device) + kDevices +
                     (is_host ? "; the host's memory is memory='host'" : ""));
  }
  return existing_device(function, device, index, kDevices);
}

void refuse_on_host(const char* function, const char* name, nb::handle value, const char* why) {
  if (value.is_none()) return;
  throw ValueError(std::string(function) + ": " + name + " is " + exchange::shown(value) + ", and " + why +
                   "; accepted: None");
}

// ---- new arrays ----

/// The memory that `memory` names: of the host where this machine has no GPU, and none is named.
DLDeviceType existing_memory(const char* function, nb::handle memory, nb::handle device, nb::handle stream) {
  const DLDeviceType type = read_memory(function, memory);
  if (type == kDLCPU) {
    refuse_on_host(function, "device", device, "memory is 'host'");
    refuse_on_host(function, "stream", stream, "memory is 'host', which has none");
    return type;
  }
  if (cuda::has_gpu() || !device.is_none()) return type;
  refuse_on_host(function, "stream", stream, "this machine has no GPU");
  return kDLCPU;
}

/// Throws ValueError for memory that no other process can map.
void refuse_unshared(const char* function, nb::handle memory) {
  const DLDeviceType type = read_memory(function, memory);
  if (type == kDLCUDA || type == kDLCPU) return;
  throw ValueError(std::string(function) + ": memory is " + exchange::shown(memory) +
                   ", and shared is True; accepted: 'device' or 'host'");
}

nb::object empty(nb::handle given_shape, nb::handle given_dtype, nb::handle memory, nb::handle given_device,
                 nb::handle given_stream, const char* function, bool shared = false) {
  const DLDataType dtype = read_dtype(function, given_dtype);
  const Shape shape = read_shape(function, given_shape, dtype);
  if (shared) refuse_unshared(function, memory);
  const DLDeviceType type = existing_memory(function, memory, given_device, given_stream);
  if (type == kDLCPU) return nb::cast(make_array(function, shape, dtype, {kDLCPU, 0}, nullptr, shared));
  exchange::enter_foreign(function, "CUDA");
  const int device = read_device(function, given_device);
  const cuda::DeviceGuard guard(device);
  if (given_stream.is_none()) {
    return nb::cast(make_array(function, shape, dtype, {type, device}, cuda::own_stream(), shared));
  }
  const cudaStream_t stream = exchange::stream_argument(given_stream, function);
  Array array = make_array(function, shape, dtype, {type, device}, stream, shared);
  if (type == kDLCUDA) array.used_on(stream, 0);  // who uses it next waits for the allocation
  return nb::cast(std::move(array));
}

// ---- hints about managed memory ----

/// Where a hint says that memory is to be: the index of a GPU, -1 for the host, and `own` where nothing is said. On a
/// machine with no GPU, any that there could be.
int hinted_place(nb::handle device, int own, const char* function) {
  if (device.is_none()) return own;
  if (PyUnicode_Check(device.ptr()) && exchange::text_of(device) == "host") return -1;
  const std::optional<long> index = index_of(function, device, kPlaces);
  if (index && *index < 0) throw ValueError(device_label(function, device) + kPlaces);
  return cuda::has_gpu() ? existing_device(function, device, index, kPlaces) : own;
}

/// Runs `body` of the array's bytes on its device, without the GIL, in a method of that name.
template <class Body>
void hint(const char* method, const Array& array, Body&& body) {
  const exchange::CallGuard call;
  exchange::as_call(method, false, [&] {
    array.check_address();
    exchange::enter_foreign(method, "CUDA");
    const ByteRange range = byte_range(array.tensor());
    if (range.end == range.begin) return;
    const cuda::DeviceGuard guard(array.gpu);
    const nb::gil_scoped_release no_gil;
    body(reinterpret_cast<const void*>(range.begin), range.end - range.begin);
  });
}

void prefetch(const Array& array, int device, std::optional<int64_t> handle) {
  hint("interop.Array.prefetch", array, [&](const void* data, size_t bytes) {
    cuda::prefetch(data, bytes, device, handle ? exchange::stream_from_handle(*handle) : cuda::own_stream());
  });
}

void advise(const Array& array, int advice, bool is_set, int device) {
  hint("interop.Array.advise", array, [&](const void* data, size_t bytes) {
    cuda::advise(data, bytes, static_cast<cuda::Advice>(advice), is_set, device);
  });
}

// ---- pools ----

struct Pool {
  cuda::MemoryKind kind;
  int device;
};

Pool read_pool(const char* function, nb::handle memory, nb::handle device) {
  const DLDeviceType type = read_memory(function, memory);
  if (type == kDLCPU)
    throw ValueError(std::string(function) +
                     ": memory is 'host', which has no pool; accepted: 'device', 'managed' or 'pinned'");
  const auto kind = type == kDLCUDA          ? cuda::MemoryKind::device
                    : type == kDLCUDAManaged ? cuda::MemoryKind::managed
                                             : cuda::MemoryKind::pinned;
  return {kind, read_device(function, device)};
}

nb::tuple pool_state(const Pool& pool) {
  const cuda::PoolState state = cuda::pool_state(pool.kind, pool.device);
  return nb::make_tuple(state.used_bytes, state.used_high, state.reserved_bytes, state.reserved_high,
                        state.release_threshold);
}

/// Runs `body` on the primary context of the pool's device, without the GIL.
template <class Body>
void on_device(const Pool& pool, Body&& body) {
  const exchange::CallGuard call;
  exchange::enter_foreign("interop.MemoryPool", "CUDA");
  const nb::gil_scoped_release no_gil;
  const cuda::DeviceGuard guard(pool.device);
  body();
}

}  // namespace

void bind_memory(nb::module_& m) {
  bind_arange(m);
  bind_copyto(m);
  bind_share(m);
  m.def(
      "empty",
      [](nb::handle shape, nb::handle dtype, nb::handle memory, nb::handle device, nb::handle stream,
         const char* function) {
        const exchange::CallGuard guard;
        return exchange::as_call(function, false,
                                 [&] { return empty(shape, dtype, memory, device, stream, function); });
      },
      nb::arg("shape").none(), nb::arg("dtype").none(), nb::arg("memory").none(), nb::arg("device").none(),
      nb::arg("stream").none(), nb::arg("function"),
      nb::sig("def empty(shape: typing.Any, dtype: typing.Any, memory: str, device: typing.Any, stream: typing.Any, "
              "function: str) -> Array"),
      "A new Array whose elements have any values.");
  m.def(
      "empty_shared",
      [](nb::handle shape, nb::handle dtype, nb::handle memory, nb::handle device, nb::handle stream,
         const char* function) {
        const exchange::CallGuard guard;
        return exchange::as_call(function, false,
                                 [&] { return empty(shape, dtype, memory, device, stream, function, true); });
      },
      nb::arg("shape").none(), nb::arg("dtype").none(), nb::arg("memory").none(), nb::arg("device").none(),
      nb::arg("stream").none(), nb::arg("function"),
      nb::sig("def empty_shared(shape: typing.Any, dtype: typing.Any, memory: str, device: typing.Any, stream: "
              "typing.Any, function: str) -> Array"),
      "The same in memory that other processes can be given.");
  m.def(
      "has_gpu", [] { return cuda::has_gpu(); }, "Is there a driver with a GPU? CudaError for one that does not work.");
  m.def("set_allocator", &exchange::plug_allocator, nb::arg("allocator").none(),
        nb::sig("def set_allocator(allocator: typing.Callable[[int, int, int], typing.Any] | None) -> None"),
        "What gives device memory from now on: (bytes, device, stream handle) -> an array; None: interop's own pool.");
  m.def("prefetch", &prefetch, nb::arg("array"), nb::arg("device"), nb::arg("stream").none(),
        nb::sig("def prefetch(array: Array, device: int, stream: int | None) -> None"),
        "Moves managed memory to a device, or (-1) to the host.");
  m.def(
      "hinted_place",
      [](nb::handle device, const Array& array, const char* function) {
        return exchange::as_call(function, false, [&] { return hinted_place(device, array.gpu, function); });
      },
      nb::arg("device").none(), nb::arg("array"), nb::arg("function"),
      nb::sig("def hinted_place(device: typing.Any, array: Array, function: str) -> int"),
      "The index of the device of a hint, that of the array if it is None, or -1 for the host.");
  m.def("advise", &advise, nb::arg("array"), nb::arg("advice"), nb::arg("value"), nb::arg("device"),
        nb::sig("def advise(array: Array, advice: int, value: bool, device: int) -> None"),
        "The advice of that number: read mostly, preferred location, accessed by.");
  nb::class_<Pool>(m, "Pool", "The memory of one kind that interop has of one device.")
      .def(
          "__init__",
          [](Pool* self, nb::handle memory, nb::handle device, const char* function) {
            exchange::as_call(function, false, [&] { new (self) Pool(read_pool(function, memory, device)); });
          },
          nb::arg("memory").none(), nb::arg("device").none(), nb::arg("function"),
          nb::sig("def __init__(self, memory: str, device: typing.Any, function: str) -> None"))
      .def_ro("device", &Pool::device, "The index of the CUDA device.")
      .def("state", &pool_state, nb::sig("def state(self) -> tuple[int, int, int, int, int]"),
           "Bytes: used, the most used, reserved, the most reserved, and the release threshold.")
      .def(
          "set_release_threshold",
          [](const Pool& pool, uint64_t bytes) {
            on_device(pool, [&] { cuda::set_release_threshold(pool.kind, pool.device, bytes); });
          },
          nb::arg("bytes"), "How many bytes may be reserved beyond those in use.")
      .def(
          "trim",
          [](const Pool& pool, uint64_t keep) {
            on_device(pool, [&] { cuda::trim_pool(pool.kind, pool.device, keep); });
          },
          nb::arg("keep"), "Gives back what is not in use, down to `keep` reserved bytes.")
      .def(
          "set_limit", [](const Pool& pool, uint64_t bytes) { cuda::set_managed_limit(pool.device, bytes); },
          nb::arg("bytes"), "The most managed memory that there may be on the device.");
}

}  // namespace interop::bindings
