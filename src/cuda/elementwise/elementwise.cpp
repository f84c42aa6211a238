/// Chooses the kernel for an elementwise operation, and launches it.
#include "cuda/elementwise/elementwise.h"

#include <interop/cuda/elementwise.h>
#include <interop/error.h>

#include "cuda/elementwise/grids.h"

namespace interop::cuda {
namespace {

using namespace elementwise;

Stored stored_of(DLDataType dtype) {
  const int log = dtype.bits == 8 ? 0 : dtype.bits == 16 ? 1 : dtype.bits == 32 ? 2 : 3;
  switch (dtype.code) {
    case kDLBool:
      return Stored::b8;
    case kDLInt:
      return static_cast<Stored>(static_cast<int>(Stored::i8) + log);
    case kDLUInt:
      return static_cast<Stored>(static_cast<int>(Stored::u8) + log);
    case kDLBfloat:
      return Stored::bf16;
    case kDLComplex:
      return dtype.bits == 64 ? Stored::c64 : Stored::c128;
    default:
      return log == 1 ? Stored::f16 : log == 2 ? Stored::f32 : Stored::f64;
  }
}

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

/// The kernel that runs, and the dimension that a tile has besides the last one.
struct Choice {
  Family family = Family::simple;
  bool same = false;
  int cross = -1;  // not tiled
};

Choice choose(const Elementwise& operation) {
  Choice choice;
  choice.family = family_of(operation.op, operation.dtype);
  choice.cross = operation.loop.cross_dim;
  choice.same = kernels_of(stored_of(operation.dtype)).same[static_cast<int>(choice.family)] != nullptr;
  for (int k = 0; k + 1 < operation.loop.operand_count; ++k) {
    const ElementwiseInput& input = operation.inputs[k];
    choice.same &= !input.data || input.dtype == operation.dtype;
  }
  return choice;
}

InputArgs input_args(const Grids& grids, int operand, const ElementwiseInput& input) {
  if (!input.data) {
    InputArgs args{};
    args.access = Access::value;
    args.value = input.value;
    return args;
  }
  InputArgs args;  // the rest is set for each launch, or not read
  const int64_t item = item_bytes(input.dtype);
  args.step = grids.step(operand);
  args.cross_step = grids.cross_step(operand);
  args.stored = stored_of(input.dtype);
  args.access = access_of(args.step, item);
  args.cross_access = access_of(args.cross_step, item);
  args.tiled = is_tiled(args.step, args.cross_step);
  return args;
}

/// Fills the kernel's arguments, and queues one launch after the other.
class Launcher {
 public:
  Launcher(const Elementwise& operation, cudaStream_t stream)
      : operation_(operation), choice_(choose(operation)), stream_(stream) {
    const KernelSet& set = kernels_of(stored_of(operation.dtype));
    const bool tiled = choice_.cross >= 0;
    const int family = static_cast<int>(choice_.family);
    kernel_ = tiled ? set.tiled[family] : choice_.same ? set.same[family] : set.mixed[family];
    piece_ = tiled ? set.tile : choice_.same ? set.vector : set.mixed_vector;
    unroll_ = tiled ? 0 : choice_.same ? set.unroll : 1;
  }

  void run() {
    const Loop& loop = operation_.loop;
    int64_t items[3] = {item_bytes(operation_.out_dtype)};
    char* data[3] = {static_cast<char*>(operation_.out)};
    const bool swapped = is_swapped(operation_.op);
    for (int k = 1; k < loop.operand_count; ++k) {
      slots_[k - 1] = swapped ? 2 - k : k - 1;
      items[k] = item_bytes(operation_.inputs[k - 1].dtype);
      data[k] = static_cast<char*>(const_cast<void*>(operation_.inputs[k - 1].data));
    }
    Grids grids(loop, items, data, choice_.cross, piece_);
    set_args(grids, items[0]);
    grids.each([&](const Grid& grid) { launch(grids, grid); });
  }

 private:
  void set_args(const Grids& grids, int64_t out_item) {
    const Loop& loop = operation_.loop;
    args_.out_step = loop.ndim == 0 ? out_item : grids.step(0);
    args_.out_cross_step = grids.cross_step(0);
    args_.vector_stores = grids.vector_stores();
    args_.op = static_cast<int>(kernel_op(operation_.op));
    args_.signs = 0;
    for (int k = 1; k < loop.operand_count; ++k) {
      const ElementwiseInput& input = operation_.inputs[k - 1];
      if (input.data && input.dtype.code == kDLInt) args_.signs |= 1 << slots_[k - 1];
    }
    args_.replaces_zero = operation_.replaces_zero;
    args_.where_zero = operation_.where_zero;
    if (loop.operand_count == 2) args_.inputs[1] = input_args(grids, 2, ElementwiseInput{});  // nothing
    for (int k = 1; k < loop.operand_count; ++k) {
      args_.inputs[slots_[k - 1]] = input_args(grids, k, operation_.inputs[k - 1]);
    }
  }

  void launch(const Grids& grids, const Grid& grid) {
    args_.out = grid.data[0];
    args_.length = grid.length;
    args_.cross_length = grid.cross_length;
    args_.outer_ndim = grid.outer_ndim;
    for (int d = 0; d < grid.outer_ndim; ++d) {
      args_.outer_sizes[d] = grid.outer_sizes[d];
      args_.out_outer[d] = grids.bytes_along(0, grid.outer_dims[d]);
    }
    for (int k = 1; k < operation_.loop.operand_count; ++k) {
      InputArgs& input = args_.inputs[slots_[k - 1]];
      input.data = grid.data[k];
      for (int d = 0; d < grid.outer_ndim; ++d) input.outer[d] = grids.bytes_along(k, grid.outer_dims[d]);
    }
    args_.row_pieces = grid.row_pieces;
    args_.cross_pieces = grid.cross_pieces;
    args_.count = static_cast<unsigned>(grid.count);
    void* parameters[] = {&args_};
    launch_pieces(*kernel_, grid.count, unroll_, parameters, stream_);
  }

  const Elementwise& operation_;
  const Choice choice_;
  cudaStream_t stream_;
  Kernel* kernel_ = nullptr;
  int piece_ = 1, unroll_ = 0;
  int slots_[2] = {0, 1};
  Args args_;  // 400 bytes, of which only those are set that the kernel reads
};

}  // namespace

void launch_elementwise(const Elementwise& operation, cudaStream_t stream) {
  const Loop& loop = operation.loop;
  if (loop.layout == LayoutClass::empty) return;
  check_alignment("out", operation.out, operation.out_dtype);
  for (int k = 0; k + 1 < loop.operand_count; ++k) {
    const ElementwiseInput& input = operation.inputs[k];
    if (input.data) check_alignment("an operand", input.data, input.dtype);
  }
  Launcher(operation, stream).run();
}

std::string describe(const Elementwise& operation) {
  const LayoutClass layout = operation.loop.layout;
  if (layout == LayoutClass::empty) return "nothing to compute";
  const Choice choice = choose(operation);
  const KernelSet& set = kernels_of(stored_of(operation.dtype));
  const std::string dtype = ", " + dtype_name(operation.dtype);
  if (choice.cross >= 0) {
    return "transposed, tiles of " + std::to_string(set.tile) + " x " + std::to_string(set.tile) + dtype;
  }
  const char* name = layout == LayoutClass::contiguous ? "contiguous"
                     : layout == LayoutClass::rows     ? "rows"
                                                       : "strided";
  return std::string(name) + ", vectors of " + std::to_string(choice.same ? set.vector : set.mixed_vector) + dtype;
}

}  // namespace interop::cuda
