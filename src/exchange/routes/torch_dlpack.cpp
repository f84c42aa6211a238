/// PyTorch before 2.10, which has no C exchange API: by `Tensor.__dlpack__`.
///
/// It is asked for no synchronisation, as calls join torch's current stream themselves; and under a guard of the
/// tensor's device, which torch 2.9 requires.
#include <optional>

#include "exchange/routes/torch.h"
#include "exchange/stream.h"

namespace interop::exchange {
namespace {

const Name kIsCuda("is_cuda");
const Name kDevice("device");
const Name kIndex("index");
const Name kCudaStream("cuda_stream");
const Name kDataPtr("data_ptr");
const Name kNumel("numel");
const Lookup kDeviceGuard("torch.cuda", "device");
const Lookup kCurrentStream("torch.cuda", "current_stream");
const Lookup kDlpack("torch", "Tensor.__dlpack__");

/// `Tensor.__dlpack__` without the newest protocol's keywords; null, with torch's error set, if it refuses.
PyObject* export_tensor(nb::handle tensor, bool on_cuda) {
  nb::dict keywords;
  if (on_cuda) keywords["stream"] = -1;
  const nb::tuple arguments = nb::make_tuple(tensor);
  return PyObject_Call(kDlpack.get().ptr(), arguments.ptr(), keywords.ptr());
}

/// Elements, but no address: fake, functionalised, or zeros that were never stored.
bool is_without_memory(nb::handle tensor) {
  PyObject* pointer = PyObject_CallMethodNoArgs(tensor.ptr(), kDataPtr.get());
  if (!pointer) nb::raise_python_error();
  return to_int64(nb::steal(pointer)) == 0 && to_int64(attribute(tensor, kNumel)()) > 0;
}

class TorchDlpackRoute final : public TorchRoute {
 public:
  const char* protocol() const override { return "__dlpack__ (torch before 2.10)"; }

  bool current_stream(int device, cudaStream_t* stream) const override {
    *stream = stream_from_handle(to_int64(attribute(kCurrentStream.get()(device), kCudaStream)));
    return true;
  }

 private:
  void read(Operand& operand) const override {
    resolve_conjugation(operand);
    nb::object capsule = export_or_refuse(operand);
    if (is_without_memory(operand.memory())) {
      check_memory(operand);
      capsule = export_or_refuse(operand);
    }
    read_capsule(operand, capsule);
    check_bytes(operand, operand.tensor.dtype);
  }

  static nb::object export_or_refuse(const Operand& operand) {
    const nb::handle tensor = operand.memory();
    const bool on_cuda = nb::cast<bool>(attribute(tensor, kIsCuda));
    std::optional<Within> guard;
    if (on_cuda) guard.emplace(kDeviceGuard.get()(attribute(attribute(tensor, kDevice), kIndex)));
    PyObject* capsule = export_tensor(tensor, on_cuda);
    if (!capsule) refuse(operand);
    return nb::steal(capsule);
  }
};

}  // namespace

const Route& torch_dlpack_route() {
  static const TorchDlpackRoute route;
  return route;
}

}  // namespace interop::exchange
