// A program, as a tutorial has it: a kernel, what fills its arrays, and a check.
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <vector>

constexpr int kTile = 16;

__global__ void multiply(float* A, float* B, float* C, int N) {
  __shared__ float left[kTile][kTile], right[kTile][kTile];
  int row = blockIdx.y * kTile + threadIdx.y;
  int column = blockIdx.x * kTile + threadIdx.x;
  float sum = 0.0f;
  for (int first = 0; first < N; first += kTile) {
    int k = first + threadIdx.x, l = first + threadIdx.y;
    left[threadIdx.y][threadIdx.x] = row < N && k < N ? A[row * N + k] : 0.0f;
    right[threadIdx.y][threadIdx.x] = l < N && column < N ? B[l * N + column] : 0.0f;
    __syncthreads();
    for (int i = 0; i < kTile; ++i) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
    __syncthreads();
  }
  if (row < N && column < N) C[row * N + column] = sum;
}

int main() {
  const int N = 512;
  const size_t bytes = N * N * sizeof(float);
  std::vector<float> a(N * N, 1.0f), b(N * N, 2.0f), c(N * N);
  float *A, *B, *C;
  cudaMalloc(&A, bytes);
  cudaMalloc(&B, bytes);
  cudaMalloc(&C, bytes);
  cudaMemcpy(A, a.data(), bytes, cudaMemcpyHostToDevice);
  cudaMemcpy(B, b.data(), bytes, cudaMemcpyHostToDevice);
  dim3 block(kTile, kTile), grid((N + kTile - 1) / kTile, (N + kTile - 1) / kTile);
  multiply<<<grid, block>>>(A, B, C, N);
  cudaMemcpy(c.data(), C, bytes, cudaMemcpyDeviceToHost);
  cudaFree(A);
  cudaFree(B);
  cudaFree(C);
  for (float value : c) {
    if (std::fabs(value - 2.0f * N) > 1e-3f) {
      std::cerr << "wrong: " << value << std::endl;
      return EXIT_FAILURE;
    }
  }
  std::cout << "right" << std::endl;
}
