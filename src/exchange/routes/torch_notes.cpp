/// What torch notes of a tensor and of the thread: by its C++ functions, or by Python.
#include "exchange/routes/torch_notes.h"

#include <atomic>
#include <exception>
#include <memory>

#include "exchange/routes/torch_symbols.h"

namespace interop::exchange {
namespace {

constexpr const char* kSwitch = "INTEROP_TORCH_NOTES";

const Fact kRequiresGrad("torch", "Tensor", "requires_grad");
const Fact kIsNeg("torch", "Tensor", "is_neg");
const Fact kIsConj("torch", "Tensor", "is_conj");
const Fact kIsInference("torch", "Tensor", "is_inference");
const Fact kVersion("torch", "Tensor", "_version");
const Fact kImplementation("torch", "Tensor", "_cdata");
const Lookup kTensor("torch", "Tensor");
const Lookup kDispatchModes("torch", "_C._len_torch_dispatch_stack");
const Lookup kIsTracing("torch", "_C._is_tracing");
const Lookup kInTransform("torch", "_C._are_functorch_transforms_active");
const Lookup kFrontMode("torch", "_C.DispatchKey.FuncTorchDynamicLayerFrontMode");
const Lookup kBackMode("torch", "_C.DispatchKey.FuncTorchDynamicLayerBackMode");
const Lookup kCountWrites("torch", "_C._increment_version");
const Lookup kCountWrite("torch.autograd.graph", "increment_version");

bool is_true(nb::handle value) { return value.is(Py_True); }
nb::object call0(nb::handle function) {
  PyObject* result = PyObject_CallNoArgs(function.ptr());
  if (!result) nb::raise_python_error();
  return nb::steal(result);
}

// ---- torch's C++ functions ----

using Tensor = const struct OpaqueTensor;              // an at::Tensor, which is one pointer
using Implementation = const struct OpaqueTensorImpl;  // what it points to

/// None of them asks Python or gives up the GIL; and but for `view` none throws. (`bump_version` does for inference
/// tensors.)
struct Functions {
  bool (*is_neg)(Tensor*);                 // at::native::is_neg(const Tensor&)
  bool (*is_conj)(Tensor*);                // at::native::is_conj(const Tensor&)
  bool (*is_inference)(Tensor*);           // at::native::is_inference(const Tensor&)
  bool (*requires_grad)(Implementation*);  // c10::TensorImpl::requires_grad() const
  void (*bump_version)(Tensor*);           // torch::autograd::impl::bump_version(const Variable&)
  int64_t (*mode_count)();                 // c10::impl::TorchDispatchModeTLS::stack_len()
  void* const* (*trace)();                 // torch::jit::tracer::getTracingState(): the address of a shared_ptr
  bool (*is_included)(uint16_t);           // c10::impl::tls_is_dispatch_key_included(DispatchKey)
  void (*view)(Tensor*, DLTensor*);        // at::toDLPackNonOwning(const Tensor&, DLTensor*), which throws; or null
};

bool find_functions(Functions& functions) {
  const TorchLibrary cpu("libtorch_cpu.so"), c10("libc10.so");
  cpu.find(functions.view, "_ZN2at17toDLPackNonOwningERKNS_6TensorEP8DLTensor");  // of 2.14 it is another
  return cpu.find(functions.is_neg, "_ZN2at6native6is_negERKNS_6TensorE") &&
         cpu.find(functions.is_conj, "_ZN2at6native7is_conjERKNS_6TensorE") &&
         cpu.find(functions.is_inference, "_ZN2at6native12is_inferenceERKNS_6TensorE") &&
         c10.find(functions.requires_grad, "_ZNK3c1010TensorImpl13requires_gradEv") &&
         cpu.find(functions.bump_version, "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE") &&
         c10.find(functions.is_included, "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE") &&
         c10.find(functions.mode_count, "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv") &&
         cpu.find(functions.trace, "_ZN5torch3jit6tracer15getTracingStateEv");
}

/// The `at::Tensor` of an object: the first member of torch's struct, as is checked once.
Tensor* tensor_in(nb::handle object) { return reinterpret_cast<Tensor*>(object.ptr() + 1); }
Implementation* implementation_of(Tensor* tensor) { return *reinterpret_cast<Implementation* const*>(tensor); }

bool has_known_layout(nb::handle object) {
  const auto* type = reinterpret_cast<PyTypeObject*>(kTensor.get().ptr());
  if (type->tp_basicsize < static_cast<Py_ssize_t>(sizeof(PyObject) + sizeof(void*))) return false;
  const nb::object address = kImplementation(object);
  if (!PyLong_Check(address.ptr())) return false;
  void* const found = PyLong_AsVoidPtr(address.ptr());
  PyErr_Clear();
  return found && found == implementation_of(tensor_in(object));
}

// ---- which way ----

struct Way {
  Functions functions{};
  bool has_functions = false;
  bool is_asked = false;                   // with 'shim', which takes no other
  uint16_t front_mode = 0, back_mode = 0;  // the dispatch keys of torch.func's transforms: each version has its numbers
  /// Of the objects, once one has been seen.
  mutable std::atomic<int> layout{kUnseen};
  static constexpr int kUnseen = 0, kKnown = 1, kOther = 2;
};

void choose(Way& way) {
  const TorchVersion version = torch_version();
  const std::string asked = torch_choice(kSwitch);
  if (asked == "python") return;
  way.has_functions = is_tested(version) && find_functions(way.functions);
  way.is_asked = asked == "shim";
  if (!way.has_functions && way.is_asked) refuse_choice(kSwitch, version);
  if (!way.has_functions) return;
  way.front_mode = nb::cast<uint16_t>(nb::int_(kFrontMode.get()));
  way.back_mode = nb::cast<uint16_t>(nb::int_(kBackMode.get()));
}

/// Decided once, but not by a static's initialiser: a thread that waits for that would keep the GIL.
const Way& way() {
  static std::atomic<const Way*> chosen{nullptr};
  const Way* known = chosen.load(std::memory_order_acquire);
  if (known) return *known;
  auto made = std::make_unique<Way>();
  choose(*made);
  return chosen.compare_exchange_strong(known, made.get()) ? *made.release() : *known;
}

/// torch's functions of a tensor; null where Python is asked.
const Functions* functions(nb::handle tensor) {
  const Way& chosen = way();
  if (!chosen.has_functions) return nullptr;
  int layout = chosen.layout.load(std::memory_order_relaxed);
  if (layout == Way::kUnseen) {
    layout = has_known_layout(tensor) ? Way::kKnown : Way::kOther;
    if (layout == Way::kOther && chosen.is_asked) refuse_choice(kSwitch, torch_version());
    chosen.layout.store(layout, std::memory_order_relaxed);
  }
  return layout == Way::kKnown ? &chosen.functions : nullptr;
}

}  // namespace

bool requires_grad(nb::handle tensor) {
  if (const Functions* f = functions(tensor)) return f->requires_grad(implementation_of(tensor_in(tensor)));
  return is_true(kRequiresGrad(tensor));
}

bool is_negated(nb::handle tensor) {
  if (const Functions* f = functions(tensor)) return f->is_neg(tensor_in(tensor));
  return is_true(kIsNeg(tensor));
}

bool is_conjugated(nb::handle tensor) {
  if (const Functions* f = functions(tensor)) return f->is_conj(tensor_in(tensor));
  return is_true(kIsConj(tensor));
}

bool is_inference(nb::handle tensor) {
  if (const Functions* f = functions(tensor)) return f->is_inference(tensor_in(tensor));
  try {  // quicker than the question itself: what has a version is no inference tensor
    kVersion(tensor);
    return false;
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_RuntimeError)) throw;
  }
  return is_true(kIsInference(tensor));
}

void count_write_to(nb::handle tensor) {
  const Functions* const f = functions(tensor);
  if (f && !f->is_inference(tensor_in(tensor))) return f->bump_version(tensor_in(tensor));
  // What the public function calls, from torch 2.6 on.
  if (PyObject* counted = PyObject_CallOneArg(kCountWrites.get().ptr(), nb::make_tuple(tensor).ptr())) {
    return Py_DECREF(counted);
  }
  if (!PyErr_ExceptionMatches(PyExc_TypeError)) nb::raise_python_error();
  PyErr_Clear();
  kCountWrite.get()(tensor);
}

bool view_memory(nb::handle tensor, DLTensor* view) {
  const Functions* const f = functions(tensor);
  if (!f || !f->view) return false;
  try {
    f->view(tensor_in(tensor), view);
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

bool in_dispatch_mode() {
  const Way& chosen = way();
  if (chosen.has_functions) return chosen.functions.mode_count() != 0;
  return to_int64(call0(kDispatchModes.get())) != 0;
}

bool in_jit_trace() {
  const Way& chosen = way();
  if (chosen.has_functions) return *chosen.functions.trace() != nullptr;
  return is_true(call0(kIsTracing.get()));
}

bool in_transform() {
  const Way& chosen = way();
  if (!chosen.has_functions) return is_true(call0(kInTransform.get()));
  return chosen.functions.is_included(chosen.front_mode) || chosen.functions.is_included(chosen.back_mode);
}

}  // namespace interop::exchange
