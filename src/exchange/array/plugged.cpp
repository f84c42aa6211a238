/// The allocator that a user has plugged in.
#include "exchange/array/plugged.h"

#include <interop/profile.h>

#include <atomic>

#include "exchange/array/view.h"

namespace interop::exchange {
namespace {

constexpr const char* kFunction = "interop.set_allocator";
constexpr uintptr_t kAlignment = 64;  // of the vectors that kernels read, and more

std::atomic<PyObject*> g_allocator{nullptr};  // owned; changed with the GIL

}  // namespace

void plug_allocator(nb::object allocator) {
  nb::steal(g_allocator.exchange(allocator.is_none() ? nullptr : allocator.release().ptr()));
}

std::optional<Array> plugged_memory(size_t bytes, int gpu, cudaStream_t stream) {
  if (!g_allocator.load(std::memory_order_relaxed)) return std::nullopt;
  const nb::gil_scoped_acquire gil;
  const profile::Stopwatch watch;
  const nb::object allocator = nb::borrow(g_allocator.load());
  if (!allocator.is_valid()) return std::nullopt;
  const nb::object given = allocator(bytes, gpu, reinterpret_cast<uintptr_t>(stream));
  const nb::object view = asarray(given, kFunction, stream, "the memory");
  const Array& array = nb::cast<const Array&>(view);
  const std::string label = std::string(kFunction) + ": the allocator was asked for " + std::to_string(bytes) +
                            " bytes on cuda:" + std::to_string(gpu) + ", and gives ";
  const std::string accepted = "; accepted: a compact, writable array of as many bytes there, at a multiple of 64";
  if (array.gpu != gpu || array.on_host())
    throw ValueError(label + "memory on " + device_text(array.device) + accepted);
  if (array.read_only) throw TypeError(label + "read-only memory" + accepted);
  if (byte_count(array) < bytes || !is_compact(array.tensor())) {
    throw ValueError(label + "an array of shape " +
                     shape_text(array.shape.data(), static_cast<int>(array.shape.size())) + accepted);
  }
  if (reinterpret_cast<uintptr_t>(array.data) % kAlignment != 0) throw ValueError(label + "another address" + accepted);
  Array memory = array;
  memory.producer = nullptr;  // its memory is the array's alone: nobody else works on it
  memory.bound = nullptr;
  watch.note(profile::What::allocation, "device, by the plugged allocator", bytes);
  return memory;
}

}  // namespace interop::exchange
