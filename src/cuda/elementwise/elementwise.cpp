/// Chooses the kernel of a pass, among those that are built with the package, or the shape of one to be compiled.
#include "cuda/elementwise/elementwise.h"

#include <interop/cuda/elementwise.h>

#include <algorithm>

#include "cuda/elementwise/grids.h"
#include "cuda/elementwise/launcher.h"

namespace interop::cuda {
namespace {

using namespace elementwise;

int input_count(const Elementwise& work) { return work.loop.operand_count - 1; }

/// Does the walk along one dimension serve? Each array is compact. Where one does not lie as vectors of so many
/// elements may, it is read as quickly element by element, unless these are small.
bool is_flat(const Elementwise& work, int vector) {
  const Loop& loop = work.loop;
  if (loop.layout != LayoutClass::contiguous) return false;
  bool flat = true, aligned = true, small = false;
  const auto add = [&](const void* data, DLDataType dtype) {
    const int64_t item = item_bytes(dtype);
    aligned &= reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(vector_alignment(vector, item)) == 0;
    small |= item < 4;
  };
  add(work.out, work.out_dtype);
  for (int k = 0; k < input_count(work); ++k) {
    const Elementwise::Input& input = work.inputs[k];
    if (!input.data) continue;
    add(input.data, input.dtype);
    flat &= loop.ndim == 0 || loop.strides[k + 1][0] == 1;
  }
  return flat && (aligned || !small);
}

// ---- kernels that are built with the package ----

const KernelSet& kernels_of(Stored dtype) {
  switch (dtype) {
    case Stored::b8:
    case Stored::i8:
    case Stored::i16:
    case Stored::u8:
    case Stored::u16:
      return small_integer_kernels(dtype);
    case Stored::i32:
    case Stored::i64:
    case Stored::u32:
    case Stored::u64:
      return integer_kernels(dtype);
    case Stored::c64:
    case Stored::c128:
      return complex_kernels(dtype);
    default:
      return float_kernels(dtype);
  }
}

/// Are the operands exchanged?
bool is_swapped(ElementwiseOp op) { return kFamilyOf[static_cast<int>(op)] == Family::swapped; }

Family family_of(ElementwiseOp op, DLDataType dtype) {
  if (is_swapped(op)) return Family::comparisons;
  if (op == ElementwiseOp::abs && dtype.code == kDLComplex) return Family::parts;
  return kFamilyOf[static_cast<int>(op)];
}

ElementwiseOp kernel_op(ElementwiseOp op) {
  if (op == ElementwiseOp::greater) return ElementwiseOp::less;
  return op == ElementwiseOp::greater_equal ? ElementwiseOp::less_equal : op;
}

/// A kernel for a step, and its shape.
struct Built {
  PassShape shape;
  Kernel* kernel;
};

Built find_built(const ElementwiseStep& step, const Elementwise& work) {
  const KernelSet& set = kernels_of(stored_of(step.dtype));
  const int family = static_cast<int>(family_of(step.op, step.dtype));
  if (work.loop.cross_dim >= 0) return {{Walk::tiles, set.tile, set.vector, 0}, set.tiled[family]};
  bool is_same = true;
  for (int k = 0; k < input_count(work); ++k) {
    is_same &= !work.inputs[k].data || work.inputs[k].dtype == step.dtype;
  }
  if (is_same && set.flat[family] && is_flat(work, set.vector)) {
    return {{Walk::flat, 0, set.vector, 1}, set.flat[family]};
  }
  if (is_same && set.same[family]) return {{Walk::rows, 0, set.vector, set.unroll}, set.same[family]};
  return {{Walk::rows, 0, set.mixed_vector, 1}, set.mixed[family]};
}

StepArgs step_args(const ElementwiseStep& step, const Elementwise& work) {
  StepArgs args{static_cast<int>(kernel_op(step.op)), 0, step.replaces_zero};
  for (int k = 0; k < input_count(work); ++k) {
    const int slot = is_swapped(step.op) ? 1 - k : k;
    if (work.inputs[k].data && work.inputs[k].dtype.code == kDLInt) args.signs |= 1 << slot;
  }
  return args;
}

// ---- kernels that are compiled at run time ----

int64_t widest_item(const Elementwise& work) {
  int64_t widest = item_bytes(work.out_dtype);
  for (int k = 0; k < input_count(work); ++k) widest = std::max(widest, item_bytes(work.inputs[k].dtype));
  return widest;
}

}  // namespace

void launch_elementwise(const ElementwiseStep& step, const Elementwise& work, cudaStream_t stream) {
  if (is_empty(work)) return;
  const Built built = find_built(step, work);
  const StepArgs args = step_args(step, work);
  launch(work, {built.shape, *built.kernel, &args, is_swapped(step.op)}, stream);
}

std::string describe(const ElementwiseStep& step, const Elementwise& work) {
  if (is_empty(work)) return "nothing to compute";
  return elementwise::describe(work, find_built(step, work).shape) + ", " + dtype_name(step.dtype);
}

PassShape compiled_shape(const Elementwise& work) {
  const int64_t item = widest_item(work);
  const int count = input_count(work);
  // Registers limit what a thread has in flight: an element of each input, times these.
  const int vector = static_cast<int>(std::max<int64_t>(kVectorBytes / item, 1));
  const bool is_small = item <= 4 && count * item <= 12;
  if (work.loop.cross_dim >= 0) return {Walk::tiles, is_small ? 64 : 32, std::min(vector, 4), 0};
  if (is_flat(work, vector)) return {Walk::flat, 0, vector, 1};
  return {Walk::rows, 0, vector, item > 2 && count <= 4 ? 2 : 1};
}

void launch_elementwise(const CompiledPass& compiled, const Elementwise& work, cudaStream_t stream) {
  if (!is_empty(work)) launch(work, {compiled.shape, *compiled.kernel}, stream);
}

std::string describe(const Elementwise& work) {
  return is_empty(work) ? "nothing to compute" : elementwise::describe(work, compiled_shape(work));
}

}  // namespace interop::cuda
