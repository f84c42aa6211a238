#include "product.h"

namespace {

constexpr int kTile = 16;

__global__ void product_kernel(const float* a, const float* b, float* c, int n) {
  __shared__ float left[kTile][kTile], right[kTile][kTile];
  const int row = blockIdx.y * kTile + threadIdx.y, column = blockIdx.x * kTile + threadIdx.x;
  float sum = 0;
  for (int first = 0; first < n; first += kTile) {
    const int k = first + threadIdx.x, l = first + threadIdx.y;
    left[threadIdx.y][threadIdx.x] = row < n && k < n ? a[row * n + k] : 0;
    right[threadIdx.y][threadIdx.x] = l < n && column < n ? b[l * n + column] : 0;
    __syncthreads();
    for (int i = 0; i < kTile; ++i) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
    __syncthreads();
  }
  if (row < n && column < n) c[row * n + column] = sum;
}

}  // namespace

cudaError_t tiledMultiply(const float* a, const float* b, float* c, int n) {
  const size_t bytes = sizeof(float) * n * n;
  float *x = nullptr, *y = nullptr, *z = nullptr;
  cudaMalloc(&x, bytes);
  cudaMalloc(&y, bytes);
  cudaMalloc(&z, bytes);
  cudaMemcpy(x, a, bytes, cudaMemcpyHostToDevice);
  cudaMemcpy(y, b, bytes, cudaMemcpyHostToDevice);
  const int tiles = (n + kTile - 1) / kTile;
  product_kernel<<<dim3(tiles, tiles), dim3(kTile, kTile)>>>(x, y, z, n);
  cudaMemcpy(c, z, bytes, cudaMemcpyDeviceToHost);
  cudaFree(x);
  cudaFree(y);
  cudaFree(z);
  return cudaGetLastError();
}
