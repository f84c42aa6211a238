// The elementwise kernels of the 32 and 64 bit integers.
#include "cuda/elementwise/kernels.cuh"

namespace interop::cuda::elementwise {

const KernelSet& integer_kernels(Stored dtype) {
  switch (dtype) {
    case Stored::i32:
      return kernel_set<int>();
    case Stored::i64:
      return kernel_set<long long>();
    case Stored::u32:
      return kernel_set<unsigned>();
    default:
      return kernel_set<unsigned long long>();
  }
}

}  // namespace interop::cuda::elementwise
