/// The epilogue as a kernel of its own: bias and activation, for a product in memory, in place.
#include "cuda/matmul/finish.h"

#include <cuda_runtime.h>

#include <limits>

#include "cuda/driver/driver_api.h"
#include "cuda/driver/kernel.h"
#include "cuda/elementwise/divisor.h"
#include "cuda/elementwise/memory.cuh"
#include "cuda/matmul/finish.cuh"

namespace interop::cuda {
namespace {

using elementwise::kVectorBytes;

constexpr int kThreads = 256;

struct FinishedArgs {
  void* c;
  void* aux;         // laid out as c; null for none
  const void* bias;  // null for none
  int64_t bias_row_step, bias_column_step;
  unsigned count;  // of all outputs
  Divisor columns, rows;
  int activation;
};

// finish_kernel: c = activation(c + bias), and aux = c + bias.
//   in/out  c, aux (matrices, m, n) of T, compact; N elements a vector, or N is 1
//   launch  one thread a vector
template <typename T, int N>
__global__ void __launch_bounds__(kThreads) finish_kernel(const __grid_constant__ FinishedArgs args) {
  const unsigned first = (blockIdx.x * kThreads + threadIdx.x) * N;
  if (first >= args.count) return;
  using Vector = elementwise::Vector<T, N>;
  T* const c = static_cast<T*>(args.c) + first;
  const int count = static_cast<int>(min(args.count - first, static_cast<unsigned>(N)));
  Vector x;
  if (count == N) {
    x = *reinterpret_cast<const Vector*>(c);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) x.at[i] = i < count ? c[i] : T(0);
  }
  if (args.bias) {
    unsigned row = divide_by(first, args.columns), column = first - row * args.columns.value;
    row -= divide_by(row, args.rows) * args.rows.value;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const T* const bias = static_cast<const T*>(args.bias);
      x.at[i] += bias[row * args.bias_row_step + column * args.bias_column_step];
      if (++column < args.columns.value) continue;
      column = 0;
      if (++row == args.rows.value) row = 0;
    }
  }
  const auto store = [&](void* to) {
    T* const at = static_cast<T*>(to) + first;
    if (count == N) {
      *reinterpret_cast<Vector*>(at) = x;
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (i < count) at[i] = x.at[i];
      }
    }
  };
  if (args.aux) store(args.aux);
  tiled::activate(x.at, args.activation, false);
  store(args.c);
}

template <typename T, int N>
Kernel& kernel_of() {
  static Kernel kernel(reinterpret_cast<const void*>(&finish_kernel<T, N>));
  return kernel;
}

/// Is an array of the result's shape compact in row order?
bool is_compact(const Gemm& gemm, const MatrixStrides& strides, int64_t BatchDim::* batch_stride) {
  int64_t matrix = gemm.m * gemm.n;
  for (int i = gemm.batch_ndim - 1; i >= 0; --i) {
    if (gemm.batch[i].*batch_stride != matrix) return false;
    matrix *= gemm.batch[i].size;
  }
  return (gemm.m == 1 || strides.row == gemm.n) && (gemm.n == 1 || strides.column == 1) &&
         matrix <= std::numeric_limits<int>::max();
}

bool is_compact(const Gemm& gemm) {
  return is_compact(gemm, gemm.c_strides, &BatchDim::c_stride) &&
         (!gemm.aux || is_compact(gemm, gemm.aux_strides, &BatchDim::aux_stride));
}

Gemm transposed(Gemm gemm) {
  tiled::transpose(gemm);
  return gemm;
}

bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0; }

}  // namespace

MatmulFinish finish_of(const Gemm& gemm) {
  if (gemm.out_dtype != kFloat32 && gemm.out_dtype != kFloat64) return MatmulFinish::none;
  if (is_compact(gemm)) return MatmulFinish::by_rows;
  return is_compact(transposed(gemm)) ? MatmulFinish::by_columns : MatmulFinish::none;
}

void launch_finish(const Gemm& given, MatmulFinish finish, cudaStream_t stream) {
  const Gemm gemm = finish == MatmulFinish::by_columns ? transposed(given) : given;
  FinishedArgs args{};
  args.c = gemm.c;
  args.aux = gemm.aux;
  args.bias = gemm.bias;
  args.bias_row_step = gemm.bias_strides.row;
  args.bias_column_step = gemm.bias_strides.column;
  const int64_t count = gemm.m * gemm.n * tiled::matrices(gemm);
  args.count = static_cast<unsigned>(count);
  args.columns = divisor_of(gemm.n);
  args.rows = divisor_of(gemm.m);
  args.activation = static_cast<int>(gemm.activation);
  const bool is_float32 = gemm.out_dtype == kFloat32, by_vectors = is_aligned(gemm.c) && is_aligned(gemm.aux);
  const int items = by_vectors ? kVectorBytes / item_bytes(gemm.out_dtype) : 1;
  Kernel& kernel = is_float32 ? (by_vectors ? kernel_of<float, 4>() : kernel_of<float, 1>())
                              : (by_vectors ? kernel_of<double, 2>() : kernel_of<double, 1>());
  const CUfunction function = ready(kernel, "finishing a product", "loading the kernel that finishes products");
  const auto blocks = static_cast<unsigned>(ceil_div(ceil_div(count, items), kThreads));
  void* parameters[] = {&args};
  check(driver().cuLaunchKernel(function, blocks, 1, 1, kThreads, 1, 1, 0, stream, parameters, nullptr),
        "finishing a product");
}

}  // namespace interop::cuda
