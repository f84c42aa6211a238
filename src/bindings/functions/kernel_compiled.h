/// What was compiled of a kernel, on one device.
#pragma once

#include <interop/cuda/kernel.h>

#include "bindings/functions/kernel_declaration.h"
#include "bindings/functions/mdspan.h"

namespace interop::bindings {

struct CompiledKernel {
  int device = -1;
  cuda::Kernel* kernel = nullptr;
  const MdspanLayouts* mdspans = nullptr;  // of its parameters, where it has some
};

/// Throws ValueError unless the parameters are those that the kernel was compiled with, as far as the driver says. The
/// driver may compile PTX here. Without the GIL.
void check_compiled(const KernelDeclaration& kernel, const CompiledKernel& compiled);

}  // namespace interop::bindings
