/// NumPy arrays: read by their buffer, made by `numpy.empty`.
#include "exchange/numpy.h"

#include "exchange/buffer.h"
#include "exchange/typestr.h"

namespace interop::exchange {
namespace {

const Lookup kEmpty("numpy", "empty");
const Lookup kDtype("numpy", "dtype");
const Lookup kMlBfloat16("ml_dtypes", "bfloat16");
const Name kStr("str");
const Name kName("name");

/// NumPy's own dtypes are singletons: each is made once, and then known by its address.
struct Known {
  DLDataType dtype;
  PyObject* object;
};
constexpr int kMaxKnown = 32;
Known known[kMaxKnown];
int known_count = 0;

class NumpyRoute final : public Route {
 public:
  const char* library() const override { return "numpy"; }
  const char* protocol() const override { return "buffer protocol"; }
  void inspect(Operand& operand) const override { read_buffer(operand, operand.object); }

  Made empty(const Shape& shape, DLDataType dtype, DLDevice device, cudaStream_t stream, bool foreign) const override {
    if (device.device_type != kDLCPU) return Route::empty(shape, dtype, device, stream, foreign);
    Made made;
    made.object = kEmpty.get()(shape_tuple(shape), numpy_dtype(dtype));
    Py_buffer view;
    if (PyObject_GetBuffer(made.object.ptr(), &view, PyBUF_STRIDES) != 0) nb::raise_python_error();
    made.data = view.buf;
    PyBuffer_Release(&view);
    return made;
  }
};

}  // namespace

nb::handle numpy_dtype(DLDataType dtype) {
  for (int i = 0; i < known_count; ++i) {
    if (known[i].dtype == dtype) return known[i].object;
  }
  const std::string typestr = typestr_of(dtype);
  nb::object made;
  if (!typestr.empty()) {
    made = kDtype.get()(nb::str(typestr.c_str()));
  } else if (dtype == kBfloat16) {
    made = kDtype.get()(kMlBfloat16.get());
  } else {
    throw TypeError("interop: NumPy has no dtype for " + dtype_name(dtype));
  }
  known[known_count++] = {dtype, made.inc_ref().ptr()};  // one for each typestr: fewer than kMaxKnown
  return made;
}

std::optional<DLDataType> dtype_of(nb::handle numpy_dtype_object) {
  for (int i = 0; i < known_count; ++i) {
    if (known[i].object == numpy_dtype_object.ptr()) return known[i].dtype;
  }
  auto found = dtype_from_typestr(nb::cast<std::string>(attribute(numpy_dtype_object, kStr)));
  if (!found && text_of(attribute(numpy_dtype_object, kName)) == "bfloat16") found = kBfloat16;  // of ml_dtypes
  if (found) numpy_dtype(*found);  // known by its address from now on
  return found;
}

const Route& numpy_route() {
  static const NumpyRoute route;
  return route;
}

}  // namespace interop::exchange
