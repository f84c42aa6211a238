/// PyTorch tensors: the checks of every version, and the way by the DLPack C exchange API (torch 2.10 and later).
///
/// That API hands over raw memory and skips every check that `Tensor.__dlpack__` makes in Python, so they are made
/// here: exact type, gradients, lazily negated or conjugated views, dispatch modes, traces, forward-mode duals, real
/// memory. What a plain pointer cannot express is an error that says so, never a silently detached value.
#include "exchange/routes/torch.h"

#include <interop/cuda/driver.h>

#include "exchange/closing.h"
#include "exchange/routes/exchange_api.h"
#include "exchange/routes/torch_empty.h"
#include "exchange/routes/torch_notes.h"
#include "exchange/stream.h"

namespace interop::exchange {
namespace {

const Fact kDtype("torch", "Tensor", "dtype");
const Lookup kInt8("torch", "int8");
const Fact kIsZeroTensor("torch", "Tensor", "_is_zerotensor");
const Name kCurrentLevel("_current_level");
const Lookup kTensor("torch", "Tensor");
const Lookup kIsGradEnabled("torch", "is_grad_enabled");
const Lookup kResolveNeg("torch", "resolve_neg");
const Lookup kResolveConj("torch", "resolve_conj");
const Lookup kClone("torch", "clone");
const Lookup kIsWrapped("torch", "_C._functorch.is_functorch_wrapped_tensor");
const Lookup kForwardAd("torch.autograd.forward_ad", "__dict__");
const Lookup kUnpackDual("torch.autograd.forward_ad", "unpack_dual");
const Lookup kStreamGuard("torch.cuda", "stream");
const Lookup kExternalStream("torch.cuda", "ExternalStream");
const Lookup kDefaultStream("torch.cuda", "default_stream");
const Lookup kIsInferenceMode("torch", "is_inference_mode_enabled");
const Lookup kUnwrapped("torch", "_C._functorch.get_unwrapped");
const Lookup kEmpty("torch", "empty");
const Lookup kUint8("torch", "uint8");
const Fact kVersion("torch", "Tensor", "_version");
const Fact kStorage("torch", "Tensor", "untyped_storage");
const Fact kDetach("torch", "Tensor", "detach");
const Fact kDataPtr("torch", "Tensor", "data_ptr");
const Fact kIsCpu("torch", "Tensor", "is_cpu");
const Fact kIsCuda("torch", "Tensor", "is_cuda");
const Name kNumpy("numpy");
const Name kIsContiguous("is_contiguous");
const Lookup kIsBatched("torch", "_C._functorch.is_legacy_batchedtensor");

const char* const kNoBuffer = " has no memory of its own to work on";

// Found before the route is given to anybody. It is not found in a static's initialiser: the lock of that would be held
// across calls of Python, and a thread that holds the GIL would wait for it for ever.
const DLPackExchangeAPI* found_api = nullptr;

const DLPackExchangeAPI* find_api() {
  const DLPackExchangeAPI* table = find_exchange_api(kTensor.get());
  return table && table->dltensor_from_py_object_no_sync ? table : nullptr;
}
const DLPackExchangeAPI& api() { return *found_api; }

bool is_true(nb::handle value) { return value.is(Py_True); }
nb::object call0(nb::handle function) {
  PyObject* result = PyObject_CallNoArgs(function.ptr());
  if (!result) nb::raise_python_error();
  return nb::steal(result);
}

void check_gradient(const Operand& operand) {
  if (records_gradient(operand.object)) {
    throw BufferError(operand.label() + " requires grad, and interop has no derivative to record; pass " +
                      operand.name + ".detach(), or call under torch.no_grad()");
  }
}

bool in_forward_ad() {
  PyObject* level = PyDict_GetItemWithError(kForwardAd.get().ptr(), kCurrentLevel.get());
  return level && to_int64(level) >= 0;
}

void check_tangent(const Operand& operand) {
  if (has_tangent(operand.object)) {
    throw TypeError(operand.label() +
                    " carries a forward-mode tangent, and interop has no derivative to record; pass "
                    "torch.autograd.forward_ad.unpack_dual(x).primal");
  }
}

/// Forbids that the storage of a tensor in host memory is resized, by what torch has for that: a NumPy view of it.
void fix_storage(nb::handle tensor) {
  if (PyObject* seen = PyObject_CallMethodNoArgs(tensor.ptr(), kNumpy.get())) return Py_DECREF(seen);
  PyErr_Clear();  // no dtype of NumPy's: the bytes of the storage
  const nb::object bytes = kEmpty.get()(0, nb::arg("dtype") = kUint8.get(), nb::arg("device") = "cpu");
  bytes.attr("set_")(tensor.attr("untyped_storage")());
  bytes.attr("numpy")();
}

/// torch 2.10 and later: by the table on the type.
class TorchExchangeRoute final : public TorchRoute {
 public:
  const char* protocol() const override { return "__dlpack_c_exchange_api__"; }

  bool current_stream(int device, cudaStream_t* stream) const override {
    void* current = nullptr;
    if (api().current_work_stream(kDLCUDA, device, &current) != 0) nb::raise_python_error();
    *stream = stream_from_handle(static_cast<int64_t>(reinterpret_cast<uintptr_t>(current)));
    return true;
  }

 private:
  void read(Operand& operand) const override {
    DLTensor view;
    read_view(operand, &view);
    if (view.dtype.code == kDLComplex) {
      if (operand.takes_conjugated) {
        operand.conjugated = is_conjugated(operand.memory());
      } else if (resolve_conjugation(operand)) {
        read_view(operand, &view);
      }
    }
    check_bytes(operand, view.dtype);
    if (!view.data && element_count(view) > 0) {
      check_memory(operand);
      read_view(operand, &view);
    }
    read_dltensor(operand, view);
  }

  static void read_view(const Operand& operand, DLTensor* view) {
    const nb::handle memory = operand.memory();
    if (!view_memory(memory, view) && api().dltensor_from_py_object_no_sync(memory.ptr(), view) != 0) refuse(operand);
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

 private:
  void read(Operand&) const override {}
  bool current_stream(int, cudaStream_t*) const override { return false; }
};

}  // namespace

// Dispatch modes see operations, not pointers: inside one (FakeTensorMode, FlopCounterMode) the memory may not be
// real. Function modes (torch.set_default_device) change calls of torch's own functions, which this is not. A trace
// (torch.jit.trace) would keep the result as a constant.
void TorchRoute::enter(Operand& operand) const {
  const char* const function = operand.function;
  enter_foreign(function, "torch");
  if (operand.below_autograd) return;
  if (in_dispatch_mode()) {
    throw TypeError(std::string(function) + ": a torch dispatch mode is active, for which interop has no operator " +
                    "yet; call it outside the mode");
  }
  if (in_jit_trace()) {
    throw TypeError(std::string(function) + ": torch.jit is tracing, for which interop has no operator yet; call it " +
                    "outside the trace");
  }
  operand.may_have_tangent = in_forward_ad();
}

void TorchRoute::inspect(Operand& operand) const {
  if (!operand.below_autograd) {
    check_gradient(operand);
    if (operand.may_have_tangent) check_tangent(operand);
  }
  if (operand.is_output) check_write(operand, operand.object);
  // A view of another tensor that negates on reading, such as `z.conj().imag`: resolved by torch, on its stream.
  if (is_negated(operand.object)) resolve(operand, kResolveNeg);
  read(operand);
}

Made TorchRoute::empty(const Shape& shape, DLDataType dtype, DLDevice device, cudaStream_t stream, bool foreign) const {
  if (!foreign) return new_tensor(shape, dtype, device);
  // torch's allocator ties memory to the current stream, so the caller's stream is made current around it.
  const nb::object own = stream == cuda::kLegacyStream
                             ? kDefaultStream.get()(device.device_id)  // torch takes no handle of that one
                             : kExternalStream.get()(reinterpret_cast<uintptr_t>(stream), device.device_id);
  const Within guard(kStreamGuard.get()(own));
  return new_tensor(shape, dtype, device);
}

std::string TorchRoute::allocator() const { return std::string("torch's own, by ") + new_tensor_way(); }

void TorchRoute::count_write(nb::handle tensor) const { count_write_to(tensor); }

int64_t TorchRoute::write_count(nb::handle tensor) const {
  if (is_inference(tensor)) return -1;  // it has no count
  return to_int64(kVersion(tensor));
}

void TorchRoute::check_write(const Operand& operand, nb::handle tensor) const {
  if (!is_inference(tensor) || is_true(call0(kIsInferenceMode.get()))) return;
  throw TypeError(operand.label() + " is memory of a torch inference tensor, which torch lets nobody write to here; " +
                  "accepted: a plain tensor (x.clone()), or the call under torch.inference_mode()");
}

nb::object TorchRoute::owner(nb::handle tensor) const { return kStorage(tensor); }

nb::object TorchRoute::view_owner(nb::handle tensor) const {
  nb::object alias = kDetach(tensor);
  if (is_true(kIsWrapped.get()(alias))) return unwrapped(alias);  // and so would be what `fix_storage` makes
  if (is_true(kIsCpu(alias))) fix_storage(alias);
  return alias;
}

void TorchRoute::check_kept(nb::handle owner, const void* data) const {
  if (to_int64(kDataPtr(owner)) == static_cast<int64_t>(reinterpret_cast<uintptr_t>(data))) return;
  throw BufferError(
      "interop.Array: the storage of the torch.Tensor that it is a view of has been resized or moved; accepted: a new "
      "view, by interop.asarray");
}

void TorchRoute::resolve(Operand& operand, const Lookup& function) {
  if (operand.is_output) {
    throw TypeError(operand.label() + " is a lazily negated or conjugated view, which memory cannot be written " +
                    "through; accepted: a plain tensor");
  }
  operand.resolved = function.get()(operand.memory());
  operand.copied = "a lazily negated or conjugated tensor";
}

bool TorchRoute::resolve_conjugation(Operand& operand) {
  if (!is_conjugated(operand.object)) return false;
  resolve(operand, kResolveConj);
  return true;
}

void TorchRoute::check_memory(Operand& operand) {
  // Zeros that torch's derivatives never stored; nothing else here has a value to read.
  if (is_true(kIsZeroTensor(operand.object)) && !operand.is_output) {
    operand.resolved = kClone.get()(operand.object);
    operand.copied = "a tensor of zeros that torch never stored";
    return;
  }
  throw TypeError(operand.label() + ": this torch.Tensor" + kNoBuffer + " (a fake or functionalised tensor)");
}

void TorchRoute::check_bytes(const Operand& operand, DLDataType exported) {
  if (exported.bits != 8 || (exported.code != kDLInt && exported.code != kDLUInt)) return;
  const nb::object dtype = kDtype(operand.memory());
  if (dtype.is(kInt8.get()) || dtype.is(kUint8.get())) return;
  throw TypeError(operand.label() + " is " + text_of(dtype) +
                  "; accepted: dtypes of whole bytes (pass x.view(torch.uint8) for the bytes themselves)");
}

void TorchRoute::refuse(const Operand& operand) {
  const nb::handle object = operand.memory();
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

TorchState torch_state(const char* function) {
  enter_foreign(function, "torch");
  return {in_dispatch_mode(), in_jit_trace(), in_transform(), in_forward_ad()};
}

bool records_gradient(nb::handle tensor) { return requires_grad(tensor) && is_true(call0(kIsGradEnabled.get())); }

bool has_tangent(nb::handle tensor) {
  const nb::object tangent = nb::object(kUnpackDual.get()(tensor))[1];
  return !tangent.is_none();
}

bool is_on_host(nb::handle tensor) { return is_true(kIsCpu(tensor)); }
bool is_on_cuda(nb::handle tensor) { return is_true(kIsCuda(tensor)); }

bool is_compact(nb::handle tensor) {
  if (find_route(tensor) != &torch_route()) return false;
  bool is_complex = true;
  if (found_api) {
    DLTensor view;
    if (api().dltensor_from_py_object_no_sync(tensor.ptr(), &view) != 0) {  // it has no memory: a batch, or a wrapper
      PyErr_Clear();
      return false;
    }
    if (!view.data || !interop::is_compact(view)) return false;
    is_complex = view.dtype.code == kDLComplex;
  } else {
    const nb::object in_order = nb::steal(PyObject_CallMethodNoArgs(tensor.ptr(), kIsContiguous.get()));
    if (!in_order.is_valid()) nb::raise_python_error();
    const nb::object is_batched = nb::steal(PyObject_CallOneArg(kIsBatched.get().ptr(), tensor.ptr()));
    if (!is_batched.is_valid()) nb::raise_python_error();
    if (!is_true(in_order) || is_true(is_batched)) return false;
  }
  return !is_negated(tensor) && !(is_complex && is_conjugated(tensor));
}

nb::object unwrapped(nb::object tensor) {
  while (is_true(kIsWrapped.get()(tensor))) tensor = kUnwrapped.get()(tensor);
  return tensor;
}

const Route& torch_route() {
  static const TorchExchangeRoute route;
  if (!found_api) found_api = find_api();
  return found_api ? static_cast<const Route&>(route) : torch_dlpack_route();
}

const Route& torch_subclass_route() {
  static const TorchSubclassRoute route;
  return route;
}

}  // namespace interop::exchange
