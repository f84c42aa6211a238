/// tvm-ffi's own tensors, by `__dlpack__`, which there ignores the stream: calls join its environment's stream.
#include "exchange/array/array.h"
#include "exchange/array/export.h"
#include "exchange/routes/dlpack.h"
#include "exchange/stream.h"

namespace interop::exchange {
namespace {

const Lookup kFromDlpack("tvm_ffi", "from_dlpack");
const Lookup kDevice("tvm_ffi", "device");
const Lookup kRawStream("tvm_ffi", "get_raw_stream");

class TvmFfiRoute final : public Route {
 public:
  const char* library() const override { return "tvm_ffi"; }
  const char* protocol() const override { return "__dlpack__"; }

  void inspect(Operand& operand) const override { read_capsule(operand, dlpack_capsule(operand, nullptr)); }

  bool current_stream(int device, cudaStream_t* stream) const override {
    *stream = stream_from_handle(to_int64(kRawStream.get()(kDevice.get()("cuda", device))));
    return true;
  }
  // It allocates nothing itself. The result is ready on the environment's stream, or on the one given.
  nb::object hand_over(nb::object made, cudaStream_t stream) const override {
    const nb::object array = Route::hand_over(made, stream);
    const nb::object no_sync = stream ? nb::object(nb::int_(-1)) : nb::none();
    return kFromDlpack.get()(export_dlpack(nb::cast<const Array&>(array), no_sync, nb::none(), nb::none(), nb::none()));
  }
};

}  // namespace

const Route& tvm_ffi_route() {
  static const TvmFfiRoute route;
  return route;
}

}  // namespace interop::exchange
