/// Images that were compiled at run time or elsewhere, and their kernels, as Python passes them on.
#pragma once

#include <interop/cuda/kernel.h>

#include "bindings/functions/mdspan.h"

namespace interop::bindings {

struct LoadedKernel {
  cuda::Kernel* kernel;          // of the process
  const MdspanLayouts* mdspans;  // of its parameters, where it has some; of the process, too
};

struct LoadedLibrary {
  cuda::Library* library;  // of the process
};

}  // namespace interop::bindings
