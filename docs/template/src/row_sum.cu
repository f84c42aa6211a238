#include <interop/cuda/check.h>

#include "row_sum.h"

namespace {

constexpr int kThreads = 256;

// A block for each row, which its threads walk along together; then they add up what each has found.
__global__ void row_sum_kernel(Matrix x, float* y, int64_t y_stride) {
  __shared__ float found[kThreads];
  for (int64_t r = blockIdx.x; r < x.rows; r += gridDim.x) {
    float sum = 0;
    for (int64_t c = threadIdx.x; c < x.columns; c += kThreads) sum += x.data[r * x.row_stride + c * x.column_stride];
    found[threadIdx.x] = sum;
    __syncthreads();
    for (int half = kThreads / 2; half > 0; half /= 2) {
      if (threadIdx.x < half) found[threadIdx.x] += found[threadIdx.x + half];
      __syncthreads();
    }
    if (threadIdx.x == 0) y[r * y_stride] = found[0];
    __syncthreads();  // found[0] has been read before the next row is written
  }
}

}  // namespace

void row_sum_on_gpu(const Matrix& x, float* y, int64_t y_stride, cudaStream_t stream) {
  if (x.rows == 0) return;
  const int blocks = static_cast<int>(x.rows < 65535 ? x.rows : 65535);
  row_sum_kernel<<<blocks, kThreads, 0, stream>>>(x, y, y_stride);
  interop::check_cuda(cudaGetLastError(), "launch of row_sum_kernel");
}
