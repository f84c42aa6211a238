/// What `interop.graph` needs of the compiled half: the capture of a stream, and what each replay waits for.
#include <interop/cuda/graph.h>
#include <nanobind/stl/optional.h>

#include <optional>

#include "bindings/bindings.h"
#include "exchange/array/replays.h"
#include "exchange/closing.h"
#include "exchange/place.h"
#include "exchange/python.h"
#include "exchange/reaper.h"
#include "exchange/stream.h"

namespace interop::bindings {
namespace {

using exchange::stream_from_handle;

constexpr const char* kFunction = "interop.graph";

class Capture {
 public:
  Capture(int device, nb::handle stream) : device_(device) {
    const exchange::CallGuard call;
    exchange::as_call(kFunction, false, [&] {
      exchange::enter_foreign(kFunction, "CUDA");
      const cuda::DeviceGuard guard(device_);
      stream_ = stream.is_none() ? cuda::stream_to_capture() : exchange::stream_argument(stream, kFunction);
      if (stream_ == cuda::kLegacyStream || stream_ == cuda::kPerThreadStream) {
        throw ValueError(std::string(kFunction) + ": stream is a default stream, which is not captured; accepted: " +
                         "another, or None for one of interop's own");
      }
      if (cuda::capture_state(stream_) != cuda::CaptureState::none) {
        throw ValueError(std::string(kFunction) + ": stream is being captured into a CUDA graph already; accepted: " +
                         "one that is not, or None for one of interop's own");
      }
    });
  }

  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  ~Capture() {
    replays_->close();
    try {
      const cuda::DeviceGuard guard(device_);
      exec_.reset();
    } catch (...) {
      // A driver that has shut down, or a broken context: the graph goes with them.
    }
  }

  int device() const { return device_; }
  int64_t stream() const { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(stream_)); }

  void begin() const {
    run([&] { cuda::begin_capture(stream_); });
  }
  void enter() {
    run([&] {
      replays_->begin(stream_);
      cuda::capture_own_stream(stream_);
    });
  }
  void leave() {
    run([&] {
      cuda::capture_own_stream(nullptr);
      replays_->end();
    });
  }
  const char* state() const {
    cuda::CaptureState state = cuda::CaptureState::none;
    run([&] { state = cuda::capture_state(stream_); });
    return state == cuda::CaptureState::none ? "none" : state == cuda::CaptureState::active ? "active" : "failed";
  }
  void end() {
    run([&] {
      const nb::gil_scoped_release no_gil;
      exec_.emplace(stream_);
    });
  }
  void drop() const {
    run([&] { cuda::drop_capture(stream_); });
  }

  int64_t own_stream() const {
    cudaStream_t own = nullptr;
    run([&] { own = cuda::own_stream(); });
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(own));
  }
  void before(int64_t handle) const {
    const cudaStream_t stream = stream_from_handle(handle);
    run([&] {
      if (cuda::is_capturing(stream)) {
        throw ValueError(
            "interop.Graph.replay: the stream is being captured into a CUDA graph; accepted: a replay outside the "
            "capture");
      }
      replays_->before(stream);
    });
  }
  void launch(int64_t handle) const {
    run([&] {
      const nb::gil_scoped_release no_gil;
      exec_->launch(stream_from_handle(handle));
    });
  }
  void after(int64_t handle) const {
    run([&] { replays_->after(stream_from_handle(handle)); });
  }
  /// Keeps what the graph needs until the last replay is done.
  void hold(const nb::list& objects) {
    if (!replays_->last()) return;
    run([&] {
      const cudaStream_t waiter = cuda::lasting_stream();
      replays_->make_wait(waiter);
      std::vector<exchange::Held> held;
      for (nb::handle object : objects) held.push_back({nb::borrow(object)});
      exchange::hold_for(waiter, device_, std::move(held));
    });
  }

 private:
  template <class Body>
  void run(Body&& body) const {
    const exchange::CallGuard call;
    exchange::as_call(kFunction, false, [&] {
      const cuda::DeviceGuard guard(device_);
      body();
    });
  }

  const int device_;
  cudaStream_t stream_ = nullptr;
  const std::shared_ptr<exchange::Replays> replays_ = std::make_shared<exchange::Replays>();
  std::optional<cuda::GraphExec> exec_;
};

bool is_capturing(int64_t handle, int device) {
  const exchange::CallGuard call;
  return exchange::as_call(kFunction, false, [&] {
    const cuda::DeviceGuard guard(device);
    return cuda::is_capturing(stream_from_handle(handle));
  });
}

}  // namespace

void bind_graph(nb::module_& m) {
  m.def("is_capturing", &is_capturing, nb::arg("stream"), nb::arg("device"),
        "Is the stream being captured into a CUDA graph?");
  nb::class_<Capture>(m, "Capture", "The capture of a stream into a CUDA graph, and the replays of that.")
      .def(nb::init<int, nb::handle>(), nb::arg("device"), nb::arg("stream").none(),
           nb::sig("def __init__(self, device: int, stream: typing.Any) -> None"))
      .def_prop_ro("device", &Capture::device)
      .def_prop_ro("stream", &Capture::stream, "The handle of the stream that is captured.")
      .def("begin", &Capture::begin, "Begins the capture, where torch does not.")
      .def("enter", &Capture::enter, "From now on interop's own work of this thread is part of it.")
      .def("leave", &Capture::leave, "And now no more.")
      .def("state", &Capture::state, nb::sig("def state(self) -> str"), "'none', 'active' or 'failed'.")
      .def("end", &Capture::end, "Ends it, and makes a graph that can be launched, where torch does not.")
      .def("drop", &Capture::drop, "Ends it, whatever has become of it, and makes nothing.")
      .def("own_stream", &Capture::own_stream, "The handle of interop's own stream of this thread.")
      .def("before", &Capture::before, nb::arg("stream"), "Lets a stream wait for what uses the arrays of the graph.")
      .def("launch", &Capture::launch, nb::arg("stream"), "Launches the graph.")
      .def("after", &Capture::after, nb::arg("stream"), "Notes a replay, for who uses the arrays next.")
      .def("hold", &Capture::hold, nb::arg("objects"), nb::sig("def hold(self, objects: list[typing.Any]) -> None"),
           "Keeps the objects until the last replay is done.");
}

}  // namespace interop::bindings
