/// Evenly spaced numbers, made on the GPU.
#include <interop/call.h>
#include <interop/cuda/elementwise.h>

#include "bindings/bindings.h"
#include "bindings/scalars.h"
#include "exchange/closing.h"
#include "exchange/python.h"

namespace interop::bindings {
namespace {

void arange(nb::handle out, nb::handle first, nb::handle second, nb::handle stream, const char* function) {
  CallOptions options;
  options.stream = stream;
  Call call(function, {{"the array", out, Access::write}}, options);
  const DLTensor& to = call.tensor(0);
  const ScalarValue start = value_by_numpy(first, to.dtype), next = value_by_numpy(second, to.dtype);
  call.launch([&](cudaStream_t s) { cuda::launch_arange(to.data, element_count(to), to.dtype, start, next, s); });
  call.hand_over();
}

}  // namespace

void bind_arange(nb::module_& m) {
  m.def(
      "arange",
      [](nb::handle out, nb::handle first, nb::handle second, nb::handle stream, const char* function) {
        const exchange::CallGuard guard;
        exchange::as_call(function, false, [&] { arange(out, first, second, stream, function); });
      },
      nb::arg("out"), nb::arg("first"), nb::arg("second"), nb::arg("stream").none(), nb::arg("function"),
      nb::sig(
          "def arange(out: Array, first: typing.Any, second: typing.Any, stream: typing.Any, function: str) -> None"),
      "Evenly spaced numbers into a compact array on a GPU, of which the first two are these.");
}

}  // namespace interop::bindings
