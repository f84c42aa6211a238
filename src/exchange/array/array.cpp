/// `interop.Array`: its memory, the order of work on it, and its route as an operand.
#include "exchange/array/array.h"

#include <algorithm>

#include "exchange/closing.h"

namespace interop::exchange {
namespace {

constexpr const char* kBeingResized = " is being resized; accepted: one at a time, resize() or another use";

// ---- the route ----

const Array& array_of(nb::handle object) { return nb::cast<const Array&>(object); }

class ArrayRoute final : public Route {
 public:
  const char* library() const override { return "interop"; }
  const char* protocol() const override { return "interop.Array"; }

  void inspect(Operand& operand) const override {
    const Array& array = array_of(operand.object);
    if (array.owner_route) enter_foreign(operand.function, array.owner_route->library());
    if (array.resizing.is_on) throw BufferError(operand.label() + kBeingResized);
    if (array.loan) array.loan->check(operand.label());
    operand.kept = array.memory;
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
      operand.uses = array.work ? array.work->uses : 0;
    } else {
      array.make_host_wait();
    }
  }
  void used(Operand& operand, cudaStream_t stream) const override {
    nb::cast<Array&>(operand.object).used_on(stream, operand.uses);
  }
  bool own_stream() const override { return true; }
};

/// The memory is there once the stream that it was allocated on has come to that: as if it had been used there.
void note_allocation(Work& work) {
  if (!work.is_fresh) return;
  work.is_fresh = false;
  if (!cuda::is_capturing(work.stream)) work.last_use = std::make_shared<const cuda::Event>(work.stream);
}

[[noreturn]] void throw_still_in_use() {
  throw ValueError(
      "interop: an interop.Array is still in use by work that was queued before the capture into a CUDA "
      "graph; synchronise before the capture");
}

}  // namespace

void refuse_host_wait(cudaStream_t stream) {
  if (!cuda::is_capturing(stream)) return;
  throw ValueError(
      "interop: the host cannot wait for an interop.Array whose stream is being captured into a CUDA "
      "graph; read it after the capture");
}

DLTensor Array::tensor() const {
  return {data,
          device,
          static_cast<int32_t>(shape.size()),
          dtype,
          const_cast<int64_t*>(shape.data()),
          const_cast<int64_t*>(strides.data()),
          0};
}

DLDevice Array::exported_device() const {
  return device.device_type == kDLCUDAManaged && gpu >= 0 ? DLDevice{kDLCUDA, gpu} : device;
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
  if (resizing.is_on) throw BufferError(std::string("interop.Array: the array") + kBeingResized);
  if (loan) loan->check("interop.Array");
  if (!owner_route || !owner_data) return;
  enter_foreign("interop.Array", owner_route->library());
  owner_route->check_kept(owner, owner_data);
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
  if (!work) return;
  if (work->is_fresh && waiter == work->stream) return;  // one of ours: no other stream ever has its handle
  const cuda::DeviceGuard guard(gpu);
  note_allocation(*work);
  const bool is_used = work->last_use || !work->graphs.empty() || !work->lent.empty();
  const std::uint64_t capture = is_used ? cuda::capture_id(waiter) : 0;
  if (capture && Replays::of_capture(capture)) return;  // each replay waits, for all that comes before it
  for (cudaStream_t theirs : work->lent) cuda::wait_stream(waiter, theirs);
  for (const std::shared_ptr<Replays>& graph : work->graphs) graph->make_wait(waiter);
  const std::shared_ptr<const cuda::Event>& use = work->last_use;
  if (!use) return;
  if (capture) {
    // What was queued outside the capture cannot become part of it; on its own stream it comes before every replay.
    if (waiter == work->stream || use->done()) return;
    throw_still_in_use();
  }
  // Also where `waiter` has the handle of `stream`: a destroyed stream's handle may be a new stream's.
  use->make_wait(waiter);
}

void Array::make_host_wait() const {
  check_address();
  if (!work) return;
  enter_foreign("interop.Array", "CUDA");
  const cuda::DeviceGuard guard(gpu);
  note_allocation(*work);
  const cudaStream_t producers = producer_stream();
  std::vector<cudaStream_t> streams = work->lent;
  if (producers) streams.push_back(producers);
  for (cudaStream_t theirs : streams) refuse_host_wait(theirs);
  std::vector<std::shared_ptr<const cuda::Event>> uses;  // another thread may note later ones meanwhile
  if (work->last_use) uses.push_back(work->last_use);
  for (const std::shared_ptr<Replays>& graph : work->graphs) {
    if (const cudaStream_t captured = graph->captured()) refuse_host_wait(captured);
    if (graph->last()) uses.push_back(graph->last());
  }
  const nb::gil_scoped_release no_gil;
  for (cudaStream_t theirs : streams) cuda::synchronize(theirs);
  for (const std::shared_ptr<const cuda::Event>& use : uses) use->synchronize();
}

void Array::used_on(cudaStream_t used, unsigned waited_for) {
  if (loan) loan->used_on(used);
  if (!work) return;
  Work& w = *work;
  const bool is_behind_all = w.uses++ == waited_for;
  const std::uint64_t capture = cuda::capture_id(used);
  if (const std::shared_ptr<Replays> graph = capture ? Replays::of_capture(capture) : nullptr) {
    w.is_of_one_stream = w.is_fresh = false;
    if (graph->note(work)) keep_for_graph(memory, gpu, used);
    return;  // nothing runs yet, and what was queued before is still to be waited for
  }
  const bool captures = capture != 0;
  if (!is_behind_all && captures && w.last_use) return;  // the other thread's use, of which no capture can become part
  if (!is_behind_all && w.last_use && w.stream != used) w.last_use->make_wait(used);
  Replays::forget_done(w);
  w.is_of_one_stream = w.is_of_one_stream && used == w.stream && !captures;
  w.is_fresh = false;
  w.stream = used;
  // In a capture nothing runs yet: its replays are ordered by whoever launches them.
  w.last_use = captures ? nullptr : std::make_shared<const cuda::Event>(used);
}

void Array::lend() {
  check_address();
  if (!work) return;
  const cuda::DeviceGuard guard(gpu);
  const cudaStream_t own = cuda::own_stream();
  make_wait(own);
  if (cuda::own_stream_is_captured()) return used_on(own, work->uses);
  std::vector<cudaStream_t>& lent = work->lent;
  if (std::find(lent.begin(), lent.end(), own) == lent.end()) lent.push_back(own);
  work->is_of_one_stream = false;
}

void Array::shown_to(cudaStream_t reader) const {
  if (loan) loan->shown_to(reader);
  if (!work) return;
  if (const std::shared_ptr<Replays> graph = Replays::of_stream(reader)) {
    if (graph->note(work)) keep_for_graph(memory, gpu, reader);
  }
  work->is_of_one_stream = false;
  work->readers.note(reader, gpu);
}

size_t byte_count(const Array& array) {
  return static_cast<size_t>(element_count(array.shape.data(), static_cast<int>(array.shape.size())) *
                             item_bytes(array.dtype));
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
