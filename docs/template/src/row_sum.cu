#include <interop/cuda/check.h>

#include "row_sum.h"

namespace {

constexpr int kThreads = 256;

// A block for each row, which its threads walk along together; then they add up what each has found.
__global__ void row_sum_kernel(Matrix x, Vector y) {
  __shared__ float found[kThreads];
  for (long long r = blockIdx.x; r < x.size(0); r += gridDim.x) {
    float sum = 0;
    for (long long c = threadIdx.x; c < x.size(1); c += kThreads) sum += x(r, c);
    found[threadIdx.x] = sum;
    __syncthreads();
    for (int half = kThreads / 2; half > 0; half /= 2) {
      if (threadIdx.x < half) found[threadIdx.x] += found[threadIdx.x + half];
      __syncthreads();
    }
    if (threadIdx.x == 0) y(r) = found[0];
    __syncthreads();  // found[0] has been read before the next row is written
  }
}

}  // namespace

void row_sum_on_gpu(const Matrix& x, const Vector& y, cudaStream_t stream) {
  const long long rows = x.size(0);
  if (rows == 0) return;
  row_sum_kernel<<<static_cast<int>(rows < 65535 ? rows : 65535), kThreads, 0, stream>>>(x, y);
  interop::check_cuda(cudaGetLastError(), "launch of row_sum_kernel");
}
