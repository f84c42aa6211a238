/// The CUDA runtime's errors as interop's. Needs the CUDA runtime's headers.
#pragma once

#include <cuda_runtime_api.h>
#include <interop/error.h>

#include <string>

namespace interop {

/// Throws CudaError, which names the failure and what was being done ("launch of row_sum_kernel").
inline void check_cuda(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return;
  throw CudaError(std::string(doing) + " failed: " + cudaGetErrorName(status) + ": " + cudaGetErrorString(status));
}

}  // namespace interop
