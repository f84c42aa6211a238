/// Warp arrays, by `__dlpack__`, without Warp's own event wait: calls join the current stream of Warp's device.
#include "exchange/array/array.h"
#include "exchange/array/export.h"
#include "exchange/routes/dlpack.h"
#include "exchange/stream.h"

namespace interop::exchange {
namespace {

const Lookup kGetStream("warp", "get_stream");
const Lookup kFromDlpack("warp", "from_dlpack");
const Lookup kEmpty("warp", "empty");
const Lookup kWarp("warp", "__dict__");
const Name kCudaStream("cuda_stream");
const Name kPtr("ptr");

class WarpRoute final : public Route {
 public:
  const char* library() const override { return "warp"; }
  const char* protocol() const override { return "__dlpack__"; }

  void inspect(Operand& operand) const override {
    // An array of vectors has their components as its last dimensions; one of structures is refused by Warp.
    read_capsule(operand, dlpack_capsule(operand, kNoSynchronisation));
  }

  bool current_stream(int device, cudaStream_t* stream) const override {
    const nb::object handle = attribute(kGetStream.get()("cuda:" + std::to_string(device)), kCudaStream);
    *stream = stream_from_handle(handle.is_none() ? 0 : to_int64(handle));
    return true;
  }

  // Warp frees by its current stream, so what another stream writes is interop's memory, seen by Warp. It has no 0-d
  // arrays: such a result stays interop's own.
  Made empty(const Shape& shape, DLDataType dtype, DLDevice device, cudaStream_t stream, bool foreign) const override {
    PyObject* type = PyDict_GetItemString(kWarp.get().ptr(), dtype_name(dtype).c_str());
    if (foreign || shape.ndim == 0 || !type) return Route::empty(shape, dtype, device, stream, foreign);
    nb::dict keywords;
    keywords["shape"] = shape_tuple(shape);
    keywords["dtype"] = nb::handle(type);
    keywords["device"] = device_text(device);
    Made made;
    made.object = kEmpty.get()(**keywords);
    const nb::object pointer = attribute(made.object, kPtr);  // None for an empty array
    made.data = pointer.is_none() ? nullptr : reinterpret_cast<void*>(static_cast<uintptr_t>(to_int64(pointer)));
    return made;
  }
  nb::object hand_over(nb::object made, cudaStream_t stream) const override {
    if (!nb::isinstance<Array>(made)) return made;
    const nb::object array = Route::hand_over(made, stream);
    if (nb::cast<const Array&>(array).shape.empty()) return array;
    const nb::object no_sync = stream ? nb::object(nb::int_(-1)) : nb::none();
    return kFromDlpack.get()(export_dlpack(nb::cast<const Array&>(array), no_sync, nb::none(), nb::none(), nb::none()));
  }
};

}  // namespace

const Route& warp_route() {
  static const WarpRoute route;
  return route;
}

}  // namespace interop::exchange
