// A library for ctypes: host pointers in and out.
#include <cstddef>

__global__ void sum_kernel(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

extern "C" void sum(const float* a, const float* b, float* c, int n) {
  const std::size_t bytes = sizeof(float) * n;
  float *x, *y, *z;
  cudaMalloc(&x, bytes);
  cudaMalloc(&y, bytes);
  cudaMalloc(&z, bytes);
  cudaMemcpy(x, a, bytes, cudaMemcpyHostToDevice);
  cudaMemcpy(y, b, bytes, cudaMemcpyHostToDevice);
  sum_kernel<<<(n + 255) / 256, 256>>>(x, y, z, n);
  cudaMemcpy(c, z, bytes, cudaMemcpyDeviceToHost);
  cudaFree(x);
  cudaFree(y);
  cudaFree(z);
}
