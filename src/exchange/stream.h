/// CUDA streams as Python names them.
#pragma once

#include "exchange/python.h"

typedef struct CUstream_st* cudaStream_t;

namespace interop::exchange {

/// A handle as a stream: 0, the driver's name of the legacy default stream, becomes 1, DLPack's.
inline cudaStream_t stream_from_handle(int64_t handle) {
  return reinterpret_cast<cudaStream_t>(static_cast<uintptr_t>(handle == 0 ? 1 : handle));
}

/// The `stream=` argument: an int handle, or an object with `__cuda_stream__`, `.cuda_stream` (torch) or `.ptr` (CuPy).
/// Throws TypeError for another object and ValueError for a handle that is none; both name `function`.
cudaStream_t stream_argument(nb::handle object, const char* function);

}  // namespace interop::exchange
