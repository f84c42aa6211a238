/// The layouts of a call's pass over its arrays, and whether its result goes through a temporary.
#include "bindings/elementwise/pass.h"

#include "exchange/overlap.h"

namespace interop::bindings {

Temporary::Temporary(const DLTensor& out, void* memory)
    : tensor_{memory, {kDLCUDA, 0}, out.ndim, out.dtype, out.shape, strides_, 0} {
  compact_strides(out.shape, out.ndim, strides_);
}

void DevicePass::plan(const Call& call, const int* places, int count, const DLTensor& out) {
  places_ = places;
  count_ = count;
  out_ = &out;
  set_arrays(call, out);
  needs_temporary_ = call.has_out() && !call.staged() && overlaps(call);
}

void DevicePass::set_arrays(const Call& call, const DLTensor& out) {
  DLTensor inputs[kMaxInputs];
  for (int k = 0; k < count_; ++k) inputs[k] = places_[k] < 0 ? ops::kValueInput : call.tensor(places_[k]);
  ops::plan_pass(work, out, inputs, count_);
}

// Apart from `run`, where a library may call interop as it makes the temporary: a pass takes 10 KB of the stack.
void DevicePass::copy_out(const DLTensor& from, cudaStream_t stream) const {
  Elementwise copy;
  ops::plan_pass(copy, *out_, &from, 1);
  cuda::launch_elementwise(ElementwiseStep{ElementwiseOp::copy, out_->dtype}, copy, stream);
}

/// Would writing `out` change an element of an input before it is read?
bool DevicePass::overlaps(const Call& call) const {
  for (int k = 0; k < count_; ++k) {
    if (places_[k] < 0 || ops::is_in_place(work, k)) continue;
    if (exchange::share_memory(call.tensor(places_[k]), *out_)) return true;
  }
  return false;
}

size_t DevicePass::workspace_bytes() const {
  if (!needs_temporary_) return 0;
  return static_cast<size_t>(element_count(*out_) * item_bytes(out_->dtype));
}

std::string DevicePass::with_copy(const std::string& algorithm) const {
  return needs_temporary_ ? algorithm + ", into a temporary that is copied to out, which overlaps an operand"
                          : algorithm;
}

}  // namespace interop::bindings
