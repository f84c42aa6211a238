/// Loading kernels on first use.
#include "cuda/kernel.h"

#include <cuda_runtime.h>

namespace interop::cuda {

CUfunction ready(Kernel& kernel, const char* launching, const char* loading) {
  const DriverApi& api = driver();
  const std::uint64_t context = current_context_id(launching);
  if (kernel.loaded_in.load(std::memory_order_acquire) != context) {
    RelaxedCapture relaxed(api);
    cudaKernel_t handle = nullptr;
    const cudaError_t found = cudaGetKernel(&handle, kernel.symbol);
    if (found != cudaSuccess) check(static_cast<CUresult>(found), loading);  // same numbers
    CUfunction function = nullptr;
    check(api.cuKernelGetFunction(&function, reinterpret_cast<CUkernel>(handle)), loading);
    int registers = 0;
    check(api.cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function), loading);
    if (kernel.shared_bytes != 0) {
      check(api.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel.shared_bytes),
            loading);
    }
    kernel.handle.store(reinterpret_cast<CUkernel>(handle), std::memory_order_relaxed);
    kernel.loaded_in.store(context, std::memory_order_release);
  }
  return reinterpret_cast<CUfunction>(kernel.handle.load(std::memory_order_relaxed));
}

}  // namespace interop::cuda
