/// NumPy arrays: read by their buffer, made by `numpy.empty`.
#include "exchange/buffer.h"
#include "exchange/python.h"

namespace interop::exchange {
namespace {

const Lookup kEmpty("numpy", "empty");

class NumpyRoute final : public Route {
 public:
  const char* library() const override { return "numpy"; }
  const char* protocol() const override { return "buffer protocol"; }
  void inspect(Operand& operand) const override { read_buffer(operand, operand.object); }

  Made empty(const Shape& shape, DLDataType dtype, DLDevice device, cudaStream_t stream, bool foreign) const override {
    if (device.device_type != kDLCPU) return Route::empty(shape, dtype, device, stream, foreign);
    Made made;
    made.object = kEmpty.get()(shape_tuple(shape), nb::str(dtype_name(dtype).c_str()));
    Py_buffer view;
    if (PyObject_GetBuffer(made.object.ptr(), &view, PyBUF_STRIDES) != 0) nb::raise_python_error();
    made.data = view.buf;
    PyBuffer_Release(&view);
    return made;
  }
};

}  // namespace

const Route& numpy_route() {
  static const NumpyRoute route;
  return route;
}

}  // namespace interop::exchange
