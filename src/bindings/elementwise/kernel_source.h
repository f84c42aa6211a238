/// The kernels of an expression, as NVRTC compiles them.
#pragma once

namespace interop::bindings {

/// Headers of src/cuda as one text, which includes nothing.
extern const char* const kKernelSource;

}  // namespace interop::bindings
