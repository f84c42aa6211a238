/// Broadcasting, result dtypes, and the merging of dimensions.
#include "ops/elementwise.h"

#include <interop/error.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

namespace interop::ops {
namespace {

bool is_complex(DLDataType dtype) { return dtype.code == kDLComplex; }
bool is_bool(DLDataType dtype) { return dtype.code == kDLBool; }

/// NumPy's letter for the kind of a served dtype; that of bfloat16 is the floats'.
char kind_letter(DLDataType dtype) {
  switch (dtype.code) {
    case kDLBool:
      return 'b';
    case kDLInt:
      return 'i';
    case kDLUInt:
      return 'u';
    default:
      return is_complex(dtype) ? 'c' : 'f';
  }
}

/// "bool, integers and floats"
std::string in_words(const char* kinds) {
  constexpr struct {
    char letter;
    const char* word;
  } kWords[] = {{'b', "bool"}, {'i', "integers"}, {'f', "floats"}, {'c', "complex numbers"}};
  std::string text, last;
  for (const auto& [letter, word] : kWords) {
    if (!std::strchr(kinds, letter)) continue;
    if (!last.empty()) text += (text.empty() ? "" : ", ") + last;
    last = word;
  }
  return text.empty() ? last : text + " and " + last;
}

/// One dimension before merging: its size, and the stride of every operand.
struct Dim {
  int64_t size;
  int64_t strides[kMaxInputs + 1];
};

/// Makes the output's stride positive: the loop begins at the other end.
void turn_around(Dim& dim, DLTensor& out, DLTensor* inputs, int count) {
  if (dim.strides[0] >= 0) return;
  for (int k = 0; k <= count; ++k) {
    DLTensor& tensor = k == 0 ? out : inputs[k - 1];
    tensor.data = static_cast<char*>(tensor.data) + (dim.size - 1) * dim.strides[k] * item_bytes(tensor.dtype);
    dim.strides[k] = -dim.strides[k];
  }
}

/// Appends a dimension, or merges it with the last one if the strides of every operand allow that.
void append(Loop& loop, const Dim& dim) {
  if (loop.ndim > 0) {
    const int last = loop.ndim - 1;
    bool alike = true;
    for (int k = 0; k < loop.operand_count; ++k) alike &= loop.strides[k][last] == dim.strides[k] * dim.size;
    if (alike) {
      loop.sizes[last] *= dim.size;
      for (int k = 0; k < loop.operand_count; ++k) loop.strides[k][last] = dim.strides[k];
      return;
    }
  }
  loop.sizes[loop.ndim] = dim.size;
  for (int k = 0; k < loop.operand_count; ++k) loop.strides[k][loop.ndim] = dim.strides[k];
  ++loop.ndim;
}

/// A dimension along which some input is compact, whose stride along the last one is long; -1 if there is none.
int find_cross_dim(const Loop& loop) {
  const int last = loop.ndim - 1;
  constexpr int64_t kLeast = 8;  // elements each way, for a tile to be worth its trip through shared memory
  if (last < 1 || loop.sizes[last] < kLeast) return -1;
  for (int k = 1; k < loop.operand_count; ++k) {
    if (std::abs(loop.strides[k][last]) < kLeast) continue;
    for (int i = 0; i < last; ++i) {
      if (std::abs(loop.strides[k][i]) == 1 && loop.sizes[i] >= kLeast) return i;
    }
  }
  return -1;
}

LayoutClass classify(const Loop& loop) {
  if (std::find(loop.sizes, loop.sizes + loop.ndim, 0) != loop.sizes + loop.ndim) return LayoutClass::empty;
  if (loop.cross_dim >= 0) return LayoutClass::transposed;
  const int last = loop.ndim - 1;
  for (int k = 0; k < loop.operand_count && last >= 0; ++k) {
    const int64_t stride = loop.strides[k][last];
    if (stride != 1 && (k == 0 || stride != 0)) return LayoutClass::strided;
  }
  return last <= 0 ? LayoutClass::contiguous : LayoutClass::rows;
}

}  // namespace

Shape broadcast_shape(const char* function, const NamedTensor* inputs, int count) {
  Shape shape;
  shape.ndim = 0;
  for (int k = 0; k < count; ++k) shape.ndim = std::max(shape.ndim, inputs[k].tensor->ndim);
  std::fill(shape.sizes, shape.sizes + shape.ndim, int64_t{1});
  for (int k = 0; k < count; ++k) {
    const DLTensor& tensor = *inputs[k].tensor;
    const int lead = shape.ndim - tensor.ndim;
    for (int i = 0; i < tensor.ndim; ++i) {
      int64_t& size = shape.sizes[lead + i];
      if (tensor.shape[i] == 1 || tensor.shape[i] == size) continue;
      if (size != 1) {
        std::string text = std::string(function) + ": ";
        for (int j = 0; j <= k; ++j) {
          text += std::string(j ? " and " : "") + inputs[j].name + " has shape " + shape_text(*inputs[j].tensor);
        }
        throw ValueError(text + ": the sizes " + std::to_string(size) + " and " + std::to_string(tensor.shape[i]) +
                         " do not broadcast; accepted: equal ones, or 1");
      }
      size = tensor.shape[i];
    }
  }
  return shape;
}

DLDataType comparison_dtype(DLDataType a, DLDataType b) {
  if (is_bool(a) || is_bool(b)) return is_bool(a) ? b : a;
  if (a.code == b.code) return a.bits > b.bits ? a : b;
  const DLDataType& of_signed = a.code == kDLInt ? a : b;
  const DLDataType& of_unsigned = a.code == kDLInt ? b : a;
  if (of_unsigned.bits == 64) return of_unsigned;
  return {kDLInt, std::max(of_signed.bits, static_cast<uint8_t>(2 * of_unsigned.bits)), 1};
}

DLDataType result_dtype(const char* function, const Operation& operation, DLDataType dtype) {
  const bool served = is_served(dtype);
  if (!served || !std::strchr(operation.accepts, kind_letter(dtype))) {
    const std::string accepted = served ? in_words(operation.accepts) : kServedDtypes;
    const std::string operands =
        function ? std::string(function) + ": the operands" : "the operands of " + std::string(operation.name);
    throw TypeError(operands + " are " + dtype_name(dtype) + "; accepted: " + accepted);
  }
  if (operation.gives == Gives::truth) return {kDLBool, 8, 1};
  if (operation.gives == Gives::part && is_complex(dtype)) return {kDLFloat, static_cast<uint8_t>(dtype.bits / 2), 1};
  return dtype;
}

void plan_loop(Loop& loop, DLTensor& out, DLTensor* inputs, int count) {
  Dim dims[kMaxDims];
  int ndim = 0;
  bool sorted = true;
  for (int i = 0; i < out.ndim; ++i) {
    if (out.shape[i] == 1) continue;
    Dim& dim = dims[ndim++];
    dim.size = out.shape[i];
    dim.strides[0] = out.strides[i];
    for (int k = 0; k < count; ++k) {
      const DLTensor& input = inputs[k];
      const int j = i - (out.ndim - input.ndim);
      dim.strides[k + 1] = j < 0 || input.shape[j] == 1 ? 0 : input.strides[j];
    }
    if (dim.size > 0) turn_around(dim, out, inputs, count);
    sorted &= ndim == 1 || dims[ndim - 2].strides[0] >= dim.strides[0];
  }
  if (!sorted) {
    std::stable_sort(dims, dims + ndim, [](const Dim& x, const Dim& y) { return x.strides[0] > y.strides[0]; });
  }
  loop.operand_count = count + 1;
  loop.ndim = 0;
  for (int i = 0; i < ndim; ++i) append(loop, dims[i]);
  loop.cross_dim = find_cross_dim(loop);
  loop.layout = classify(loop);
}

void plan_pass(Elementwise& work, DLTensor out, const DLTensor* inputs, int count) {
  DLTensor begins[kMaxInputs];
  std::copy(inputs, inputs + count, begins);
  plan_loop(work.loop, out, begins, count);
  work.out = out.data;
  work.out_dtype = out.dtype;
  for (int k = 0; k < count; ++k) work.inputs[k] = {begins[k].data, begins[k].dtype};
}

bool is_in_place(const Elementwise& work, int k) {
  const Elementwise::Input& input = work.inputs[k];
  const int64_t* steps = work.loop.strides[k + 1];
  return input.data == work.out && item_bytes(input.dtype) == item_bytes(work.out_dtype) &&
         std::equal(steps, steps + work.loop.ndim, work.loop.strides[0]);
}

}  // namespace interop::ops
