/// Memory that C++, NumPy and the GPU see: an allocator that std::vector takes, and arrays with a shape. Header-only,
/// for nanobind modules.
///
///     interop::vector<float> values(1000);                 // a std::vector, in managed memory
///     interop::array<float> image({480, 640});             // with a shape; `image.data()` is for kernels, too
///     return image.to_python();                            // an interop.Array on the same memory, which it shares
///
/// Where this machine has no GPU, the memory is the host's.
#pragma once

#include <interop/api.h>
#include <interop/mdspan.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace interop {

/// Which memory: that of the host and the GPU, in pages that move between them, or in page-locked memory of the host.
enum class Memory : int32_t { host = kDLCPU, pinned = kDLCUDAHost, managed = kDLCUDAManaged };

/// An allocator for std::vector and other containers. It allocates with the GIL, and gives back on any thread. The
/// memory is used again once the default stream, blocking streams and interop's own have done what they have queued by
/// then: a container lives until kernels on other streams are done.
template <class T, Memory kMemory = Memory::managed>
class allocator {
 public:
  using value_type = T;
  template <class Other>
  struct rebind {
    using other = allocator<Other, kMemory>;
  };

  allocator() = default;
  template <class Other>
  allocator(const allocator<Other, kMemory>&) noexcept {}

  /// Throws `nanobind::python_error` where there is no memory.
  T* allocate(std::size_t count) {
    void* const memory = api().allocate(count * sizeof(T), static_cast<int32_t>(kMemory));
    if (!memory) nanobind::raise_python_error();
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t) noexcept { api().deallocate(memory); }

  friend bool operator==(const allocator&, const allocator&) noexcept { return true; }
  friend bool operator!=(const allocator&, const allocator&) noexcept { return false; }
};

/// A std::vector in memory that the host and the GPU see.
template <class T, Memory kMemory = Memory::managed>
using vector = std::vector<T, allocator<T, kMemory>>;

/// Numbers with a shape, row-major, in memory that the host and the GPU see. A copy of it is the same memory.
template <class T, Memory kMemory = Memory::managed>
class array {
 public:
  /// Zeros.
  explicit array(std::vector<int64_t> shape) : state_(std::make_shared<State>()) { resize(std::move(shape)); }

  T* data() const { return state_->values.data(); }
  std::size_t size() const { return state_->values.size(); }
  const std::vector<int64_t>& shape() const { return state_->shape; }
  T* begin() const { return data(); }
  T* end() const { return data() + size(); }
  T& operator[](std::size_t i) const { return state_->values[i]; }
  /// The memory as an mdspan, see <interop/mdspan.h>: until the next `resize`.
  template <class Mdspan>
  Mdspan mdspan() const {
    DLTensor tensor{};
    tensor.data = data();
    tensor.ndim = static_cast<int32_t>(shape().size());
    tensor.shape = state_->shape.data();
    constexpr auto dtype = nanobind::dtype<T>();
    tensor.dtype = {dtype.code, dtype.bits, dtype.lanes};
    return as_mdspan<Mdspan>(tensor, "interop::array::mdspan: the array");
  }
  /// What owns the memory.
  vector<T, kMemory>& values() const { return state_->values; }

  /// As `std::vector::resize`. Throws ValueError while Python has the memory.
  void resize(std::vector<int64_t> shape) {
    std::size_t count = 1;
    for (const int64_t each : shape) {
      if (each < 0) throw ValueError("interop::array: a size is negative; accepted: 0 or more");
      count *= static_cast<std::size_t>(each);
    }
    if (state_->exports > 0) {
      throw ValueError("interop::array::resize: an array of Python has the memory; accepted: none that does");
    }
    state_->values.resize(count);
    state_->shape = std::move(shape);
  }

  /// An interop.Array on the memory, which keeps it. C++, and another array of the same memory, know nothing of the
  /// work of a GPU on this one: `x.synchronize()` in Python waits for it.
  nanobind::object to_python() const {
    auto exported = std::make_unique<Export>();
    exported->state = state_;
    ++state_->exports;
    exported->shape = state_->shape;
    exported->strides.assign(exported->shape.size(), 1);
    for (std::size_t i = exported->shape.size(); i > 1; --i) {
      exported->strides[i - 2] = exported->strides[i - 1] * exported->shape[i - 1];
    }
    DLManagedTensorVersioned& managed = exported->managed;
    managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    constexpr auto dtype = nanobind::dtype<T>();
    const auto device = static_cast<DLDeviceType>(api().memory_type(data()));
    managed.dl_tensor = {data(),
                         {device, 0},
                         static_cast<int32_t>(exported->shape.size()),
                         {dtype.code, dtype.bits, dtype.lanes},
                         exported->shape.data(),
                         exported->strides.data(),
                         0};
    managed.manager_ctx = exported.get();
    managed.deleter = [](DLManagedTensorVersioned* self) { delete static_cast<Export*>(self->manager_ctx); };
    PyObject* const capsule = PyCapsule_New(&managed, "dltensor_versioned", [](PyObject* unused) {
      if (!PyCapsule_IsValid(unused, "dltensor_versioned")) return;  // it was used, and has another name
      auto* const tensor = static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(unused, "dltensor_versioned"));
      tensor->deleter(tensor);
    });
    if (!capsule) nanobind::raise_python_error();
    exported.release();
    return nanobind::module_::import_("interop").attr("asarray")(nanobind::steal(capsule));
  }

 private:
  struct State {
    vector<T, kMemory> values;
    std::vector<int64_t> shape;
    std::atomic<int> exports{0};
  };
  struct Export {
    DLManagedTensorVersioned managed{};
    std::shared_ptr<State> state;
    std::vector<int64_t> shape, strides;
    ~Export() {
      if (state) --state->exports;
    }
  };
  std::shared_ptr<State> state_;
};

}  // namespace interop
