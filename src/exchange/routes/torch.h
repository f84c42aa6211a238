/// What the two ways to torch's memory share: all checks, and allocation under torch's own guard.
#pragma once

#include "exchange/routes/dlpack.h"

namespace interop::exchange {

class TorchRoute : public Route {
 public:
  const char* library() const override { return "torch"; }
  bool is_torch() const override { return true; }
  void enter(Operand& operand) const override;
  void inspect(Operand& operand) const override;
  Made empty(const Shape& shape, DLDataType dtype, DLDevice device, cudaStream_t stream, bool foreign) const override;
  std::string allocator() const override;
  nb::object hand_over(nb::object made, cudaStream_t) const override { return made; }
  /// torch's own functions count writes, too: a backward pass that has saved the old values then raises an error.
  bool counts_writes() const override { return true; }
  void count_write(nb::handle tensor) const override;
  int64_t write_count(nb::handle tensor) const override;
  void check_write(const Operand& operand, nb::handle tensor) const override;
  /// Another tensor on the same storage, which shares the version counter. The tensor itself can be given another
  /// storage.
  nb::object owner(nb::handle tensor) const override;
  /// Also makes storage in host memory impossible to resize, as `Tensor.numpy` does.
  nb::object view_owner(nb::handle tensor) const override;
  void check_kept(nb::handle owner, const void* data) const override;

 protected:
  /// Fills the operand from `operand.memory()`, which has no gradient, tangent or negation to lose; conjugation is
  /// still to be resolved.
  virtual void read(Operand& operand) const = 0;

  /// Lets torch compute the plain values of a lazy view, on its own stream.
  static void resolve(Operand& operand, const Lookup& function);
  /// The same for a lazily conjugated view. Returns whether the tensor was one.
  static bool resolve_conjugation(Operand& operand);
  /// For a tensor with elements but a null pointer: resolves lazy zeros, and refuses the rest.
  static void check_memory(Operand& operand);
  /// torch exports its integers of 1 to 7 bits as if they were whole bytes, of the dtype `exported`: TypeError.
  static void check_bytes(const Operand& operand, DLDataType exported);
  /// The Python error that is set, from torch, in words that name the argument.
  [[noreturn]] static void refuse(const Operand& operand);
};

/// What torch does to the calls of this thread now, beyond the memory of tensors.
struct TorchState {
  bool in_mode = false;       ///< a dispatch mode is active: FakeTensorMode, FlopCounterMode
  bool in_trace = false;      ///< `torch.jit.trace`
  bool in_transform = false;  ///< torch.func: vmap, grad, jvp; what it wraps looks like any other tensor
  bool has_tangents = false;  ///< forward mode is active
};
/// Enters torch, for the function of that name.
TorchState torch_state(const char* function);
/// Is a derivative to be recorded for the tensor, of torch's exact type?
bool records_gradient(nb::handle tensor);
/// Has the tensor, of torch's exact type, a tangent? Asked where `has_tangents`.
bool has_tangent(nb::handle tensor);

/// Is the tensor, of torch's exact type, in host memory; or on a GPU of CUDA's?
bool is_on_host(nb::handle tensor);
bool is_on_cuda(nb::handle tensor);

/// Is it a tensor of torch's exact type, in C order, with no negation or conjugation that is only noted, and no batch
/// of `is_grads_batched=True`?
bool is_compact(nb::handle tensor);

/// The plain tensor in what torch has made inside a transform of torch.func (grad, vmap), which wraps new tensors.
nb::object unwrapped(nb::object tensor);

/// torch before 2.10.
const Route& torch_dlpack_route();

}  // namespace interop::exchange
