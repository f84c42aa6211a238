/// NumPy arrays: read by their buffer, made by `numpy.empty`.
#include "exchange/routes/numpy.h"

#include "exchange/routes/buffer.h"
#include "exchange/typestr.h"

namespace interop::exchange {
namespace {

const Lookup kEmpty("numpy", "empty");
const Lookup kDtype("numpy", "dtype");
const Lookup kErrstate("numpy", "errstate");
const Name kStr("str");
const Name kType("type");

/// The dtypes of NumPy and ml_dtypes are singletons: each is made once, and then known by its address. Added to and
/// never changed, with the GIL.
struct Known {
  DLDataType dtype;
  PyObject* object;
};
constexpr int kMaxKnown = 32;
Known known[kMaxKnown];
int known_count = 0;

PyObject* known_object(DLDataType dtype) {
  for (int i = 0; i < known_count; ++i) {
    if (known[i].dtype == dtype) return known[i].object;
  }
  return nullptr;
}

class NumpyRoute final : public Route {
 public:
  const char* library() const override { return "numpy"; }
  const char* protocol() const override { return "buffer protocol"; }
  void inspect(Operand& operand) const override { read_buffer(operand, operand.object); }

  Made empty(const Shape& shape, DLDataType dtype, DLDevice device, cudaStream_t stream, bool foreign) const override {
    if (device.device_type != kDLCPU) return Route::empty(shape, dtype, device, stream, foreign);
    if (shape.ndim > kFewDims) check_numpy_ndim("interop: the result", shape.ndim);
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

void check_numpy_ndim(const std::string& label, int ndim) {
  static const Lookup version("numpy", "__version__");
  static int most = 0;  // found with the GIL: a static's initialiser would hold its lock across calls of Python
  if (most == 0) most = std::stoi(text_of(version.get())) < 2 ? kFewDims : kMaxDims;
  if (ndim <= most) return;
  throw ValueError(label + " has " + std::to_string(ndim) + " dimensions, and NumPy " + text_of(version.get()) +
                   " computes on the host; accepted: up to " + std::to_string(most) + ", or NumPy 2");
}

nb::handle numpy_dtype(DLDataType dtype) {
  if (PyObject* object = known_object(dtype)) return object;
  const std::string typestr = typestr_of(dtype);
  nb::object spelled = nb::none();
  if (!typestr.empty()) {
    spelled = nb::str(typestr.c_str());
  } else if (dtype_from_name(dtype_name(dtype))) {
    spelled = nb::getattr(nb::module_::import_("ml_dtypes"), dtype_name(dtype).c_str(), nb::none());
  }
  if (spelled.is_none())
    throw TypeError("interop: NumPy has no dtype for " + dtype_name(dtype) +
                    "; accepted: dtypes of NumPy and ml_dtypes, such as a view of another dtype (x.view in torch)");
  nb::object made = kDtype.get()(spelled);
  // Imports let other threads in, which may have added the same.
  if (PyObject* object = known_object(dtype)) return object;
  known[known_count++] = {dtype, made.inc_ref().ptr()};  // one for each spelling: fewer than kMaxKnown
  return made;
}

std::optional<DLDataType> dtype_of(nb::handle numpy_dtype_object) {
  for (int i = 0; i < known_count; ++i) {
    if (known[i].object == numpy_dtype_object.ptr()) return known[i].dtype;
  }
  const auto found = dtype_from_typestr(nb::cast<std::string>(attribute(numpy_dtype_object, kStr)));
  if (found) {
    numpy_dtype(*found);  // known by its address from now on
    return found;
  }
  // A dtype of ml_dtypes, whose typestr says its size only. A class of another package may have the same name.
  const auto named = dtype_from_name(text_of(numpy_dtype_object));
  const bool same = named && attribute(numpy_dtype_object, kType).is(attribute(numpy_dtype(*named), kType));
  return same ? named : std::nullopt;
}

nb::object numpy_in_silence() {
  nb::dict quiet;
  quiet["all"] = "ignore";
  return kErrstate.get()(**quiet);
}

const Route& numpy_route() {
  static const NumpyRoute route;
  return route;
}

}  // namespace interop::exchange
