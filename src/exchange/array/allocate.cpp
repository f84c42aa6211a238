/// The memory of new arrays.
#include <interop/cuda/memory.h>
#include <interop/profile.h>

#include <cstdlib>
#include <new>
#include <optional>

#include "exchange/array/array.h"
#include "exchange/array/plugged.h"
#include "exchange/array/shared.h"
#include "exchange/reaper.h"

namespace interop::exchange {
namespace {

constexpr size_t kHostAlignment = 64;

/// Managed or pinned memory, which is kept for another array behind the streams that `work` knows.
std::shared_ptr<void> block_memory(cuda::MemoryKind kind, size_t bytes, int gpu, cudaStream_t stream,
                                   std::shared_ptr<Work> work) {
  cuda::TakenBlock taken{};
  {
    const nb::gil_scoped_release no_gil;
    taken = cuda::take_block(kind, bytes, stream);
  }
  if (taken.is_busy) work->last_use = std::make_shared<const cuda::Event>(stream);
  const auto give_back = [block = taken.block, work = std::move(work)](void*) {
    work->readers.release(block, work->last_use);
  };
  std::shared_ptr<void> memory(taken.data, give_back);
  keep_for_graph(memory, gpu, stream);
  return memory;
}

}  // namespace

void keep_for_graph(const std::shared_ptr<void>& memory, int gpu, cudaStream_t stream) {
  if (!cuda::is_capturing(stream)) return;
  std::vector<Held> held(1);
  held[0].release = Release(new std::shared_ptr<void>(memory),
                            [](void* shared) { delete static_cast<std::shared_ptr<void>*>(shared); });
  hold_for(stream, gpu, std::move(held));
}

std::shared_ptr<void> host_memory(size_t bytes) {
  const profile::Stopwatch watch;
  void* pointer = std::aligned_alloc(kHostAlignment, (bytes + kHostAlignment - 1) / kHostAlignment * kHostAlignment);
  if (!pointer) throw std::bad_alloc();
  watch.note(profile::What::allocation, "host", bytes);
  return std::shared_ptr<void>(pointer, &std::free);
}

std::shared_ptr<void> device_memory(size_t bytes, int gpu, cudaStream_t stream, std::shared_ptr<Work> work) {
  void* const pointer = cuda::allocate(bytes, stream);
  const auto give_back = [gpu, work = std::move(work)](void* memory) {
    if (work->is_of_one_stream && cuda::release_unless_captured(memory, gpu, work->stream)) return;
    work->readers.release(memory, gpu, work->last_use);
  };
  std::shared_ptr<void> memory(pointer, give_back);
  keep_for_graph(memory, gpu, stream);
  return memory;
}

Array compact_array(const Shape& shape, DLDataType dtype, DLDevice device) {
  Array array;
  array.device = device;
  array.dtype = dtype;
  array.shape.assign(shape.sizes, shape.sizes + shape.ndim);
  array.strides.resize(shape.ndim);
  compact_strides(shape.sizes, shape.ndim, array.strides.data());
  return array;
}

Array new_array(const Shape& shape, DLDataType dtype, DLDevice device, cudaStream_t stream, bool shared) {
  Array array = compact_array(shape, dtype, device);
  const size_t bytes = byte_count(array);
  array.capacity = bytes;
  if (array.on_host()) {
    if (bytes > 0) array.memory = shared ? shared_host_memory(bytes) : host_memory(bytes);
    array.data = array.memory.get();
    return array;
  }
  array.work = std::make_shared<Work>();
  array.work->stream = stream;
  array.gpu = device.device_type == kDLCUDA ? device.device_id : cuda::default_device();
  if (device.device_type != kDLCUDA) array.device.device_id = 0;  // what DLPack says of managed and pinned memory
  if (bytes == 0) return array;
  if (device.device_type == kDLCUDA) {
    if (const auto plugged = shared ? std::nullopt : plugged_memory(bytes, array.gpu, stream)) {
      array.memory = plugged->memory;
      array.work = plugged->work;
      array.data = plugged->data;
      array.is_view = true;
      array.capacity = 0;
      keep_for_graph(array.memory, array.gpu, stream);
      return array;
    }
    array.memory = device_memory(bytes, array.gpu, stream, array.work);
    // In a capture the memory is there already, and the stream need not outlive it.
    const bool is_ours = !cuda::own_stream_is_captured() && stream == cuda::own_stream();
    array.work->is_fresh = array.work->is_of_one_stream = is_ours;
  } else {
    const auto kind = device.device_type == kDLCUDAManaged ? cuda::MemoryKind::managed : cuda::MemoryKind::pinned;
    array.memory = block_memory(kind, bytes, array.gpu, stream, array.work);
  }
  array.data = array.memory.get();
  return array;
}

}  // namespace interop::exchange
