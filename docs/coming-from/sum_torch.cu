// An extension of PyTorch: the sum of two tensors, on its current stream.
#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>

__global__ void sum_kernel(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

torch::Tensor sum(const torch::Tensor& a, const torch::Tensor& b) {
  TORCH_CHECK(a.is_cuda() && b.is_cuda() && a.is_contiguous() && b.is_contiguous());
  TORCH_CHECK(a.scalar_type() == torch::kFloat && b.scalar_type() == torch::kFloat && a.sizes() == b.sizes());
  torch::Tensor c = torch::empty_like(a);
  const int n = static_cast<int>(a.numel());
  sum_kernel<<<(n + 255) / 256, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(a.data_ptr<float>(), b.data_ptr<float>(),
                                                                             c.data_ptr<float>(), n);
  return c;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("sum", &sum); }
