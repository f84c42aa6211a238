/// `interop.Array`: its memory, the order of work on it, and its route as an operand.
#include "exchange/array/array.h"

#include <algorithm>
#include <cstdlib>

#include "exchange/closing.h"
#include "exchange/reaper.h"

namespace interop::exchange {
namespace {

constexpr size_t kHostAlignment = 64;

// ---- the route ----

const Array& array_of(nb::handle object) { return nb::cast<const Array&>(object); }

class ArrayRoute final : public Route {
 public:
  const char* library() const override { return "interop"; }
  const char* protocol() const override { return "interop.Array"; }

  void inspect(Operand& operand) const override {
    const Array& array = array_of(operand.object);
    if (array.owner_route) enter_foreign(operand.function, array.owner_route->library());
    operand.tensor = array.tensor();
    std::copy(array.shape.begin(), array.shape.end(), operand.shape);
    std::copy(array.strides.begin(), array.strides.end(), operand.strides);
    operand.tensor.shape = operand.shape;
    operand.tensor.strides = operand.strides;
    operand.read_only = array.read_only;
    if (array.gpu < 0) return;
    if (array.device.device_type == kDLCUDAManaged) operand.tensor.device.device_id = array.gpu;
    // A view is joined both ways with the library that it came from.
    operand.stream = array.producer_stream();
    operand.has_stream = operand.stream != nullptr;
  }
  void acquire(Operand& operand, cudaStream_t stream) const override {
    const Array& array = array_of(operand.object);
    if (stream) {
      array.check_address();
      array.make_wait_for_uses(stream);
      operand.uses = array.uses;
    } else {
      array.make_host_wait();
    }
  }
  void used(Operand& operand, cudaStream_t stream) const override {
    nb::cast<Array&>(operand.object).used_on(stream, operand.uses);
  }
  bool own_stream() const override { return true; }
};

}  // namespace

DLTensor Array::tensor() const {
  return {data,
          device,
          static_cast<int32_t>(shape.size()),
          dtype,
          const_cast<int64_t*>(shape.data()),
          const_cast<int64_t*>(strides.data()),
          0};
}

bool Array::host_readable() const {
  return device.device_type != kDLCUDA || (data && byte_count(*this) > 0 && cuda::is_managed(data));
}

cudaStream_t Array::producer_stream() const {
  if (bound) return bound;
  cudaStream_t current = nullptr;
  return producer && gpu >= 0 && producer->current_stream(gpu, &current) ? current : nullptr;
}

void Array::check_address() const {
  if (!owner_route || !data) return;
  enter_foreign("interop.Array", owner_route->library());
  owner_route->check_kept(owner, data);
}

void Array::make_wait(cudaStream_t waiter) const {
  check_address();
  if (gpu < 0) return;
  enter_foreign("interop.Array", "CUDA");
  if (const cudaStream_t theirs = producer_stream()) {
    const cuda::DeviceGuard guard(gpu);
    cuda::wait_stream(waiter, theirs);
  }
  make_wait_for_uses(waiter);
}

void Array::make_wait_for_uses(cudaStream_t waiter) const {
  if (gpu < 0 || (!last_use && lent.empty())) return;
  const cuda::DeviceGuard guard(gpu);
  for (cudaStream_t theirs : lent) cuda::wait_stream(waiter, theirs);
  if (!last_use) return;
  if (cuda::is_capturing(waiter)) {
    // What was queued outside the capture cannot become part of it; on its own stream it comes before every replay.
    if (waiter == stream || last_use->done()) return;
    throw ValueError(
        "interop: an interop.Array is still in use by work that was queued before the capture into a CUDA "
        "graph; synchronise before the capture");
  }
  // Also where `waiter` has the handle of `stream`: a destroyed stream's handle may be a new stream's.
  last_use->make_wait(waiter);
}

void Array::make_host_wait() const {
  check_address();
  if (gpu < 0) return;
  enter_foreign("interop.Array", "CUDA");
  const cuda::DeviceGuard guard(gpu);
  const cudaStream_t producers = producer_stream();
  std::vector<cudaStream_t> streams = lent;
  if (producers) streams.push_back(producers);
  for (cudaStream_t theirs : streams) {
    if (cuda::is_capturing(theirs)) {
      throw ValueError(
          "interop: the host cannot wait for an interop.Array whose stream is being captured into a CUDA "
          "graph; read it after the capture");
    }
  }
  const std::shared_ptr<const cuda::Event> use = last_use;  // another thread may note a later one meanwhile
  const nb::gil_scoped_release no_gil;
  for (cudaStream_t theirs : streams) cuda::synchronize(theirs);
  if (use) use->synchronize();
}

void Array::used_on(cudaStream_t used, unsigned waited_for) {
  if (gpu < 0) return;
  const bool is_behind_all = uses++ == waited_for;
  const bool captures = cuda::is_capturing(used);
  if (!is_behind_all && captures && last_use) return;  // the other thread's use, of which no capture can become part
  if (!is_behind_all && last_use && stream != used) last_use->make_wait(used);
  stream = used;
  // In a capture nothing runs yet: its replays are ordered by whoever launches them.
  last_use = captures ? nullptr : std::make_shared<const cuda::Event>(used);
}

void Array::lend() {
  check_address();
  if (gpu < 0) return;
  const cuda::DeviceGuard guard(gpu);
  const cudaStream_t own = cuda::own_stream();
  make_wait(own);
  if (std::find(lent.begin(), lent.end(), own) == lent.end()) lent.push_back(own);
}

std::shared_ptr<void> host_memory(size_t bytes) {
  void* pointer = std::aligned_alloc(kHostAlignment, (bytes + kHostAlignment - 1) / kHostAlignment * kHostAlignment);
  if (!pointer) throw std::bad_alloc();
  return std::shared_ptr<void>(pointer, &std::free);
}

std::shared_ptr<void> device_memory(size_t bytes, int gpu, cudaStream_t stream, std::shared_ptr<Readers> readers) {
  const auto give_back = [gpu, readers = std::move(readers)](void* pointer) { readers->release(pointer, gpu); };
  std::shared_ptr<void> memory(cuda::allocate(bytes, stream), give_back);
  if (cuda::is_capturing(stream)) {  // replays write to it, whatever becomes of the array
    std::vector<Held> held(1);
    held[0].release = Release(new std::shared_ptr<void>(memory),
                              [](void* shared) { delete static_cast<std::shared_ptr<void>*>(shared); });
    hold_for(stream, gpu, std::move(held));
  }
  return memory;
}

size_t byte_count(const Array& array) {
  return static_cast<size_t>(element_count(array.shape.data(), static_cast<int>(array.shape.size())) *
                             item_bytes(array.dtype));
}

Array new_array(const Shape& shape, DLDataType dtype, DLDevice device, cudaStream_t stream) {
  Array array;
  array.device = device;
  array.dtype = dtype;
  array.shape.assign(shape.sizes, shape.sizes + shape.ndim);
  array.strides.resize(shape.ndim);
  compact_strides(shape.sizes, shape.ndim, array.strides.data());
  if (!array.on_host()) {
    array.gpu = device.device_id;
    array.stream = stream;
  }
  const size_t bytes = byte_count(array);
  if (bytes == 0) return array;
  if (array.on_host()) {
    array.memory = host_memory(bytes);
  } else {
    array.readers = std::make_shared<Readers>();
    array.memory = device_memory(bytes, array.gpu, stream, array.readers);
  }
  array.data = array.memory.get();
  return array;
}

const Route& array_route() {
  static const ArrayRoute route;
  return route;
}

// The default of every library that cannot be asked to allocate: interop's own array.
Made Route::empty(const Shape& shape, DLDataType dtype, DLDevice device, cudaStream_t stream, bool) const {
  Array array = new_array(shape, dtype, device, stream);
  void* data = array.data;
  return {nb::cast(std::move(array)), data};
}

nb::object Route::hand_over(nb::object made, cudaStream_t stream) const {
  if (stream && nb::isinstance<Array>(made)) nb::cast<Array&>(made).used_on(stream, 0);
  return made;
}

}  // namespace interop::exchange
