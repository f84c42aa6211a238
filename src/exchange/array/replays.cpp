#include "exchange/array/replays.h"

#include <interop/error.h>

#include <algorithm>
#include <map>

#include "exchange/array/array.h"

namespace interop::exchange {
namespace {

/// Those that are being captured, by the id of the capture.
std::map<std::uint64_t, Replays*>& captures() {
  static auto* const all = new std::map<std::uint64_t, Replays*>;
  return *all;
}

}  // namespace

std::shared_ptr<Replays> Replays::of_capture(std::uint64_t id) {
  const auto found = captures().find(id);
  return found == captures().end() ? nullptr : found->second->shared_from_this();
}

std::shared_ptr<Replays> Replays::of_stream(cudaStream_t stream) {
  return captures().empty() ? nullptr : of_capture(cuda::capture_id(stream));
}

Replays::~Replays() { end(); }

void Replays::forget_done(Work& work) {
  if (work.graphs.empty()) return;
  const auto is_over = [](const std::shared_ptr<Replays>& graph) {
    return graph->is_gone_ && (!graph->last_ || graph->last_->done());
  };
  work.graphs.erase(std::remove_if(work.graphs.begin(), work.graphs.end(), is_over), work.graphs.end());
}

void Replays::begin(cudaStream_t stream) {
  id_ = cuda::capture_id(stream);
  captured_ = stream;
  captures()[id_] = this;
}

void Replays::end() {
  if (captured_) captures().erase(id_);
  captured_ = nullptr;
}

bool Replays::note(const std::shared_ptr<Work>& work) {
  std::vector<std::shared_ptr<Replays>>& graphs = work->graphs;
  if (std::any_of(graphs.begin(), graphs.end(), [&](const auto& graph) { return graph.get() == this; })) return false;
  forget_done(*work);
  graphs.push_back(shared_from_this());
  works_.push_back({work, nullptr});
  return true;
}

void Replays::before(cudaStream_t stream) {
  if (stream != stream_) make_wait(stream);
  std::vector<const Replays*> waited{this};
  const auto waits = [&](Used& used) {
    const std::shared_ptr<Work> work = used.work.lock();
    if (!work) return false;
    used.waited = work->last_use;
    if (used.waited) used.waited->make_wait(stream);
    for (cudaStream_t theirs : work->lent) cuda::wait_stream(stream, theirs);
    for (const std::shared_ptr<Replays>& graph : work->graphs) {
      if (std::find(waited.begin(), waited.end(), graph.get()) != waited.end()) continue;
      graph->make_wait(stream);
      waited.push_back(graph.get());
    }
    return true;
  };
  works_.erase(std::remove_if(works_.begin(), works_.end(), [&](Used& used) { return !waits(used); }), works_.end());
}

void Replays::after(cudaStream_t stream) {
  last_ = std::make_shared<const cuda::Event>(stream);
  stream_ = stream;
  for (Used& used : works_) {
    const std::shared_ptr<Work> work = used.work.lock();
    // Another thread may have noted a later use meanwhile.
    if (work && used.waited && work->last_use == used.waited) work->last_use = nullptr;
    used.waited = nullptr;
  }
}

void Replays::close() {
  is_gone_ = true;
  works_.clear();
}

void Replays::make_wait(cudaStream_t waiter) const {
  if (!last_) return;
  if (!cuda::is_capturing(waiter)) return last_->make_wait(waiter);
  if (last_->done()) return;
  throw ValueError(
      "interop: an interop.Array is still in use by a replay of interop.graph, and is used in a capture into a CUDA "
      "graph; synchronise before the capture");
}

}  // namespace interop::exchange
