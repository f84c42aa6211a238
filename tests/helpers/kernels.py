"""Kernels such as users write, by their source."""

TWICE = """
__global__ void twice(const float* a, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = 2 * a[i];
}
"""
