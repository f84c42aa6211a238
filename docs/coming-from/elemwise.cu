#include "elemwise.h"

#include <cstdio>
#include <cstdlib>

namespace elemwise {

namespace {

template <class Function>
__global__ void of_each(const float* x, const float* y, float* z, int n, Function function) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) z[i] = function(x[i], y[i]);
}

struct Sum {
  __device__ float operator()(float x, float y) const { return x + y; }
};
struct Product {
  __device__ float operator()(float x, float y) const { return x * y; }
};
struct Quotient {
  __device__ float operator()(float x, float y) const { return x / y; }
};

template <class Function>
void launch(const float* x, const float* y, float* z, int n, Function function) {
  of_each<<<(n + 255) / 256, 256>>>(x, y, z, n, function);
  if (const cudaError_t status = cudaGetLastError()) {
    std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
    std::exit(EXIT_FAILURE);
  }
}

}  // namespace

void add(const float* x, const float* y, float* z, int n) { launch(x, y, z, n, Sum{}); }
void mul(const float* x, const float* y, float* z, int n) { launch(x, y, z, n, Product{}); }
void div(const float* x, const float* y, float* z, int n) { launch(x, y, z, n, Quotient{}); }

}  // namespace elemwise
