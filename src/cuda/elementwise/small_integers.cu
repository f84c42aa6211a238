// The elementwise kernels of bool and the 8 and 16 bit integers.
#include "cuda/elementwise/kernels.cuh"

namespace interop::cuda::elementwise {

const KernelSet& small_integer_kernels(Stored dtype) {
  switch (dtype) {
    case Stored::b8:
      return kernel_set<bool>();
    case Stored::i8:
      return kernel_set<signed char>();
    case Stored::i16:
      return kernel_set<short>();
    case Stored::u8:
      return kernel_set<unsigned char>();
    default:
      return kernel_set<unsigned short>();
  }
}

}  // namespace interop::cuda::elementwise
