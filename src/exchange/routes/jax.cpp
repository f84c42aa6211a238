/// JAX arrays in calls with other libraries, by DLPack. (Calls of JAX arrays alone go to `interop.jax`.)
#include <interop/cuda/driver.h>

#include <optional>

#include "exchange/array/array.h"
#include "exchange/closing.h"
#include "exchange/routes/dlpack.h"

namespace interop::exchange {
namespace {

const Lookup kFromDlpack("jax.dlpack", "from_dlpack");
const Lookup kEnableX64("jax", "enable_x64");
const Lookup kConfig("jax", "config");
const Lookup kCheckSpecial("interop.jax._calls", "check_special");
const Name kDebugNans("jax_debug_nans");
const Name kDebugInfs("jax_debug_infs");
const Name kIsDeleted("is_deleted");

class JaxArrayRoute : public Route {
 public:
  const char* library() const override { return "jax"; }
  const char* protocol() const override { return "a JAX primitive; __dlpack__ beside other libraries"; }
  bool writable() const override { return false; }  // JAX arrays are immutable
  Tracing tracing() const override { return Tracing::concrete; }
  bool own_stream() const override { return true; }

  void enter(Operand& operand) const override { enter_foreign(operand.function, "JAX"); }
  void inspect(Operand& operand) const override {
    if (nb::cast<bool>(attribute(operand.object, kIsDeleted)())) {
      throw BufferError(operand.label() + ": the JAX array has been deleted or donated; pass a live one");
    }
    operand.read_only = true;
    operand.tensor.device = dlpack_device(operand);
    // XLA knows nothing of our stream, and reuses a buffer once its last reference is gone.
    operand.hold = !operand.on_host();
  }
  void acquire(Operand& operand, cudaStream_t stream) const override {
    if (stream && cuda::is_capturing(stream)) {
      throw ValueError(operand.label() + " is a JAX array, whose pending work cannot join the capture of the call's " +
                       "stream into a CUDA graph; call it outside the capture, or in jax.jit");
    }
    const nb::object capsule = dlpack_capsule(operand, operand.on_host() ? nullptr : stream);
    read_capsule(operand, capsule);
    operand.read_only = true;  // which JAX's unversioned capsule cannot say
  }
  nb::object hand_over(nb::object made, cudaStream_t stream) const override {
    const nb::object array = Route::hand_over(made, stream);
    std::optional<Within> wide;
    // Outside its x64 mode JAX would narrow the result, and the caller's operands were 64 bits wide.
    if (item_bytes(nb::cast<const Array&>(array).dtype) >= 8) wide.emplace(kEnableX64.get()(true));
    const nb::object result = kFromDlpack.get()(array);
    const nb::handle config = kConfig.get();
    if (attribute(config, kDebugNans).is(Py_True) || attribute(config, kDebugInfs).is(Py_True)) {
      kCheckSpecial.get()("interop", result);
    }
    return result;
  }
};

class JaxTracerRoute final : public JaxArrayRoute {
 public:
  const char* protocol() const override { return "none (a tracer)"; }
  Tracing tracing() const override { return Tracing::tracer; }
  void inspect(Operand& operand) const override {
    throw TypeError(operand.label() + " is a JAX tracer (" + type_text(operand.object) +
                    "), which has no memory yet; inside jit every array of the call must be JAX's, and " +
                    "kernels of your own are called outside");
  }
};

}  // namespace

const Route& jax_array_route() {
  static const JaxArrayRoute route;
  return route;
}

const Route& jax_tracer_route() {
  static const JaxTracerRoute route;
  return route;
}

}  // namespace interop::exchange
