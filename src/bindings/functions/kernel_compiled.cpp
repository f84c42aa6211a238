/// Does a kernel have the parameters that are declared?
#include "bindings/functions/kernel_compiled.h"

#include <interop/error.h>

#include <string>

namespace interop::bindings {

void check_compiled(const KernelDeclaration& kernel, const CompiledKernel& compiled) {
  const auto bytes = cuda::parameter_bytes(*compiled.kernel);
  if (!bytes) return;
  const std::string accepted = "; accepted: signature= with the parameters of the kernel itself";
  if (bytes->size() != kernel.parameters.size()) {
    throw ValueError(std::string(kernel.label) + ": " + std::to_string(kernel.parameters.size()) +
                     " parameters are declared, and the compiled kernel has " + std::to_string(bytes->size()) +
                     accepted);
  }
  size_t next_mdspan = 0;
  for (size_t i = 0; i < bytes->size(); ++i) {
    const KernelParameter& parameter = kernel.parameters[i];
    const bool is_mdspan = parameter.kind == KernelParameter::Kind::mdspan;
    const size_t declared = is_mdspan ? compiled.mdspans->at(next_mdspan++).bytes.size() : parameter.bytes();
    if (declared == (*bytes)[i]) continue;
    throw ValueError(std::string(kernel.label) + ": " + parameter.name + " is declared with " +
                     std::to_string(declared) + " bytes, and is " + std::to_string((*bytes)[i]) +
                     " bytes in the compiled kernel" + accepted);
  }
}

}  // namespace interop::bindings
