/// Any object with `__dlpack__` and `__dlpack_device__`, whatever its library.
#include "exchange/routes/dlpack.h"

namespace interop::exchange {
namespace {

const Name kDlpack("__dlpack__");
const Name kDlpackDevice("__dlpack_device__");
const Name kStream("stream");
const Name kMaxVersion("max_version");

/// Calls `__dlpack__` with these keywords; null, with the Python error set, if it raises.
PyObject* call_dlpack(nb::handle method, cudaStream_t stream, bool with_version) {
  nb::dict keywords;
  if (stream) {
    const nb::object handle = nb::steal(PyLong_FromLongLong(reinterpret_cast<intptr_t>(stream)));
    PyDict_SetItem(keywords.ptr(), kStream.get(), handle.ptr());
  }
  if (with_version) {
    const nb::object version = nb::make_tuple(DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION);
    PyDict_SetItem(keywords.ptr(), kMaxVersion.get(), version.ptr());
  }
  const nb::tuple none = nb::make_tuple();
  return PyObject_Call(method.ptr(), none.ptr(), keywords.ptr());
}

class DlpackRoute final : public Route {
 public:
  const char* library() const override { return "interop"; }
  const char* protocol() const override { return "__dlpack__"; }

  void inspect(Operand& operand) const override {
    operand.tensor.device = dlpack_device(operand);
    // Nothing is known of how the producer frees: its memory is held until our work on it is done.
    operand.hold = !operand.on_host();
  }
  void acquire(Operand& operand, cudaStream_t stream) const override {
    const nb::object capsule = dlpack_capsule(operand, operand.on_host() ? nullptr : stream);
    const DLDevice promised = operand.tensor.device;
    read_capsule(operand, capsule);
    const DLDevice device = operand.tensor.device;
    // Host and pinned memory are told apart by some producers only.
    const auto on_gpu = [](DLDevice d) { return d.device_type == kDLCUDA || d.device_type == kDLCUDAManaged; };
    if (on_gpu(device) != on_gpu(promised) || (on_gpu(device) && device.device_id != promised.device_id)) {
      throw BufferError(operand.label() + ": " + type_text(operand.object) + " says it is on " + device_text(promised) +
                        " and hands over memory on " + device_text(device));
    }
    if (operand.is_output && !operand.read_only && !is_at_one_address(operand, stream)) refuse_copy(operand);
  }

 private:
  /// Not all producers flag a copy. Exported again, memory of its own has the same address; a copy has not, as the
  /// first one is still there. Not on the frame of `acquire`, whose first export may call interop again.
  [[gnu::noinline]] static bool is_at_one_address(const Operand& operand, cudaStream_t stream) {
    Operand again;
    again.function = operand.function;
    again.name = operand.name;
    again.object = operand.object;
    read_capsule(again, dlpack_capsule(again, operand.on_host() ? nullptr : stream));
    return again.tensor.data == operand.tensor.data || element_count(operand.tensor) == 0;
  }
};

}  // namespace

DLDevice dlpack_device(const Operand& operand) {
  const nb::object method = attribute(operand.object, kDlpackDevice);
  PyObject* answer = PyObject_CallNoArgs(method.ptr());
  if (!answer) {
    throw BufferError(operand.label() + ": " + type_text(operand.object) + ".__dlpack_device__: " + take_error_text());
  }
  const nb::object device = nb::steal(answer);
  if (!nb::isinstance<nb::tuple>(device) || nb::len(device) != 2) {
    throw BufferError(operand.label() + ": " + type_text(operand.object) + ".__dlpack_device__ does not return a pair");
  }
  // The type is often an IntEnum; the id of host memory is None in Paddle.
  int64_t numbers[2];
  for (int i = 0; i < 2; ++i) {
    const nb::object entry = device[i];
    PyObject* number = entry.is_none() && i == 1 ? PyLong_FromLong(0) : PyNumber_Index(entry.ptr());
    numbers[i] = number ? PyLong_AsLongLong(nb::steal(number).ptr()) : -1;
    if (PyErr_Occurred()) {
      throw BufferError(operand.label() + ": " + type_text(operand.object) +
                        ".__dlpack_device__: " + take_error_text());
    }
  }
  if (numbers[1] != static_cast<int32_t>(numbers[1]) || numbers[0] != static_cast<int32_t>(numbers[0])) {
    throw BufferError(operand.label() + ": " + type_text(operand.object) + ".__dlpack_device__ returns " +
                      text_of(device));
  }
  return {static_cast<DLDeviceType>(numbers[0]), static_cast<int32_t>(numbers[1])};
}

nb::object dlpack_capsule(const Operand& operand, cudaStream_t stream) {
  const nb::object method = attribute(operand.object, kDlpack);
  PyObject* capsule = call_dlpack(method, stream, true);
  if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) {
    PyErr_Clear();
    capsule = call_dlpack(method, stream, false);
  }
  if (!capsule) {
    throw BufferError(operand.label() + ": " + type_text(operand.object) + " refuses to export: " + take_error_text());
  }
  return nb::steal(capsule);
}

const Route& dlpack_route() {
  static const DlpackRoute route;
  return route;
}

}  // namespace interop::exchange
