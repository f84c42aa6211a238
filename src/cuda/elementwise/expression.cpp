/// Chooses the shape of an expression's kernel, and launches it.
#include <interop/cuda/expression.h>

#include <algorithm>

#include "cuda/elementwise/expression_args.h"
#include "cuda/elementwise/grids.h"

namespace interop::cuda {
namespace {

using namespace elementwise;

static_assert(sizeof(ValueArgs) == sizeof(ScalarValue) && alignof(ValueArgs) == alignof(ScalarValue));

constexpr int kVectorBytes = 16;  // of the widest array's vectors

int input_count(const Expression& expression) { return expression.loop.operand_count - 1; }

int64_t widest_item(const Expression& expression) {
  int64_t widest = item_bytes(expression.out_dtype);
  for (int k = 0; k < input_count(expression); ++k) {
    widest = std::max(widest, item_bytes(expression.inputs[k].dtype));
  }
  return widest;
}

const char* class_name(LayoutClass layout) {
  switch (layout) {
    case LayoutClass::contiguous:
      return "contiguous";
    case LayoutClass::rows:
      return "rows";
    default:
      return "strided";
  }
}

/// Fills the kernel's arguments, and queues one launch after the other.
class Launcher {
 public:
  Launcher(const Expression& expression, const ExpressionShape& shape, Kernel& kernel, cudaStream_t stream)
      : expression_(expression), shape_(shape), kernel_(kernel), stream_(stream) {}

  void run() {
    const int count = expression_.loop.operand_count;
    int64_t items[kMaxInputs + 1] = {item_bytes(expression_.out_dtype)};
    char* data[kMaxInputs + 1] = {static_cast<char*>(expression_.out)};
    for (int k = 1; k < count; ++k) {
      items[k] = item_bytes(expression_.inputs[k - 1].dtype);
      data[k] = static_cast<char*>(const_cast<void*>(expression_.inputs[k - 1].data));
    }
    const bool tiled = shape_.tile > 0;
    Grids grids(expression_.loop, items, data, tiled ? expression_.loop.cross_dim : -1,
                tiled ? shape_.tile : shape_.vector);
    for (int k = 0; k < count; ++k) {
      ArrayArgs& array = arrays_[k];
      array.step = grids.step(k);
      array.cross_step = grids.cross_step(k);
      array.access = access_of(array.step, items[k]);
      array.cross_access = access_of(array.cross_step, items[k]);
      array.tiled = k > 0 && is_tiled(array.step, array.cross_step);
    }
    if (expression_.loop.ndim == 0) arrays_[0].step = items[0];
    loop_.vector_stores = grids.vector_stores();
    grids.each([&](const Grid& grid) { launch(grids, grid); });
  }

 private:
  void launch(const Grids& grids, const Grid& grid) {
    loop_.length = grid.length;
    loop_.cross_length = grid.cross_length;
    loop_.outer_ndim = grid.outer_ndim;
    std::copy(grid.outer_sizes, grid.outer_sizes + grid.outer_ndim, loop_.outer_sizes);
    loop_.row_pieces = grid.row_pieces;
    loop_.cross_pieces = grid.cross_pieces;
    loop_.count = static_cast<unsigned>(grid.count);
    for (int k = 0; k < expression_.loop.operand_count; ++k) {
      arrays_[k].data = grid.data[k];
      for (int d = 0; d < grid.outer_ndim; ++d) arrays_[k].outer[d] = grids.bytes_along(k, grid.outer_dims[d]);
    }
    // Of each parameter, the driver reads as many bytes as the kernel declares.
    void* parameters[] = {&loop_, arrays_, const_cast<ScalarValue*>(expression_.values)};
    launch_pieces(kernel_, grid.count, shape_.tile > 0 ? 0 : shape_.unroll, parameters, stream_);
  }

  const Expression& expression_;
  const ExpressionShape& shape_;
  Kernel& kernel_;
  cudaStream_t stream_;
  LoopArgs loop_{};
  ArrayArgs arrays_[kMaxInputs + 1];
};

}  // namespace

ExpressionShape expression_shape(const Expression& expression) {
  const int64_t item = widest_item(expression);
  const int count = input_count(expression);
  // Registers limit what a thread has in flight: an element of each input, times these.
  const int vector = static_cast<int>(std::max<int64_t>(kVectorBytes / item, 1));
  if (expression.loop.cross_dim >= 0) return {item <= 4 && count * item <= 12 ? 64 : 32, std::min(vector, 4), 1};
  return {0, vector, item > 2 && count <= 4 ? 2 : 1};
}

void launch_expression(const Expression& expression, const ExpressionShape& shape, Kernel& kernel,
                       cudaStream_t stream) {
  if (is_empty(expression)) return;
  check_alignment("out", expression.out, expression.out_dtype);
  for (int k = 0; k < input_count(expression); ++k) {
    check_alignment("an operand", expression.inputs[k].data, expression.inputs[k].dtype);
  }
  Launcher(expression, shape, kernel, stream).run();
}

std::string describe(const Expression& expression) {
  if (is_empty(expression)) return "nothing to compute";
  const ExpressionShape shape = expression_shape(expression);
  if (shape.tile > 0) {
    return "transposed, tiles of " + std::to_string(shape.tile) + " x " + std::to_string(shape.tile);
  }
  return std::string(class_name(expression.loop.layout)) + ", vectors of " + std::to_string(shape.vector);
}

}  // namespace interop::cuda
