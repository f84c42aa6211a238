/// The shape, dtype and layout rules of elementwise operations: NumPy's. Knows neither Python nor CUDA.
#pragma once

#include <interop/elementwise.h>

namespace interop::ops {

/// The dtypes that the operations read, for messages.
inline constexpr const char* kServedDtypes =
    "bool, int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64, complex64, complex128";

/// One operand of a call: its public name, and the array.
struct NamedTensor {
  const char* name;
  const DLTensor* tensor;
};

/// The shape of `inputs` broadcast against each other. Throws ValueError where they do not fit.
Shape broadcast_shape(const char* function, const NamedTensor* inputs, int count);

/// The dtype in which integers and bools of these dtypes are compared exactly. No dtype holds both uint64 and signed
/// integers: these are compared in uint64, and a signed operand's sign is taken into account.
DLDataType comparison_dtype(DLDataType a, DLDataType b);

/// The dtype of the result of an operation computed in `dtype`. Throws TypeError where that has no meaning, such as the
/// order of complex numbers. The message names `function`, or the operation if that is null.
DLDataType result_dtype(const char* function, const Operation& operation, DLDataType dtype);

/// Fills `loop`, over `inputs` broadcast to `out`. Where its steps are negative, `out` and `inputs` get new pointers:
/// those of the element that the loop begins with. Broadcast inputs have stride 0.
void plan_loop(Loop& loop, DLTensor& out, DLTensor* inputs, int count);

/// An input of a pass that is a value.
inline constexpr DLTensor kValueInput{nullptr, {kDLCPU, 0}, 0, {kDLUInt, 8, 1}, nullptr, nullptr, 0};

/// Fills all of `work` but its values: the pass over `inputs`, broadcast to `out`.
void plan_pass(Elementwise& work, DLTensor out, const DLTensor* inputs, int count);

/// Is input `k` the output itself, element for element, so that each element is read before it is written?
bool is_in_place(const Elementwise& work, int k);

}  // namespace interop::ops
