/// A kernel that was compiled at run time, as Python passes it on.
#pragma once

#include <interop/cuda/kernel.h>

namespace interop::bindings {

struct LoadedKernel {
  cuda::Kernel* kernel;  // of the process
};

}  // namespace interop::bindings
