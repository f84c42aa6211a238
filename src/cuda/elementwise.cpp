/// Which kernel an elementwise operation gets, and its launch.
#include "cuda/elementwise.h"

#include <interop/cuda/elementwise.h>
#include <interop/error.h>

#include <algorithm>
#include <cstring>

namespace interop::cuda {
namespace {

using namespace elementwise;

constexpr int64_t kMostPieces = (int64_t{1} << 31) - 1;  // that a Divisor is exact for

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

Family family_of(ElementwiseOp op, DLDataType dtype) {
  if (op >= ElementwiseOp::equal) return Family::comparisons;
  if (op >= ElementwiseOp::floor_divide) return Family::divisions;
  return op == ElementwiseOp::abs && dtype.code == kDLComplex ? Family::parts : Family::simple;
}

/// a > b is b < a.
bool is_swapped(ElementwiseOp op) { return op == ElementwiseOp::greater || op == ElementwiseOp::greater_equal; }

ElementwiseOp kernel_op(ElementwiseOp op) {
  if (op == ElementwiseOp::greater) return ElementwiseOp::less;
  return op == ElementwiseOp::greater_equal ? ElementwiseOp::less_equal : op;
}

/// Which kernel runs, and over which dimension a tile stretches beside the last.
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

/// A GPU cannot read an element that is not aligned to its size, and a kernel that tries breaks the context. Both parts
/// of a complex number are read at once.
void check_alignment(const char* name, const void* pointer, DLDataType dtype) {
  const int64_t item = item_bytes(dtype);
  if (reinterpret_cast<uintptr_t>(pointer) % item == 0) return;
  throw ValueError(std::string("interop: ") + name + " starts at an address that is not a multiple of " +
                   std::to_string(item) + " bytes, which the GPU cannot read as " + dtype_name(dtype) +
                   "; copy it first");
}

Divisor divisor_of(int64_t value) {
  Divisor divisor{static_cast<unsigned>(value), 0, 0};
  while ((int64_t{1} << divisor.shift) < value) ++divisor.shift;
  const uint64_t power = uint64_t{1} << divisor.shift;
  divisor.multiplier = static_cast<unsigned>(((power - divisor.value) << 32) / divisor.value + 1);
  return divisor;
}

int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

/// The dimensions of a loop with those taken out that a kernel handles by itself: [last] and, of tiles, [cross].
struct Split {
  int outer[kMaxDims];  // places in the loop, outermost first
  int outer_ndim = 0;
  int last = -1;  // -1: a single element
  int cross = -1;
};

Split split(const Loop& loop, int cross) {
  Split parts;
  parts.last = loop.ndim - 1;
  parts.cross = cross;
  for (int i = 0; i < loop.ndim - 1; ++i) {
    if (i != cross) parts.outer[parts.outer_ndim++] = i;
  }
  return parts;
}

int64_t stride(const Loop& loop, int operand, int dim) { return dim < 0 ? 0 : loop.strides[operand][dim]; }

Access access_by(int64_t step) { return step == 0 ? Access::splat : step == 1 ? Access::unit : Access::strided; }

InputArgs input_args(const Loop& loop, int operand, const ElementwiseInput& input, const Split& parts) {
  InputArgs args{};
  if (!input.data) {
    args.access = Access::value;
    args.value = input.value;
    return args;
  }
  const int64_t item = item_bytes(input.dtype);
  const int64_t step = stride(loop, operand, parts.last), cross_step = stride(loop, operand, parts.cross);
  args.data = static_cast<const char*>(input.data);
  args.step = step * item;
  args.cross_step = cross_step * item;
  args.stored = stored_of(input.dtype);
  args.access = access_by(step);
  args.cross_access = access_by(cross_step);
  args.tiled = parts.cross >= 0 && std::abs(cross_step) < std::abs(step) && cross_step != 0;
  return args;
}

/// Elements between the last place where the output is aligned for vectors and the first of some row, at most.
int64_t most_before(const Elementwise& operation, const Split& parts, int vector) {
  const int64_t item = item_bytes(operation.out_dtype);
  int64_t all = 0;
  for (int i = 0; i < parts.outer_ndim; ++i) all |= operation.loop.strides[0][parts.outer[i]];
  if (all % vector != 0) return vector - 1;  // of some row, any
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(operation.out) / item % vector);
}

/// One grid: some rows, and a part of the last dimension.
void launch_grid(Args& args, int64_t pieces, int unroll, Kernel& kernel, cudaStream_t stream) {
  const CUfunction function = ready(kernel, "launching an elementwise operation", "loading an elementwise kernel");
  args.count = static_cast<unsigned>(pieces);
  const auto blocks = static_cast<unsigned>(unroll ? ceil_div(pieces, int64_t{unroll} * kThreads) : pieces);
  void* parameters[] = {&args};
  check(driver().cuLaunchKernel(function, blocks, 1, 1, kThreads, 1, 1, 0, stream, parameters, nullptr),
        "launching an elementwise operation");
}

/// Walks what one launch cannot hold: dimensions beyond kOuterDims, and more pieces than 32 bits count.
class Launcher {
 public:
  Launcher(const Elementwise& operation, cudaStream_t stream)
      : operation_(operation),
        choice_(choose(operation)),
        parts_(split(operation.loop, choice_.cross)),
        stream_(stream) {
    const KernelSet& set = kernels_of(stored_of(operation.dtype));
    const bool tiled = choice_.cross >= 0;
    const int family = static_cast<int>(choice_.family);
    kernel_ = tiled ? set.tiled[family] : choice_.same ? set.same[family] : set.mixed[family];
    piece_ = tiled ? set.tile : choice_.same ? set.vector : set.mixed_vector;
    unroll_ = tiled ? 0 : choice_.same ? set.unroll : 1;
    set_args();
  }

  void run() {
    // Of the outer dimensions, a launch takes the innermost ones.
    const int walked = std::max(0, parts_.outer_ndim - kOuterDims);
    walk(0, walked);
  }

 private:
  void set_args() {
    const Loop& loop = operation_.loop;
    const int64_t out_item = item_bytes(operation_.out_dtype);
    args_.out = static_cast<char*>(operation_.out);
    args_.out_step = stride(loop, 0, parts_.last) * out_item;
    args_.out_cross_step = stride(loop, 0, parts_.cross) * out_item;
    args_.length = parts_.last < 0 ? 1 : loop.sizes[parts_.last];
    args_.cross_length = parts_.cross < 0 ? 1 : loop.sizes[parts_.cross];
    args_.vector_stores = parts_.last < 0 || stride(loop, 0, parts_.last) == 1;
    if (parts_.last < 0) args_.out_step = out_item;
    args_.op = static_cast<int>(kernel_op(operation_.op));
    args_.replaces_zero = operation_.replaces_zero;
    args_.where_zero = operation_.where_zero;
    args_.inputs[1].access = Access::value;  // of unary operations
    const bool swapped = is_swapped(operation_.op);
    for (int k = 0; k + 1 < loop.operand_count; ++k) {
      slots_[k] = swapped ? 1 - k : k;
      args_.inputs[slots_[k]] = input_args(loop, k + 1, operation_.inputs[k], parts_);
    }
  }

  /// Steps of operand `k` (0: the output) along a dimension, in bytes.
  int64_t bytes_along(int k, int dim) const {
    const DLDataType dtype = k == 0 ? operation_.out_dtype : operation_.inputs[k - 1].dtype;
    return operation_.loop.strides[k][dim] * item_bytes(dtype);
  }

  void advance(int dim, int64_t steps) {
    args_.out += steps * bytes_along(0, dim);
    for (int k = 1; k < operation_.loop.operand_count; ++k) {
      InputArgs& input = args_.inputs[slots_[k - 1]];
      if (input.access != Access::value) input.data += steps * bytes_along(k, dim);
    }
  }

  void walk(int depth, int walked) {
    if (depth == walked) return launch(walked);
    const int dim = parts_.outer[depth];
    const int64_t size = operation_.loop.sizes[dim];
    for (int64_t i = 0; i < size; ++i) {
      walk(depth + 1, walked);
      advance(dim, 1);
    }
    advance(dim, -size);
  }

  /// The outer dimensions from `first` on, in halves where there are more pieces than a launch counts.
  void launch(int first) {
    const Loop& loop = operation_.loop;
    const int64_t before = args_.vector_stores && parts_.cross < 0 ? most_before(operation_, parts_, piece_) : 0;
    const int64_t pieces = ceil_div(args_.length + before, piece_);
    const int64_t cross_pieces = parts_.cross < 0 ? 1 : ceil_div(args_.cross_length, piece_);
    args_.outer_ndim = parts_.outer_ndim - first;
    double all = static_cast<double>(pieces) * static_cast<double>(cross_pieces);
    int64_t sizes[kOuterDims];
    int longest = -1;
    for (int d = 0; d < args_.outer_ndim; ++d) {
      const int dim = parts_.outer[parts_.outer_ndim - 1 - d];
      sizes[d] = outer_size_[dim] ? outer_size_[dim] : loop.sizes[dim];
      all *= static_cast<double>(sizes[d]);
      if (longest < 0 || sizes[d] > sizes[longest]) longest = d;
    }
    if (all > static_cast<double>(kMostPieces)) return launch_halves(first, longest < 0 ? 1 : sizes[longest], longest);
    for (int d = 0; d < args_.outer_ndim; ++d) {
      const int dim = parts_.outer[parts_.outer_ndim - 1 - d];
      args_.outer_sizes[d] = divisor_of(sizes[d]);
      args_.out_outer[d] = bytes_along(0, dim);
      for (int k = 1; k < loop.operand_count; ++k) args_.inputs[slots_[k - 1]].outer[d] = bytes_along(k, dim);
    }
    args_.row_pieces = divisor_of(pieces);
    args_.cross_pieces = divisor_of(cross_pieces);
    launch_grid(args_, static_cast<int64_t>(all), unroll_, *kernel_, stream_);
  }

  void launch_halves(int first, int64_t outer_longest, int outer) {
    // The longest of all dimensions is cut; halves of the last one begin at whole pieces.
    const int64_t rows = ceil_div(args_.length, piece_);
    const int64_t bands = parts_.cross < 0 ? 1 : ceil_div(args_.cross_length, piece_);
    if (outer_longest >= rows && outer_longest >= bands) {
      const int dim = parts_.outer[parts_.outer_ndim - 1 - outer];
      const int64_t half = outer_longest / 2, before = outer_size_[dim];
      outer_size_[dim] = half;
      launch(first);
      outer_size_[dim] = outer_longest - half;
      advance(dim, half);
      launch(first);
      advance(dim, -half);
      outer_size_[dim] = before;
      return;
    }
    int64_t& length = rows >= bands ? args_.length : args_.cross_length;
    const int dim = rows >= bands ? parts_.last : parts_.cross;
    const int64_t whole = length, half = std::max(rows, bands) / 2 * piece_;
    length = half;
    launch(first);
    length = whole - half;
    advance(dim, half);
    launch(first);
    advance(dim, -half);
    length = whole;
  }

  const Elementwise& operation_;
  const Choice choice_;
  const Split parts_;
  cudaStream_t stream_;
  Kernel* kernel_ = nullptr;
  int piece_ = 1, unroll_ = 0;
  int slots_[2] = {0, 1};
  int64_t outer_size_[kMaxDims] = {};  // where a dimension is cut; 0: whole
  Args args_{};
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
