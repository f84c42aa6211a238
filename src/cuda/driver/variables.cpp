/// Where each stream has come to with a library, and copies to and from its variables.
#include "cuda/driver/variables.h"

#include <interop/cuda/driver.h>
#include <interop/cuda/graph.h>
#include <interop/error.h>

#include <algorithm>

#include "cuda/driver/library.h"
#include "cuda/driver/streams.h"

namespace interop::cuda {
namespace {

constexpr std::ptrdiff_t kMostPoints = 1024;  // of other captures: the oldest go, whose captures have long ended

const char* const kDoing = "ordering a kernel with its variables";

/// What tells the stream from others, destroyed ones too, whose handle it may have. The driver says it outside captures
/// alone; in a capture handles do, as no stream of one can be destroyed.
std::uint64_t stream_id(cudaStream_t stream, std::uint64_t capture) {
  if (capture != 0) return reinterpret_cast<std::uintptr_t>(stream);
  unsigned long long id = 0;
  check(driver().cuStreamGetId(stream, &id), kDoing);
  return id;
}

void destroy(CUevent event) { driver().cuEventDestroy(event); }

}  // namespace

VariableOrder::Step::Step(VariableOrder& order, Kind kind, cudaStream_t stream, bool everywhere)
    : lock_(order.mutex_),
      order_(order),
      kind_(kind),
      stream_(stream),
      everywhere_(everywhere),
      context_(current_context_id(kDoing)),
      capture_(capture_id(stream)),
      stream_id_(stream_id(stream, capture_)) {
  const DriverApi& api = driver();
  std::uint64_t seen = 0;
  for (const Point& launch : order.launches_) {
    if (launch.context == context_ && launch.stream == stream_id_ && launch.capture == capture_) seen = launch.sees;
  }
  const auto wait_for = [&](const Point& point) {
    if (!point.is_recorded) return;  // what should have been queued there was not
    if (point.context != context_ && !point.everywhere && !everywhere_) return;  // another device's variables
    if (point.capture == capture_) {
      if (point.stream == stream_id_ && point.context == context_) return;
      check(api.cuStreamWaitEvent(stream_, point.event, CU_EVENT_WAIT_DEFAULT), kDoing);
    } else if (point.capture == 0) {
      RelaxedCapture relaxed(api);
      check(api.cuEventSynchronize(point.event), kDoing);
    }
  };
  for (const Point& write : order.writes_) {
    if (write.number > seen) wait_for(write);
  }
  if (kind_ != Kind::launch) {
    for (const Point& launch : order.launches_) wait_for(launch);
  }
  if (kind_ != Kind::read) point_ = point();  // for a read the host waits
}

/// The point where this is noted. It is made before anything is queued, as it may fail.
VariableOrder::Point* VariableOrder::Step::point() {
  const auto is_of = [&](const Point& point) {
    return point.context == context_ && point.capture == capture_ &&
           (kind_ == Kind::write ? point.everywhere == everywhere_ : point.stream == stream_id_);
  };
  std::vector<Point>& points = kind_ == Kind::write ? order_.writes_ : order_.launches_;
  const auto known = std::find_if(points.begin(), points.end(), is_of);
  if (known != points.end()) return &*known;
  order_.forget_done(capture_);
  points.reserve(points.size() + 1);
  points.push_back({context_, stream_id_, capture_, everywhere_, new_event(driver())});
  return &points.back();
}

void VariableOrder::Step::queued() {
  if (!point_) return;
  const DriverApi& api = driver();
  const CUresult recorded = api.cuEventRecord(point_->event, stream_);
  if (recorded != CUDA_SUCCESS && capture_ == 0) {  // nothing can wait for what is queued: so it ends now
    RelaxedCapture relaxed(api);
    api.cuStreamSynchronize(stream_);
  }
  check(recorded, kDoing);
  if (kind_ == Kind::write) ++order_.count_;
  point_->is_recorded = true;
  point_->stream = stream_id_;
  point_->sees = point_->number = order_.count_;
  if (kind_ == Kind::launch) return;
  // What comes later waits for the write, which comes behind these.
  const auto is_behind = [&](const Point& launch) {
    const bool has = launch.capture == capture_ && (launch.context == context_ || everywhere_);
    if (has) destroy(launch.event);
    return has;
  };
  std::vector<Point>& launches = order_.launches_;
  launches.erase(std::remove_if(launches.begin(), launches.end(), is_behind), launches.end());
}

/// Drops launches that are done, and the points of other captures that have ended, as far as that can be told.
void VariableOrder::forget_done(std::uint64_t capture) {
  const DriverApi& api = driver();
  RelaxedCapture relaxed(api);
  const auto is_done = [&](const Point& point) {
    const bool done = point.capture == 0 && api.cuEventQuery(point.event) == CUDA_SUCCESS;
    if (done) destroy(point.event);
    return done;
  };
  launches_.erase(std::remove_if(launches_.begin(), launches_.end(), is_done), launches_.end());
  for (std::vector<Point>* points : {&launches_, &writes_}) {
    const auto is_other = [&](const Point& point) { return point.capture != 0 && point.capture != capture; };
    if (std::count_if(points->begin(), points->end(), is_other) < kMostPoints) continue;
    const auto oldest = std::find_if(points->begin(), points->end(), is_other);
    destroy(oldest->event);
    points->erase(oldest);
  }
}

// ---- variables ----

Variable find_variable(Library& library, const std::string& symbol) {
  const DriverApi& api = driver();
  RelaxedCapture relaxed(api);
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  const CUresult found = api.cuLibraryGetGlobal(&address, &bytes, library.handle, symbol.c_str());  // loads it here
  if (found != CUDA_SUCCESS && found != CUDA_ERROR_NOT_FOUND) throw_image_status(found, library);
  CUdeviceptr managed = 0;
  std::size_t managed_bytes = 0;
  if (api.cuLibraryGetManaged(&managed, &managed_bytes, library.handle, symbol.c_str()) == CUDA_SUCCESS) {
    return {reinterpret_cast<void*>(managed), managed_bytes, true};
  }
  if (found == CUDA_ERROR_NOT_FOUND) {
    throw CudaError("interop: " + library.origin + " has no variable " + symbol + ": CUDA_ERROR_NOT_FOUND");
  }
  return {reinterpret_cast<void*>(address), bytes, false};
}

void write_variable(Library& library, const Variable& variable, const void* from, bool from_host, cudaStream_t stream) {
  VariableOrder::Step step(*library.order, VariableOrder::Step::Kind::write, stream, variable.managed);
  if (from_host) {
    copy_to_device(variable.address, from, variable.bytes, stream);
  } else {
    copy_on_device(variable.address, from, variable.bytes, stream);
  }
  step.queued();
}

void read_variable(Library& library, const Variable& variable, void* to, cudaStream_t stream) {
  {
    VariableOrder::Step step(*library.order, VariableOrder::Step::Kind::read, stream, variable.managed);
    copy_to_host(to, variable.address, variable.bytes, stream);
    step.queued();
  }
  synchronize(stream);
}

}  // namespace interop::cuda
