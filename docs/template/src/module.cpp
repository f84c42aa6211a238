// row_sum._core: what runs where the arrays are, called from Python and by XLA.
#include <interop/function.h>

#include "row_sum.h"

namespace {

void row_sum(const interop::Run& run) {
  const Matrix x = run.view<const float, 2>(0);
  const Vector sums = run.view<float, 1>(1);
  if (run.on_host()) return row_sum_on_host(x, sums);
#ifdef ROW_SUM_HAS_CUDA
  row_sum_on_gpu(x, sums, run.stream());
#else
  throw interop::CudaError("this build has no CUDA half; build it again with nvcc on PATH");
#endif
}

}  // namespace

NB_MODULE(_core, m) {
  interop::initialize();
  // true: on a GPU it does nothing but queue work, so that XLA may record it into a CUDA graph.
  interop::define<row_sum>(m, "row_sum.row_sum", "interop::View<const float, 2> x, interop::View<float, 1> sums", true);
  m.attr("has_cuda") =
#ifdef ROW_SUM_HAS_CUDA
      true;
#else
      false;
#endif
}
