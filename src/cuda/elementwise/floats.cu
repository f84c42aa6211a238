// The elementwise kernels of the floats.
#include "cuda/elementwise/kernels.cuh"

namespace interop::cuda::elementwise {

const KernelSet& float_kernels(Stored dtype) {
  switch (dtype) {
    case Stored::f16:
      return kernel_set<Half>();
    case Stored::bf16:
      return kernel_set<BFloat16>();
    case Stored::f32:
      return kernel_set<float>();
    default:
      return kernel_set<double>();
  }
}

}  // namespace interop::cuda::elementwise
