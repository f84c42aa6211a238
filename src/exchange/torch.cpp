/// PyTorch tensors, by the DLPack C exchange API (torch 2.10 and later).
///
/// That API hands over raw memory and skips every check that `Tensor.__dlpack__` makes in Python, so they are made
/// here: exact type, gradients, lazily negated or conjugated views, dispatch modes, forward-mode duals, real memory.
/// What a plain pointer cannot express is an error that says so, never a silently detached value.
#include <interop/cuda/driver.h>

#include "exchange/dlpack.h"
#include "exchange/exchange_api.h"
#include "exchange/stream.h"

namespace interop::exchange {
namespace {

const Name kRequiresGrad("requires_grad");
const Name kIsNeg("is_neg");
const Name kIsConj("is_conj");
const Name kCurrentLevel("_current_level");
const Lookup kTensor("torch", "Tensor");
const Lookup kIsGradEnabled("torch", "is_grad_enabled");
const Lookup kResolveNeg("torch", "resolve_neg");
const Lookup kResolveConj("torch", "resolve_conj");
const Lookup kDispatchModes("torch", "_C._len_torch_dispatch_stack");
const Lookup kIsWrapped("torch", "_C._functorch.is_functorch_wrapped_tensor");
const Lookup kForwardAd("torch.autograd.forward_ad", "__dict__");
const Lookup kUnpackDual("torch.autograd.forward_ad", "unpack_dual");
const Lookup kStreamGuard("torch.cuda", "stream");
const Lookup kExternalStream("torch.cuda", "ExternalStream");
const Lookup kDefaultStream("torch.cuda", "default_stream");
const Lookup kTorchVersion("torch", "__version__");

const char* const kNoBuffer = " has no memory of its own to work on";

const DLPackExchangeAPI& api() {
  static const DLPackExchangeAPI* const found = find_exchange_api(kTensor.get());
  if (!found || !found->dltensor_from_py_object_no_sync) {
    throw TypeError("interop: torch " + text_of(kTorchVersion.get()) +
                    " has no DLPack C exchange API; accepted: torch 2.10 or later");
  }
  return *found;
}

bool is_true(nb::handle value) { return value.is(Py_True); }
nb::object call0(nb::handle function) {
  PyObject* result = PyObject_CallNoArgs(function.ptr());
  if (!result) nb::raise_python_error();
  return nb::steal(result);
}
nb::object method0(nb::handle object, const Name& name) {
  PyObject* result = PyObject_CallMethodNoArgs(object.ptr(), name.get());
  if (!result) nb::raise_python_error();
  return nb::steal(result);
}

void check_gradient(const Operand& operand) {
  if (is_true(attribute(operand.object, kRequiresGrad)) && is_true(call0(kIsGradEnabled.get()))) {
    throw BufferError(operand.label() + " requires grad, and interop has no derivative to record; pass " +
                      operand.name + ".detach(), or call under torch.no_grad()");
  }
}

bool in_forward_ad() {
  PyObject* level = PyDict_GetItem(kForwardAd.get().ptr(), kCurrentLevel.get());
  return level && to_int64(level) >= 0;
}

void check_tangent(const Operand& operand) {
  const nb::object tangent = nb::object(kUnpackDual.get()(operand.object))[1];
  if (!tangent.is_none()) {
    throw TypeError(operand.label() +
                    " carries a forward-mode tangent, and interop has no derivative to record; pass "
                    "torch.autograd.forward_ad.unpack_dual(x).primal");
  }
}

class TorchRoute : public Route {
 public:
  const char* library() const override { return "torch"; }
  const char* protocol() const override { return "__dlpack_c_exchange_api__"; }

  // Dispatch modes see operations, not pointers: inside one (FakeTensorMode, FlopCounterMode) the memory may not be
  // real. Function modes (torch.set_default_device) change calls of torch's own functions, which this is not.
  void enter(const char* function) const override {
    if (to_int64(call0(kDispatchModes.get())) != 0) {
      throw TypeError(std::string(function) + ": a torch dispatch mode is active, for which interop has no operator " +
                      "yet; call it outside the mode");
    }
  }

  void inspect(Operand& operand) const override {
    check_gradient(operand);
    if (in_forward_ad()) check_tangent(operand);
    // A view of another tensor that negates on reading, such as `z.conj().imag`: resolved by torch, on its stream.
    if (is_true(method0(operand.object, kIsNeg))) resolve(operand, kResolveNeg);
    DLTensor view;
    read_view(operand, &view);
    if (view.dtype.code == kDLComplex && is_true(method0(operand.object, kIsConj))) {
      resolve(operand, kResolveConj);
      read_view(operand, &view);
    }
    if (!view.data && element_count(view) > 0) {
      throw TypeError(operand.label() + ": this torch.Tensor" + kNoBuffer + " (a fake or functionalised tensor)");
    }
    read_dltensor(operand, view);
  }

  bool current_stream(int device, cudaStream_t* stream) const override {
    *stream = current_work_stream(api(), device);
    return true;
  }

  Made empty(const Shape& shape, DLDataType dtype, DLDevice device, cudaStream_t stream, bool foreign) const override {
    if (!foreign) return allocate(api(), shape, dtype, device);
    // torch's allocator ties memory to the current stream, so the caller's stream is made current around it.
    const nb::object own = stream == cuda::kLegacyStream
                               ? kDefaultStream.get()(device.device_id)  // torch takes no handle of that one
                               : kExternalStream.get()(reinterpret_cast<uintptr_t>(stream), device.device_id);
    const nb::object guard = kStreamGuard.get()(own);
    guard.attr("__enter__")();
    Made made;
    try {
      made = allocate(api(), shape, dtype, device);
    } catch (...) {
      guard.attr("__exit__")(nb::none(), nb::none(), nb::none());
      throw;
    }
    guard.attr("__exit__")(nb::none(), nb::none(), nb::none());
    return made;
  }
  nb::object hand_over(nb::object made, cudaStream_t) const override { return made; }

 private:
  static void resolve(Operand& operand, const Lookup& function) {
    if (operand.is_output) {
      throw TypeError(operand.label() + " is a lazily negated or conjugated view, which memory cannot be written " +
                      "through; accepted: a plain tensor");
    }
    operand.resolved = function.get()(operand.memory());
    operand.copied = "a lazily negated or conjugated tensor";
  }

  static void read_view(const Operand& operand, DLTensor* view) {
    const nb::handle object = operand.memory();
    if (api().dltensor_from_py_object_no_sync(object.ptr(), view) == 0) return;
    nb::python_error error;  // torch's
    if (is_true(kIsWrapped.get()(object))) {
      throw TypeError(operand.label() + ": this torch.Tensor" + kNoBuffer +
                      " (it is a wrapper of torch.func: vmap, grad, jvp), and interop has no operator for it yet");
    }
    error.restore();
    // Sparse, meta, quantised and nested tensors: torch's own words.
    throw BufferError(operand.label() + ": this torch.Tensor (layout " + text_of(object.attr("layout")) + ", device " +
                      text_of(object.attr("device")) + ")" + kNoBuffer + ": " + take_error_text());
  }
};

/// Subclasses mean something more than their memory (`__torch_function__`), which a pointer would lose.
class TorchSubclassRoute final : public TorchRoute {
 public:
  const char* protocol() const override { return "none (a subclass of torch.Tensor)"; }
  void inspect(Operand& operand) const override {
    throw TypeError(operand.label() + " is " + type_text(operand.object) +
                    ", a subclass of torch.Tensor; accepted: torch.Tensor and torch.nn.Parameter (pass x.as_subclass("
                    "torch.Tensor) if its meaning may be dropped)");
  }
};

}  // namespace

const Route& torch_route() {
  static const TorchRoute route;
  return route;
}

const Route& torch_subclass_route() {
  static const TorchSubclassRoute route;
  return route;
}

}  // namespace interop::exchange
