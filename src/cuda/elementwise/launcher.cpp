/// Checks a pass, fills the arguments of its kernel, and queues the launches.
#include "cuda/elementwise/launcher.h"

#include <interop/error.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "cuda/elementwise/grids.h"

namespace interop::cuda::elementwise {
namespace {

static_assert(sizeof(ValueArgs) == sizeof(ScalarValue) && alignof(ValueArgs) == alignof(ScalarValue));

/// A GPU cannot read an element that is not aligned to its size, and a kernel that tries breaks the context. Both parts
/// of a complex number are read at once.
void check_alignment(const char* name, const void* pointer, DLDataType dtype) {
  const int64_t item = item_bytes(dtype);
  if (reinterpret_cast<uintptr_t>(pointer) % item == 0) return;
  throw ValueError(std::string("interop: ") + name + " starts at an address that is not a multiple of " +
                   std::to_string(item) + " bytes, which the GPU cannot read as " + dtype_name(dtype) +
                   "; copy it first");
}

/// How an input of that step along the last dimension is read; both in bytes.
Access access_of(int64_t step, int64_t item) {
  return step == 0 ? Access::splat : step == item ? Access::unit : Access::strided;
}

/// The operands of a pass, the output first: what a launch does not change.
struct Operands {
  int count;
  int64_t items[kMaxInputs + 1];  // bytes of an element
  char* data[kMaxInputs + 1];     // null: a value

  explicit Operands(const Elementwise& work) : count(work.loop.operand_count) {
    items[0] = item_bytes(work.out_dtype);
    data[0] = static_cast<char*>(work.out);
    check_alignment("out", work.out, work.out_dtype);
    for (int k = 1; k < count; ++k) {
      const Elementwise::Input& input = work.inputs[k - 1];
      data[k] = static_cast<char*>(const_cast<void*>(input.data));
      items[k] = item_bytes(input.dtype);
      if (data[k]) check_alignment("an operand", data[k], input.dtype);
    }
  }
  Access access(int k, int64_t step) const { return data[k] ? access_of(step, items[k]) : Access::value; }
};

// ---- the arguments of each walk: what all launches of a pass share, and what each has of its own ----

void set_value(Flat::Array& array) { array.data = nullptr; }
void set_value(Rows::Array& array) { array.access = Access::value; }

struct Filling {
  const Elementwise& work;
  const Operands& operands;
  const Grids& grids;
  bool has_step;  // the kernel is one that is built with the package
};

void set_array(Flat::Array&, const Filling&, int) {}
void set_array(Rows::Array& array, const Filling& with, int k) {
  array.step = k == 0 && with.work.loop.ndim == 0 ? with.operands.items[0] : with.grids.step(k);
  array.access = with.operands.access(k, array.step);
  if (with.has_step && k > 0 && with.operands.data[k]) array.stored = stored_of(with.work.inputs[k - 1].dtype);
}
void set_array(Tiles::Array& array, const Filling& with, int k) {
  set_array(static_cast<Rows::Array&>(array), with, k);
  array.cross_step = with.grids.cross_step(k);
  array.cross_access = access_of(array.cross_step, with.operands.items[k]);
  array.tiled = k > 0 && array.cross_step != 0 && std::abs(array.cross_step) < std::abs(array.step);
}

void set_launch(Flat::Loop& loop, const Grid& grid, const Filling& with) {
  loop.length = grid.length;
  loop.whole = with.grids.is_aligned(grid) ? grid.length : 0;
}
void set_launch(Rows::Loop& loop, const Grid& grid, const Filling& with) {
  loop.length = grid.length;
  loop.count = static_cast<unsigned>(grid.count);
  loop.vector_stores = with.grids.vector_stores();
  loop.whole = with.grids.is_whole(grid);
  loop.outer_ndim = grid.outer_ndim;
  loop.row_pieces = grid.row_pieces;
  std::copy(grid.outer_sizes, grid.outer_sizes + grid.outer_ndim, loop.outer_sizes);
}
void set_launch(Tiles::Loop& loop, const Grid& grid, const Filling& with) {
  set_launch(static_cast<Rows::Loop&>(loop), grid, with);
  loop.cross_length = grid.cross_length;
  loop.cross_pieces = grid.cross_pieces;
}

void set_launch(Flat::Array& array, const Grid& grid, const Filling&, int k) { array.data = grid.data[k]; }
void set_launch(Rows::Array& array, const Grid& grid, const Filling& with, int k) {
  array.data = grid.data[k];
  for (int d = 0; d < grid.outer_ndim; ++d) array.outer[d] = with.grids.bytes_along(k, grid.outer_dims[d]);
}

/// Queues one launch: a block for each tile, or for `unroll` vectors of each of its threads.
void queue(Kernel& kernel, int64_t pieces, int unroll, void** parameters, cudaStream_t stream) {
  const CUfunction function = ready(kernel, "launching an elementwise operation", "loading an elementwise kernel");
  const auto blocks = static_cast<unsigned>(unroll ? ceil_div(pieces, int64_t{unroll} * kThreads) : pieces);
  check(driver().cuLaunchKernel(function, blocks, 1, 1, kThreads, 1, 1, 0, stream, parameters, nullptr),
        "launching an elementwise operation");
}

template <class Walk>
void launch_along(const Elementwise& work, const PassKernel& with, cudaStream_t stream) {
  const Operands operands(work);
  const int piece = with.shape.tile > 0 ? with.shape.tile : with.shape.vector;
  Grids grids(work.loop, operands.items, operands.data, with.shape.tile > 0 ? work.loop.cross_dim : -1, piece);
  const Filling filling{work, operands, grids, with.step != nullptr};
  typename Walk::Loop loop;
  typename Walk::Array arrays[kMaxInputs + 1];
  const auto slot = [&](int k) { return with.swaps && k > 0 ? 3 - k : k; };
  if (with.step && operands.count == 2) set_value(arrays[2]);  // which nothing reads
  for (int k = 0; k < operands.count; ++k) set_array(arrays[slot(k)], filling, k);
  grids.each([&](const Grid& grid) {
    set_launch(loop, grid, filling);
    for (int k = 0; k < operands.count; ++k) set_launch(arrays[slot(k)], grid, filling, k);
    // Of each parameter, the driver reads as many bytes as the kernel declares.
    void* parameters[] = {&loop, arrays, const_cast<ScalarValue*>(work.values), const_cast<StepArgs*>(with.step)};
    queue(with.kernel, grid.count, with.shape.unroll, parameters, stream);
  });
}

}  // namespace

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

void launch(const Elementwise& work, const PassKernel& with, cudaStream_t stream) {
  switch (with.shape.walk) {
    case Walk::flat:
      return launch_along<Flat>(work, with, stream);
    case Walk::rows:
      return launch_along<Rows>(work, with, stream);
    case Walk::tiles:
      return launch_along<Tiles>(work, with, stream);
  }
}

std::string describe(const Elementwise& work, const PassShape& shape) {
  const std::string tile = std::to_string(shape.tile);
  if (shape.tile > 0) return "transposed, tiles of " + tile + " x " + tile;
  const LayoutClass layout = work.loop.layout;
  const char* const name = layout == LayoutClass::contiguous ? "contiguous"
                           : layout == LayoutClass::rows     ? "rows"
                                                             : "strided";
  return std::string(name) + ", vectors of " + std::to_string(shape.vector);
}

}  // namespace interop::cuda::elementwise
