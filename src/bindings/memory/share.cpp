/// Arrays that other processes are given, and those that others have given.
#include <interop/cuda/graph.h>
#include <interop/cuda/share.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/memory/arguments.h"
#include "exchange/array/array.h"
#include "exchange/array/shared.h"
#include "exchange/array/view.h"
#include "exchange/closing.h"

namespace interop::bindings {
namespace {

using exchange::Array;

constexpr const char* kLabel = "interop.share: x";

// ---- giving ----

nb::bytes bytes_of(const cuda::ShareHandle& handle) { return nb::bytes(handle.data(), handle.size()); }

int device_of(const nb::bytes& uuid) {
  const auto device = cuda::find_device(std::string(uuid.c_str(), uuid.size()));
  if (device) return *device;
  throw ValueError(
      "interop.open: the array is on a GPU that this process does not see; accepted: a process whose "
      "CUDA_VISIBLE_DEVICES has it");
}

/// Flags at the beginning of a buffer of Python's, which it keeps.
class Flags {
 public:
  Flags(nb::handle memory, size_t bytes) : bytes_(bytes) {
    if (PyObject_GetBuffer(memory.ptr(), &buffer_, PyBUF_WRITABLE) != 0) nb::raise_python_error();
  }
  ~Flags() {
    {
      const nb::gil_scoped_release no_gil;
      flags_.reset();
    }
    PyBuffer_Release(&buffer_);
  }
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  /// Makes them known to CUDA, for a GPU first; false where the system does not allow that, or has no such GPU.
  bool prepare(const nb::bytes& uuid) {
    if (flags_) return true;
    try {
      const cuda::DeviceGuard guard(device_of(uuid));
      flags_.emplace(buffer_.buf, bytes_);
      return true;
    } catch (const CudaError&) {
      return false;
    } catch (const ValueError&) {  // no such GPU: whoever opens the array is told
      return false;
    }
  }
  /// Throws BufferError before `prepare` was true.
  const cuda::SharedFlags& flags() const {
    if (!flags_) throw BufferError("interop: the flags are not known to CUDA");
    return *flags_;
  }

 private:
  Py_buffer buffer_{};
  size_t bytes_;
  std::optional<cuda::SharedFlags> flags_;
};

/// How other processes find an array's memory. It keeps the memory.
class Shared {
 public:
  explicit Shared(const Array& array);

  const char* by() const { return by_; }
  uintptr_t base() const { return memory_.base; }
  size_t bytes() const { return memory_.bytes; }
  uintptr_t pool() const { return memory_.pool; }
  int64_t offset() const { return offset_; }
  int fd() const { return memory_.fd ? memory_.fd->get() : pages_fd_; }
  nb::bytes handle() const { return bytes_of(memory_.handle); }
  nb::bytes uuid() const { return nb::bytes(uuid_.data(), uuid_.size()); }
  bool read_only() const { return array_.read_only; }

  /// Sets a flag once all that is queued for the array now is done.
  void set(const Flags& flags, size_t index) const {
    const cuda::DeviceGuard guard(array_.gpu);
    const cudaStream_t stream = cuda::own_stream();
    array_.make_wait(stream);
    flags.flags().set(index, stream);
  }
  /// Throws BufferError where the memory is no more.
  void check() const {
    const exchange::CallGuard call;
    array_.check_address();
  }
  /// The host waits for what is queued for the array.
  void wait() const { array_.make_host_wait(); }

 private:
  void share_host();
  void share_device();

  Array array_;
  const char* by_ = "empty";
  cuda::SharedMemory memory_;
  int pages_fd_ = -1;  // of the array's
  int64_t offset_ = 0;
  std::string uuid_;
};

Shared::Shared(const Array& array) : array_(array) {
  array_.buffers = 0;  // of the array itself
  array_.check_address();
  if (array_.on_host()) {
    share_host();
    return;
  }
  if (array_.device.device_type == kDLCUDAHost) {
    throw BufferError(std::string(kLabel) +
                      " is pinned memory, which its own process alone can map; accepted: device memory, or copy=True, "
                      "which shares a copy");
  }
  exchange::enter_foreign("interop.share", "CUDA");
  const cuda::DeviceGuard guard(array_.gpu);
  share_device();
}

void Shared::share_host() {
  const ByteRange range = byte_range(array_.tensor());
  if (range.begin == range.end) return;
  const auto pages = exchange::host_pages(range);
  if (!pages) {
    throw BufferError(std::string(kLabel) +
                      " is memory of the host that this process alone can map; accepted: an array of "
                      "interop.empty(..., shared=True) or a view of one, or copy=True, which shares a copy");
  }
  by_ = "host";
  memory_.base = pages->begin;
  memory_.bytes = pages->bytes;
  pages_fd_ = pages->fd;
  offset_ = static_cast<int64_t>(reinterpret_cast<uintptr_t>(array_.data) - memory_.base);
}

void Shared::share_device() {
  if (cuda::is_capturing(cuda::own_stream())) {
    throw ValueError(
        std::string(kLabel) +
        " is of work that is being captured into a CUDA graph, which has computed nothing yet; accepted: an "
        "array after the capture");
  }
  uuid_ = cuda::device_uuid(array_.gpu);
  const ByteRange range = byte_range(array_.tensor());
  if (range.begin == range.end) return;
  const char* const names[] = {"ipc", "pool", "pages"};
  memory_ = cuda::share_memory(reinterpret_cast<const void*>(range.begin), kLabel);
  by_ = names[static_cast<int>(memory_.by)];
  offset_ = static_cast<int64_t>(reinterpret_cast<uintptr_t>(array_.data) - memory_.base);
}

// ---- taking ----

/// An array in an allocation, as its owner describes it.
struct Layout {
  DLDataType dtype;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  int64_t offset;  // of the first element, in bytes
  bool read_only;

  /// Throws ValueError where an element is not within the `bytes` from `base` on.
  DLTensor within(void* base, size_t bytes, DLDevice device) const {
    DLTensor tensor{static_cast<char*>(base) + offset,
                    device,
                    static_cast<int32_t>(shape.size()),
                    dtype,
                    const_cast<int64_t*>(shape.data()),
                    const_cast<int64_t*>(strides.data()),
                    0};
    const auto begin = reinterpret_cast<uintptr_t>(base);
    const ByteRange range = byte_range(tensor);
    if (range.begin < begin || range.end > begin + bytes) {
      throw ValueError("interop.open: what the owner describes is not within its memory");
    }
    return tensor;
  }
};

Layout read_layout(const std::string& dtype, std::vector<int64_t> shape, std::vector<int64_t> strides, int64_t offset,
                   bool read_only) {
  if (shape.size() != strides.size() || shape.size() > kMaxDims) {
    throw ValueError("interop.open: what the owner describes is no array");
  }
  return {read_dtype("interop.open", nb::str(dtype.c_str())), std::move(shape), std::move(strides), offset, read_only};
}

Array with_layout(const Layout& layout, DLDevice device) {
  Array array;
  array.device = device;
  array.dtype = layout.dtype;
  array.shape = layout.shape;
  array.strides = layout.strides;
  array.read_only = layout.read_only;
  return array;
}

/// An array without elements has no memory.
nb::object open_empty(const Layout& layout, int device) {
  Array array = with_layout(layout, device < 0 ? DLDevice{kDLCPU, 0} : DLDevice{kDLCUDA, device});
  if (device >= 0) {
    array.gpu = device;
    array.work = std::make_shared<exchange::Work>();
  }
  return nb::cast(std::move(array));
}

nb::object open_host(const Layout& layout, int fd, size_t bytes) {
  Array array = with_layout(layout, {kDLCPU, 0});
  array.memory = exchange::map_host_memory(fd, bytes, layout.read_only);
  array.data = layout.within(array.memory.get(), bytes, array.device).data;
  return nb::cast(std::move(array));
}

/// An allocation of another process, and what has that process keep it.
struct Opened {
  nb::object lease;
  std::optional<cuda::OpenedMemory> memory;
};

void close_opened(void* data) {
  const std::unique_ptr<Opened> opened(static_cast<Opened*>(data));
  const nb::gil_scoped_release no_gil;
  opened->memory.reset();  // before the owner is told
}

cuda::ShareHandle handle_of(const nb::bytes& bytes) {
  cuda::ShareHandle handle{};
  std::memcpy(handle.data(), bytes.c_str(), std::min(handle.size(), bytes.size()));
  return handle;
}

nb::object open_device(const Layout& layout, const std::string& owner, cuda::SharedMemory memory, int device,
                       const Flags* flags, size_t flag, nb::handle lease) {
  const cuda::DeviceGuard guard(device);
  auto opened = std::make_unique<Opened>();
  opened->lease = nb::borrow(lease);
  try {
    const nb::gil_scoped_release no_gil;
    opened->memory.emplace(owner, memory, device);
  } catch (const cuda::NeedsFile&) {
    return nb::none();
  }
  exchange::Operand operand;
  operand.function = "interop.open";
  operand.name = "h";
  operand.object = Py_None;
  operand.read_only = layout.read_only;
  operand.tensor = layout.within(opened->memory->data(), memory.bytes, {kDLCUDA, device});
  operand.release = exchange::Release(opened.release(), &close_opened);
  Array array = exchange::take_view(operand);
  if (flags) {
    const cudaStream_t stream = cuda::lasting_stream();  // what is captured cannot wait for another process
    flags->flags().make_wait(flag, stream);
    array.used_on(stream, 0);
  }
  return nb::cast(std::move(array));
}

/// What `open_shared` makes, of memory given away by a handle of that name.
nb::object open_shared(const std::string& owner, const std::string& by, uintptr_t base, size_t bytes, uintptr_t pool,
                       const nb::bytes& handle, int fd, const nb::bytes& uuid, const Layout& layout, const Flags* flags,
                       size_t flag, nb::handle lease) {
  if (by == "host") return open_host(layout, fd, bytes);
  if (uuid.size() == 0) return open_empty(layout, -1);
  cuda::SharedMemory memory;
  if (fd >= 0) memory.fd = std::make_shared<const cuda::FileDescriptor>(fd);
  exchange::enter_foreign("interop.open", "CUDA");
  const int device = device_of(uuid);
  if (by == "empty") return open_empty(layout, device);
  memory.by = by == "ipc" ? cuda::SharedBy::ipc : by == "pool" ? cuda::SharedBy::pool : cuda::SharedBy::pages;
  memory.base = base;
  memory.bytes = bytes;
  memory.pool = pool;
  memory.handle = handle_of(handle);
  return open_device(layout, owner, std::move(memory), device, flags, flag, lease);
}

/// Throws BufferError where the buffer has no such aligned integer.
uint32_t fetch_add(nb::handle memory, size_t offset, int64_t amount) {
  Py_buffer buffer{};
  if (PyObject_GetBuffer(memory.ptr(), &buffer, PyBUF_WRITABLE) != 0) nb::raise_python_error();
  auto* const address = static_cast<char*>(buffer.buf) + offset;
  const bool is_there = offset + sizeof(uint32_t) <= static_cast<size_t>(buffer.len) &&
                        reinterpret_cast<uintptr_t>(address) % alignof(uint32_t) == 0;
  const uint32_t was = is_there ? __atomic_fetch_add(reinterpret_cast<uint32_t*>(address),
                                                     static_cast<uint32_t>(amount), __ATOMIC_SEQ_CST)
                                : 0;
  PyBuffer_Release(&buffer);
  if (!is_there) throw BufferError("interop: no integer of 32 bits is at that place of the buffer");
  return was;
}

}  // namespace

void bind_share(nb::module_& m) {
  nb::class_<Flags>(m, "Flags", "Flags of 32 bits at the beginning of a buffer that processes share.")
      .def(nb::init<nb::handle, size_t>(), nb::arg("memory"), nb::arg("bytes"),
           nb::sig("def __init__(self, memory: typing.Any, bytes: int) -> None"))
      .def("prepare", &Flags::prepare, nb::arg("uuid"),
           "Makes them known to CUDA, for that GPU first; False where the system does not allow that.");
  nb::class_<Shared>(m, "Shared", "How other processes find an array's memory, and the point at which it is ready.")
      .def(
          "__init__",
          [](Shared* self, const Array& array) {
            const exchange::CallGuard guard;
            exchange::as_call("interop.share", false, [&] { new (self) Shared(array); });
          },
          nb::arg("array"), nb::sig("def __init__(self, array: Array) -> None"))
      .def_prop_ro("by", &Shared::by, "'host', 'ipc', 'pool', 'pages', or 'empty' where there is no memory.")
      .def_prop_ro("base", &Shared::base, "The address of the allocation in this process.")
      .def_prop_ro("size", &Shared::bytes, "The size of the allocation.")
      .def_prop_ro("pool", &Shared::pool, "What this process knows the pool by that it is of, or 0.")
      .def_prop_ro("offset", &Shared::offset, "Where in the allocation the first element is, in bytes.")
      .def_prop_ro("fd", &Shared::fd, "A file descriptor to be sent, or -1.")
      .def_prop_ro("handle", &Shared::handle, "What CUDA calls the memory.")
      .def_prop_ro("uuid", &Shared::uuid, "The GPU's; b'' for host memory.")
      .def_prop_ro("read_only", &Shared::read_only, "May the memory not be written to?")
      .def(
          "set",
          [](const Shared& shared, const Flags& flags, size_t flag) {
            const exchange::CallGuard guard;
            exchange::as_call("interop.share", false, [&] { shared.set(flags, flag); });
          },
          nb::arg("flags"), nb::arg("flag"), "The flag is 1 once all that is queued for the array now is done.")
      .def(
          "wait",
          [](const Shared& shared) {
            const exchange::CallGuard guard;
            exchange::as_call("interop.share", false, [&] { shared.wait(); });
          },
          "The host waits for that.")
      .def("check", &Shared::check, "BufferError where the memory is no more.");
  m.def(
      "open_shared",
      [](const std::string& owner, const std::string& by, uintptr_t base, size_t bytes, uintptr_t pool,
         const nb::bytes& handle, int fd, const nb::bytes& uuid, const std::string& dtype, std::vector<int64_t> shape,
         std::vector<int64_t> strides, int64_t offset, bool read_only, const Flags* flags, size_t flag,
         nb::handle lease) {
        const exchange::CallGuard guard;
        return exchange::as_call("interop.open", false, [&] {
          const Layout layout = read_layout(dtype, std::move(shape), std::move(strides), offset, read_only);
          return open_shared(owner, by, base, bytes, pool, handle, fd, uuid, layout, flags, flag, lease);
        });
      },
      nb::arg("owner"), nb::arg("by"), nb::arg("base"), nb::arg("bytes"), nb::arg("pool"), nb::arg("handle"),
      nb::arg("fd"), nb::arg("uuid"), nb::arg("dtype"), nb::arg("shape"), nb::arg("strides"), nb::arg("offset"),
      nb::arg("read_only"), nb::arg("flags").none(), nb::arg("flag"), nb::arg("lease").none(),
      nb::sig("def open_shared(owner: str, by: str, base: int, bytes: int, pool: int, handle: bytes, fd: int, uuid: "
              "bytes, dtype: str, shape: typing.Sequence[int], strides: typing.Sequence[int], offset: int, read_only: "
              "bool, flags: Flags | None, flag: int, lease: object) -> Array | None"),
      "An array that another process described so, behind a flag of its. Takes over `fd`; `lease` is dropped once the "
      "memory is unmapped. None where the memory is not mapped yet, and that takes an `fd` which was not given.");
  m.def(
      "fetch_add", [](nb::handle memory, size_t offset, int64_t amount) { return fetch_add(memory, offset, amount); },
      nb::arg("memory"), nb::arg("offset"), nb::arg("amount"),
      nb::sig("def fetch_add(memory: typing.Any, offset: int, amount: int) -> int"),
      "Adds to an unsigned integer of 32 bits in a buffer, at once for all processes; returns what it was.");
}

}  // namespace interop::bindings
