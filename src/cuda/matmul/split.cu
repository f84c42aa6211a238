/// Split-k: adds up the partial sums and finishes the product.
#include "cuda/matmul/split.h"

#include <cuda_runtime.h>

#include <limits>

#include "cuda/driver/driver_api.h"
#include "cuda/driver/kernel.h"
#include "cuda/matmul/finish.cuh"
#include "cuda/matmul/rates.h"

namespace interop::cuda::tiled {
namespace {

struct SumArgs {
  const char* partials;
  int parts;
  int m, n, outputs;  // `outputs` are those of all matrices
  OutputArgs c;
  FinishArgs finish;
  int batch_ndim;
  int64_t batch_size[kKernelBatchDims];
};

constexpr int kThreads = 256;

// sum_of_parts_kernel: adds up the partial sums in the order of the parts; c = what `finish` makes of that.
//   in      partials (parts, matrices, m, n) of T, compact
//   launch  one thread an output
template <typename T>
__global__ __launch_bounds__(kThreads) void sum_of_parts_kernel(const __grid_constant__ SumArgs args) {
  const int index = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (index >= args.outputs) return;
  const T* from = reinterpret_cast<const T*>(args.partials) + index;
  T sum = *from;
#pragma unroll 8
  for (int part = 1; part < args.parts; ++part) sum = add(sum, *(from += args.outputs));

  const int matrix = index / (args.m * args.n), at = index - matrix * args.m * args.n;
  const int row = at / args.n, column = at - row * args.n;
  const auto place = [&](const OutputArgs& array) {
    return array.data + matrix_offset(matrix, args.batch_ndim, args.batch_size, array.batch_stride) +
           row * array.row_stride + column * array.column_stride;
  };
  const FinishArgs& how = args.finish;
  finish_one<T>(how, sum,
                {place(args.c), how.addend.data ? place(how.addend) : nullptr,
                 how.bias.data ? place(how.bias) : nullptr, how.aux.data ? place(how.aux) : nullptr});
}

template <typename T>
Kernel& kernel_of() {
  static Kernel kernel(reinterpret_cast<const void*>(&sum_of_parts_kernel<T>));
  return kernel;
}

Kernel& kernel_for(DLDataType sums) {
  if (sums.code == kDLComplex) {
    return sums.bits == 64 ? kernel_of<Complex<float>>() : kernel_of<Complex<double>>();
  }
  if (sums.code == kDLFloat) return sums.bits == 32 ? kernel_of<float>() : kernel_of<double>();
  return sums.bits == 32 ? kernel_of<uint32_t>() : kernel_of<uint64_t>();
}

int64_t count_outputs(const Gemm& gemm) {
  int64_t count = gemm.m * gemm.n;
  for (int i = 0; i < gemm.batch_ndim; ++i) count *= gemm.batch[i].size;
  return count;
}

}  // namespace

bool may_divide(const Gemm& gemm) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  return gemm.k >= rates::kLeastDividedK && gemm.k <= kMost && count_outputs(gemm) <= rates::kMostDividedOutputs;
}

std::size_t partial_bytes(const Gemm& gemm, int parts) {
  return static_cast<std::size_t>(count_outputs(gemm)) * parts * item_bytes(sum_dtype(gemm));
}

void launch_sum_of_parts(const Gemm& gemm, const void* partials, int parts, cudaStream_t stream) {
  SumArgs args{};
  args.partials = static_cast<const char*>(partials);
  args.parts = parts;
  args.m = static_cast<int>(gemm.m);
  args.n = static_cast<int>(gemm.n);
  args.outputs = static_cast<int>(count_outputs(gemm));  // fits: the partial sums have at most rates::kMostPartialBytes
  args.finish = finish_args(gemm, false);
  args.c = output_args(gemm.c, gemm.c_strides, item_bytes(gemm.out_dtype));
  args.batch_ndim = gemm.batch_ndim;
  set_output_batch(gemm, 0, args.batch_size, args.c, args.finish);
  Kernel& kernel = kernel_for(sum_dtype(gemm));
  const CUfunction function = ready(kernel, "launching a product", "loading the matmul kernel");
  const auto blocks = static_cast<unsigned>((args.outputs + kThreads - 1) / kThreads);
  void* parameters[] = {&args};
  check(driver().cuLaunchKernel(function, blocks, 1, 1, kThreads, 1, 1, 0, stream, parameters, nullptr),
        "launching a product");
}

}  // namespace interop::cuda::tiled
