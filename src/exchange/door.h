/// Who computes a call, and where.
#pragma once

#include <interop/call.h>

namespace interop::exchange {

/// Who computes a call.
enum class Computes : uint8_t {
  interop,         ///< this package, on the host or on a GPU
  interop_memory,  ///< the same; torch leads, and each of its tensors has been found to be its memory and nothing else
  jax,             ///< JAX, in a primitive of `interop.jax`, on XLA's stream
  torch,           ///< torch's dispatcher, in an operator of `interop.torch`: a tensor is more than its memory
  torch_autograd   ///< a function of `interop.torch`, which records the derivative of what this package computes
};

/// Decides who computes a call, by the types of its arrays and by what torch notes of its tensors: no array is read
/// before.
///
/// A library that traces functions computes the calls of its own arrays alone. `execution` takes such a call back from
/// JAX, unless one of the arrays is traced. The first `count` arrays are operands; those behind them, up to
/// `all_count`, are outputs and the like, which no gradient may be lost of either. Throws TypeError, naming the
/// argument, for what is no array.
Computes who_computes(const char* function, const Argument* arrays, int count, int all_count,
                      nanobind::handle execution);

/// Where a call of these arrays runs: kDLCUDA if one of them is in the memory of a GPU, or in managed memory, kDLCPU if
/// all are in host memory, be it pinned; else the first other device. Throws, naming the argument, for what cannot be
/// read.
DLDevice device_of(const char* function, const Argument* arrays, int count);

/// Is it an array of JAX's that has values, not a tracer?
bool is_concrete_in_jax(nanobind::handle x);

}  // namespace interop::exchange
