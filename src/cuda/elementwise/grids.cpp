/// What the launchers of elementwise kernels share.
#include "cuda/elementwise/grids.h"

#include <interop/error.h>

#include <cstdlib>

namespace interop::cuda::elementwise {

void check_alignment(const char* name, const void* pointer, DLDataType dtype) {
  const int64_t item = item_bytes(dtype);
  if (reinterpret_cast<uintptr_t>(pointer) % item == 0) return;
  throw ValueError(std::string("interop: ") + name + " starts at an address that is not a multiple of " +
                   std::to_string(item) + " bytes, which the GPU cannot read as " + dtype_name(dtype) +
                   "; copy it first");
}

Access access_of(int64_t step, int64_t item) {
  return step == 0 ? Access::splat : step == item ? Access::unit : Access::strided;
}

bool is_tiled(int64_t step, int64_t cross_step) { return cross_step != 0 && std::abs(cross_step) < std::abs(step); }

void launch_pieces(Kernel& kernel, int64_t pieces, int unroll, void** parameters, CUstream stream) {
  const CUfunction function = ready(kernel, "launching an elementwise operation", "loading an elementwise kernel");
  const auto blocks = static_cast<unsigned>(unroll ? ceil_div(pieces, int64_t{unroll} * kThreads) : pieces);
  check(driver().cuLaunchKernel(function, blocks, 1, 1, kThreads, 1, 1, 0, stream, parameters, nullptr),
        "launching an elementwise operation");
}

}  // namespace interop::cuda::elementwise
