/// Numba's device arrays: read by `__cuda_array_interface__`, made by `numba.cuda.device_array`.
#include "exchange/routes/cai.h"
#include "exchange/routes/numpy.h"
#include "exchange/stream.h"
#include "exchange/strides.h"

namespace interop::exchange {
namespace {

const Lookup kDeviceArray("numba.cuda", "device_array");
const Lookup kExternalStream("numba.cuda", "external_stream");
const Lookup kPerThreadDefault("numba.cuda.cudadrv.driver", "config.CUDA_PER_THREAD_DEFAULT_STREAM");
const Name kInterface("__cuda_array_interface__");
const Name kStrides("strides");

class NumbaRoute final : public Route {
 public:
  const char* library() const override { return "numba"; }
  const char* protocol() const override { return "__cuda_array_interface__"; }
  void inspect(Operand& operand) const override {
    read_cai(operand);
    // Numba's interface says "contiguous" of a broadcast array too (seen in numba-cuda 0.30): its own strides are
    // right.
    read_strides(operand, attribute(operand.object, kStrides));
  }

  // Numba has no current stream: an array is bound to one (its CAI names it), or is used on the default stream.
  bool current_stream(int, cudaStream_t* stream) const override {
    *stream = stream_from_handle(is_per_thread() ? 2 : 1);
    return true;
  }

  Made empty(const Shape& shape, DLDataType dtype, DLDevice, cudaStream_t stream, bool) const override {
    nb::dict keywords;
    // Bound to its stream, the result tells later consumers where it is ready.
    keywords["stream"] = kExternalStream.get()(reinterpret_cast<uintptr_t>(stream));
    Made made;
    made.object = kDeviceArray.get()(shape_tuple(shape), numpy_dtype(dtype), **keywords);
    const nb::object interface = attribute(made.object, kInterface);
    made.data = reinterpret_cast<void*>(static_cast<uintptr_t>(to_int64(nb::object(interface["data"])[0])));
    return made;
  }
  nb::object hand_over(nb::object made, cudaStream_t) const override { return made; }

 private:
  static bool is_per_thread() { return PyObject_IsTrue(kPerThreadDefault.get().ptr()) == 1; }
};

}  // namespace

const Route& numba_route() {
  static const NumbaRoute route;
  return route;
}

}  // namespace interop::exchange
