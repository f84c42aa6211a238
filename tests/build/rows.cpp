// Functions that run without Python: sums of rows, with any strides, a scaled copy, and one that fails.
#include <interop/function.h>

#include <dlfcn.h>

#include <stdexcept>

namespace {

void row_sum(const interop::Run& run) {
  const auto x = run.view<const float, 2>(0);
  const auto sums = run.view<float, 1>(1);
  if (!run.on_host()) throw interop::CudaError("this module has code for the host alone");
  for (long long r = 0; r < x.size(0); ++r) {
    float sum = 0;
    for (long long c = 0; c < x.size(1); ++c) sum += x(r, c);
    sums(r) = sum;
  }
}

void scale(const interop::Run& run) {
  const double* const x = run.data<const double>(0);
  double* const y = run.data<double>(1);
  const auto by = run.number<double>(2);
  const auto count = run.number<int64_t>(3);
  for (int64_t i = 0; i < count; ++i) y[i] = by * x[i];
}

void copy(const interop::Run& run) {  // by the driver, so that it needs no nvcc
  using Copy = int (*)(const void* to, const void* from, size_t bytes, void* stream);
  const DLTensor& x = run.tensor(0);
  size_t bytes = sizeof(float);
  for (int d = 0; d < x.ndim; ++d) bytes *= static_cast<size_t>(x.shape[d]);
  if (run.on_host()) {
    std::memcpy(run.data<float>(1), x.data, bytes);
    return;
  }
  static const Copy on_gpu = reinterpret_cast<Copy>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemcpyDtoDAsync_v2"));
  if (on_gpu(run.data<float>(1), x.data, bytes, run.stream()) != 0) throw interop::CudaError("the copy failed");
}

void fail(const interop::Run& run) {
  switch (run.number<int>(2)) {
    case 0:
      throw interop::TypeError("the kind is 0");
    case 1:
      throw interop::CudaError("modules.fail: the kind is 1");
    case 2:
      throw std::runtime_error("the kind is 2");
    case 3:
      run.view<const float, 3>(0);
      break;
    case 4:
      run.data<const double>(0);
  }
}

}  // namespace

NB_MODULE(rows, m) {
  interop::initialize();
  interop::define<row_sum>(m, "modules.row_sum", "interop::View<const float, 2> x, interop::View<float, 1> sums");
  interop::define<scale>(m, "modules.scale", "const double* x, double* y, double by, long long n", true);
  interop::define<copy>(m, "modules.copy", "const float* x, float* y", true);
  interop::define<fail>(m, "modules.fail", "const float* x, float* y, int kind");
  m.def("define_badly", [](nanobind::module_ to) { interop::define<fail>(to, "modules.bad", "FILE* x"); });
}
