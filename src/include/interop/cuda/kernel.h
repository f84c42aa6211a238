/// Kernels that are compiled at run time. Knows no Python.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace interop::cuda {

/// A kernel, made ready in each context that launches it.
struct Kernel;

/// The kernels of those names in a compiled image (cubin), for every device of its architecture. They are kept for the
/// life of the process. A stream may be captured meanwhile. Throws CudaError, as for a name that the image has not.
std::vector<Kernel*> load_kernels(const void* image, const std::vector<std::string>& names);

/// What NVRTC calls a device's architecture: "sm_90".
std::string architecture_name(int device);

}  // namespace interop::cuda
