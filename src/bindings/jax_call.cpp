/// What XLA calls: functions of Python's, while it enqueues, on its stream, in its memory (`interop.jax.call`).
///
/// Any of XLA's threads, several at once. The GIL is taken here, and nothing is waited for while it is held.
#include <interop/cuda/driver.h>
#include <interop/error.h>
#include <interop/tensor.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "bindings/jax_buffers.h"
#include "bindings/jax_ffi.h"
#include "exchange/array/loan.h"
#include "exchange/array/own_table.h"
#include "exchange/closing.h"
#include "exchange/python.h"
#include "exchange/routes/jax.h"

namespace nb = nanobind;

namespace interop {
namespace {

constexpr const char* kFunction = "interop.jax.call";

/// Calls the function of a key, on a stream of a GPU, with arrays; returns None, or a text that says what it raised,
/// and whether that is a KeyboardInterrupt.
const exchange::Lookup kRun("interop.jax._callee", "run");

/// Takes the memory back when the call is over, whichever way that happens.
class Lent {
 public:
  Lent(int gpu, cudaStream_t stream) : gpu_(gpu), loan_(std::make_shared<exchange::Loan>(gpu, stream)) {}
  ~Lent() {
    try {
      end();
    } catch (const std::exception&) {  // the call has failed already
    }
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

  void end() {
    if (std::exchange(is_over_, true)) return;
    loan_->end();
  }

  /// An XLA buffer is compact and row-major, the layout that the lowering rule asks XLA for.
  nb::object array(const ffi::AnyBuffer& buffer, bool read_only) const {
    const auto sizes = buffer.dimensions();
    if (sizes.size() > kMaxDims) throw ValueError("an XLA buffer of more than 64 dimensions");
    int64_t strides[kMaxDims];
    DLTensor tensor{};
    tensor.data = buffer.untyped_data();
    tensor.device = gpu_ >= 0 ? DLDevice{kDLCUDA, gpu_} : DLDevice{kDLCPU, 0};
    tensor.dtype = dtype_of(buffer);
    tensor.ndim = static_cast<int32_t>(sizes.size());
    tensor.shape = const_cast<int64_t*>(sizes.begin());  // which nothing writes to
    tensor.strides = strides;
    compact_strides(tensor.shape, tensor.ndim, strides);
    return exchange::lent_array(tensor, gpu_, read_only, loan_);
  }

 private:
  const int gpu_;
  const std::shared_ptr<exchange::Loan> loan_;
  bool is_over_ = false;
};

/// All buffers of `from`, the operands or the results, as arrays.
template <class Buffers, class Get>
nb::list arrays_of(const Buffers& from, bool read_only, const Lent& lent, Get get) {
  nb::list arrays;
  for (size_t i = 0; i < from.size(); ++i) {
    const auto buffer = from.template get<ffi::AnyBuffer>(i);
    if (!buffer.has_value()) throw ValueError(buffer.error().message());
    arrays.append(lent.array(get(*buffer), read_only));
  }
  return arrays;
}

/// With the GIL. `gpu` is -1, and the stream null, on the host.
ffi::Error run(std::string_view key, int gpu, cudaStream_t stream, const ffi::RemainingArgs& operands,
               const ffi::RemainingRets& results) {
  const exchange::CallGuard guard;
  exchange::enter_foreign(kFunction, "XLA");
  std::optional<cuda::ForeignGuard> context;
  if (gpu >= 0) context.emplace(gpu);
  const exchange::WithinXla within;
  Lent lent(gpu, stream);
  const nb::list inputs = arrays_of(operands, true, lent, [](ffi::AnyBuffer x) { return x; });
  const nb::list outputs = arrays_of(results, false, lent, [](ffi::Result<ffi::AnyBuffer> x) { return *x; });
  std::optional<exchange::WorkingStream> working;
  if (gpu >= 0) working.emplace(gpu, stream);
  const nb::object said =
      kRun.get()(nb::str(key.data(), key.size()), gpu, reinterpret_cast<uintptr_t>(stream), inputs, outputs);
  if (working) working->finish();
  if (!said.is_none()) {
    const auto [text, is_interrupt] = nb::cast<std::pair<std::string, bool>>(said);
    if (is_interrupt) PyErr_SetInterrupt();  // the main thread has met it here, and is to meet it where it can end it
    return ffi::Error(ffi::ErrorCode::kInternal, text);
  }
  lent.end();  // XLA is told where its stream could not be made to wait
  return ffi::Error::Success();
}

ffi::Error call(std::string_view key, int gpu, cudaStream_t stream, const ffi::RemainingArgs& operands,
                const ffi::RemainingRets& results) {
  return guarded(kFunction, [&] {
    if (!Py_IsInitialized() || exchange::interpreter_is_gone()) {
      throw std::runtime_error("a program was run after Python's end");
    }
    const nb::gil_scoped_acquire gil;
    try {
      return run(key, gpu, stream, operands, results);
    } catch (nb::python_error& error) {
      throw std::runtime_error(exchange::text_of(error.value()));
    }
  });
}

ffi::Error call_on_host(ffi::RemainingArgs operands, ffi::RemainingRets results, std::string_view function) {
  return call(function, -1, nullptr, operands, results);
}

ffi::Error call_on_gpu(cudaStream_t stream, int32_t device, ffi::RemainingArgs operands, ffi::RemainingRets results,
                       std::string_view function) {
  return call(function, device, stream, operands, results);
}

XLA_FFI_DEFINE_HANDLER(kCallOnHost, call_on_host,
                       ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<std::string_view>("function"));

// Not kCmdBufferCompatible: a CUDA graph would replay what the function queued once, in memory that it has let go of.
XLA_FFI_DEFINE_HANDLER(kCallOnGpu, call_on_gpu,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<std::string_view>("function"));

}  // namespace

nb::dict jax_call_targets() {
  nb::dict targets;
  targets["cpu"] = nb::capsule(reinterpret_cast<void*>(kCallOnHost));
  if (cuda::built_for() != 0) targets["CUDA"] = nb::capsule(reinterpret_cast<void*>(kCallOnGpu));
  return targets;
}

}  // namespace interop
