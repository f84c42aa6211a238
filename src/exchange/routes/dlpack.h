/// Reading DLPack: what every file that meets a DLTensor or a capsule shares.
#pragma once

#include "exchange/python.h"
#include "exchange/route.h"

namespace interop::exchange {

/// Copies a producer's DLTensor into the operand: offset folded in, strides filled, all fields checked.
/// Throws BufferError for what is malformed, TypeError for a device or dtype that nothing here can use.
void read_dltensor(Operand& operand, const DLTensor& tensor);

/// Consumes a capsule, versioned or not: renames it, takes its deleter over, reads its tensor. Whatever goes wrong
/// after the renaming, the deleter runs exactly once. A capsule that was used before is a ValueError.
void read_capsule(Operand& operand, nb::handle capsule);

/// The same for a tensor that comes without a capsule: its deleter is ours to call from here on.
void read_managed(Operand& operand, DLManagedTensorVersioned* managed);

/// Throws the BufferError of an output whose producer hands over a copy.
[[noreturn]] void refuse_copy(const Operand& operand);

/// `object.__dlpack_device__()`.
DLDevice dlpack_device(const Operand& operand);

/// For producers that are known to accept it: `stream=-1`, the consumer orders itself.
inline const cudaStream_t kNoSynchronisation = reinterpret_cast<cudaStream_t>(-1);

/// `object.__dlpack__(stream=stream, max_version=(1, 3))`, again without max_version where that is not known. A null
/// stream (a host call) is left out.
nb::object dlpack_capsule(const Operand& operand, cudaStream_t stream);

}  // namespace interop::exchange
