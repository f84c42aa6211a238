/// TensorFlow's eager tensors, by `tf.experimental.dlpack`.
///
/// TensorFlow names no stream to anybody: it waits on the host until an exported tensor is ready, and expects what it
/// imports to be ready too.
#include <interop/cuda/driver.h>

#include "exchange/array/array.h"
#include "exchange/array/export.h"
#include "exchange/closing.h"
#include "exchange/routes/dlpack.h"

namespace interop::exchange {
namespace {

const Lookup kToDlpack("tensorflow", "experimental.dlpack.to_dlpack");
const Lookup kFromDlpack("tensorflow", "experimental.dlpack.from_dlpack");
const Name kDtype("dtype");
const Name kName("name");

/// TensorFlow aborts the process where it is asked to export what is no plain memory (strings, variants).
void check_dtype(const Operand& operand) {
  const std::string name = nb::cast<std::string>(attribute(attribute(operand.object, kDtype), kName));
  for (const char* prefix : {"bool", "int", "uint", "float", "half", "bfloat", "complex"}) {
    if (name.rfind(prefix, 0) == 0) return;
  }
  throw TypeError(operand.label() + " is a tf.Tensor of " + name +
                  "; accepted: bool, integers, floats and complex numbers");
}

class TensorflowRoute final : public Route {
 public:
  const char* library() const override { return "tensorflow"; }
  const char* protocol() const override { return "tf.experimental.dlpack"; }
  bool writable() const override { return false; }  // tensors are immutable
  bool own_stream() const override { return true; }

  void enter(Operand& operand) const override { enter_foreign(operand.function, "TensorFlow"); }
  void inspect(Operand& operand) const override {
    check_dtype(operand);
    PyObject* capsule = PyObject_CallOneArg(kToDlpack.get().ptr(), operand.object.ptr());
    if (!capsule) throw BufferError(operand.label() + ": TensorFlow refuses to export: " + take_error_text());
    read_capsule(operand, nb::steal(capsule));
    operand.read_only = true;
    operand.hold = !operand.on_host();
  }

  nb::object hand_over(nb::object made, cudaStream_t stream) const override {
    const nb::object array = Route::hand_over(made, stream);
    if (stream) {
      const nb::gil_scoped_release no_gil;
      cuda::synchronize(stream);
    }
    return kFromDlpack.get()(
        export_dlpack(nb::cast<const Array&>(array), nb::none(), nb::none(), nb::none(), nb::none()));
  }
};

}  // namespace

const Route& tensorflow_route() {
  static const TensorflowRoute route;
  return route;
}

}  // namespace interop::exchange
