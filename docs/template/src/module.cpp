// row_sum._core: from Python's arguments to the sum.
#include <interop/call.h>

#include "row_sum.h"

namespace nb = nanobind;

namespace {

nb::object row_sum(nb::handle x, nb::handle out, nb::handle stream) {
  using Input = nb::ndarray<const float, nb::ndim<2>>;
  using Output = nb::ndarray<float, nb::ndim<1>>;

  interop::Call call("row_sum.row_sum", {{"x", x}}, {out, stream});
  const Input input = call.view<Input>(0);
  const Output sums = call.output<Output>({input.shape(0)});
  const Matrix matrix{input.data(), static_cast<int64_t>(input.shape(0)), static_cast<int64_t>(input.shape(1)),
                      input.stride(0), input.stride(1)};
  call.launch([&](cudaStream_t s) {
    if (call.on_host()) return row_sum_on_host(matrix, sums.data(), sums.stride(0));
#ifdef ROW_SUM_HAS_CUDA
    row_sum_on_gpu(matrix, sums.data(), sums.stride(0), s);
#else
    throw interop::CudaError("row_sum.row_sum: this build has no CUDA half; build it again with nvcc on PATH");
#endif
  });
  return call.hand_over();
}

}  // namespace

NB_MODULE(_core, m) {
  interop::initialize();
  m.def("row_sum", &row_sum, nb::arg().none(), nb::arg().none(), nb::arg().none());
  m.attr("has_cuda") =
#ifdef ROW_SUM_HAS_CUDA
      true;
#else
      false;
#endif
}
