/// Making kernels ready: those of this package, and those of images that were loaded.
#include "cuda/driver/kernel.h"

#include <interop/cuda/driver.h>

#include <cuda_runtime.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include "cuda/driver/library.h"

namespace interop::cuda {
namespace {

/// As CMake names architectures: "75-real", "90a-real", "80-virtual", or "80" for both.
bool has_code_from_80(int capability) {
  for (const char* at = built_architectures(); *at;) {
    char* end;
    const int number = static_cast<int>(std::strtol(at, &end, 10));
    const bool is_specific = *end == 'a' || *end == 'f';
    const std::size_t length = std::strcspn(end, "; ");
    const std::string kind(end, length);
    const bool as_real = kind.find("virtual") == std::string::npos && number / 10 == capability / 10;
    const bool as_virtual = kind.find("real") == std::string::npos;
    const bool runs = is_specific ? number == capability : number <= capability && (as_real || as_virtual);
    if (number >= 80 && runs) return true;
    at = end + length + (end[length] != 0);
  }
  return false;
}

}  // namespace

bool has_sm80_code(int device) {
  constexpr int kCapabilities = 256;
  static const auto is_built = [] {
    std::array<bool, kCapabilities> built{};
    for (int i = 80; i < kCapabilities; ++i) built[i] = has_code_from_80(i);
    return built;
  }();
  const int capability = compute_capability(device);
  return capability < kCapabilities && is_built[capability];
}

bool is_built_for_sm90a() {
  static const bool is_built = std::strstr(built_architectures(), "90a") != nullptr;
  return is_built;
}

bool has_sm90a_code(int device) { return is_built_for_sm90a() && compute_capability(device) == 90; }

CUfunction ready(Kernel& kernel, const char* launching, const char* loading) {
  const DriverApi& api = driver();
  const std::uint64_t context = current_context_id(launching);
  if (kernel.loaded_in.load(std::memory_order_acquire) != context) {
    RelaxedCapture relaxed(api);
    CUkernel handle = kernel.handle.load(std::memory_order_relaxed);
    if (kernel.symbol) {
      const cudaError_t found = cudaGetKernel(reinterpret_cast<cudaKernel_t*>(&handle), kernel.symbol);
      if (found != cudaSuccess) check(static_cast<CUresult>(found), loading);  // same numbers
    }
    auto function = reinterpret_cast<CUfunction>(handle);
    const CUresult loaded = kernel.is_function ? CUDA_SUCCESS : api.cuKernelGetFunction(&function, handle);
    if (loaded != CUDA_SUCCESS && kernel.library) throw_image_status(loaded, *kernel.library);
    check(loaded, loading);
    int registers = 0;
    check(api.cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function), loading);
    if (!kernel.symbol) {
      int own = 0;
      check(api.cuFuncGetAttribute(&own, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function), loading);
      kernel.own_shared_bytes.store(own, std::memory_order_relaxed);
    }
    if (kernel.shared_bytes != 0) {
      check(api.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel.shared_bytes),
            loading);
    }
    kernel.handle.store(handle, std::memory_order_relaxed);
    kernel.loaded_in.store(context, std::memory_order_release);
  }
  return reinterpret_cast<CUfunction>(kernel.handle.load(std::memory_order_relaxed));
}

std::string architecture_name(int device) { return "sm_" + std::to_string(compute_capability(device)); }

}  // namespace interop::cuda
