/// What Python computes: operations on JAX arrays, by JAX, on tensors that are more than memory, by torch, and on host
/// arrays, by NumPy.
#include "bindings/by_python.h"

#include <interop/cuda/graph.h>

#include <cstring>
#include <string>

#include "exchange/closing.h"
#include "exchange/python.h"
#include "exchange/routes/jax.h"
#include "exchange/stream.h"

namespace interop::bindings {
namespace {

const exchange::Lookup kInJax("interop.jax._door", "compute");
const exchange::Lookup kInTorch("interop.torch._door", "compute");
const exchange::Lookup kRecorded("interop.torch._door", "record");
const exchange::Lookup kOnHost("interop._host.door", "compute");
const exchange::Lookup kKept("interop._host.door", "keep");

}  // namespace

nb::handle enter_jax(const char* function) {
  exchange::enter_jax(function);
  if (cuda::own_stream_is_captured()) {  // JAX would compute now, on XLA's stream, and no replay would
    throw ValueError(
        std::string(function) +
        ": the arrays are JAX's, which takes no part in interop.graph; accepted: a call outside the block, " +
        "or arrays of another library");
  }
  return kInJax.get();
}

nb::object in_torch(exchange::Computes who, nb::handle operation, nb::handle options, nb::tuple operands) {
  const nb::handle door = (who == exchange::Computes::torch_autograd ? kRecorded : kInTorch).get();
  return door(operation, options, *operands);
}

nb::object stream_for_jax(const char* function, nb::handle stream) {
  if (stream.is_none()) return nb::none();
  return nb::int_(reinterpret_cast<uintptr_t>(exchange::stream_argument(stream, function)));
}

bool led_by_numpy(const Call& call) { return std::strcmp(call.library(), "numpy") == 0; }

void compute_on_host(const Call& call, nb::handle operation, nb::handle operands, nb::handle dtype, nb::handle more,
                     nb::object out) {
  if (!out.is_valid()) out = call.numpy_output();
  kOnHost.get()(operation, operands, out, dtype, more, led_by_numpy(call));
}

nb::object kept_on_host(nb::handle operation, nb::handle names, bool has_out, nb::handle dtype, nb::handle out_dtype) {
  return kKept.get()(operation, names, has_out, dtype, out_dtype);
}

}  // namespace interop::bindings
