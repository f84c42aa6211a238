// The elementwise kernels of the complex dtypes.
#include "cuda/elementwise/kernels.cuh"

namespace interop::cuda::elementwise {

const KernelSet& complex_kernels(Stored dtype) {
  switch (dtype) {
    case Stored::c64:
      return kernel_set<Complex<float>>();
    default:
      return kernel_set<Complex<double>>();
  }
}

}  // namespace interop::cuda::elementwise
