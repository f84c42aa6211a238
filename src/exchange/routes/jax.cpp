/// JAX arrays in calls with other libraries, by DLPack. (Calls of JAX arrays alone go to `interop.jax`.)
#include "exchange/routes/jax.h"

#include <interop/cuda/graph.h>

#include <stdexcept>

#include "exchange/closing.h"
#include "exchange/routes/dlpack.h"

namespace interop::exchange {
namespace {

const Lookup kJaxArray("interop._libraries.jax", "jax_array");
const Name kIsDeleted("is_deleted");
thread_local int within_xla = 0;

class JaxArrayRoute : public Route {
 public:
  const char* library() const override { return "jax"; }
  const char* protocol() const override { return "a JAX primitive; __dlpack__ beside other libraries"; }
  bool writable() const override { return false; }  // JAX arrays are immutable
  Tracing tracing() const override { return Tracing::concrete; }
  bool own_stream() const override { return true; }

  void enter(Operand& operand) const override { enter_jax(operand.function); }
  void inspect(Operand& operand) const override {
    if (nb::cast<bool>(attribute(operand.object, kIsDeleted)())) {
      throw BufferError(operand.label() + ": the JAX array has been deleted or donated; pass a live one");
    }
    operand.read_only = true;
    operand.tensor.device = dlpack_device(operand);
    if (!operand.on_host() && cuda::own_stream_is_captured()) {
      throw ValueError(operand.label() + " is a JAX array, and JAX takes no part in interop.graph; accepted: a call " +
                       "outside the block, or an array of another library");
    }
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
    return jax_array(Route::hand_over(made, stream), true);
  }
};

class JaxTracerRoute final : public JaxArrayRoute {
 public:
  const char* protocol() const override { return "none (a tracer)"; }
  Tracing tracing() const override { return Tracing::tracer; }
  void inspect(Operand& operand) const override {
    throw TypeError(operand.label() + " is a JAX tracer (" + type_text(operand.object) +
                    "), which has no memory yet; inside jit every array of the call must be JAX's, and " +
                    "of compiled modules only functions of <interop/function.h> can be called there");
  }
};

}  // namespace

nb::object jax_array(nb::handle array, bool is_result) {
  enter_jax("interop");
  return kJaxArray.get()(array, is_result);
}

WithinXla::WithinXla() { ++within_xla; }
WithinXla::~WithinXla() { --within_xla; }

void enter_jax(const char* function) {
  if (within_xla > 0) {
    throw std::runtime_error(std::string(function) +
                             ": an array of JAX is used in a function that XLA calls, and JAX may wait for XLA; " +
                             "accepted: its arguments, and other libraries' arrays");
  }
  enter_foreign(function, "JAX");
}

const Route& jax_array_route() {
  static const JaxArrayRoute route;
  return route;
}

const Route& jax_tracer_route() {
  static const JaxTracerRoute route;
  return route;
}

}  // namespace interop::exchange
