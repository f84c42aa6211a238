/// CUDA streams as Python names them.
#include "exchange/stream.h"

namespace interop::exchange {
namespace {

const Name kProtocol("__cuda_stream__");
const Name kCudaStream("cuda_stream");
const Name kPtr("ptr");

bool is_int(nb::handle object) { return PyLong_Check(object.ptr()) && !PyBool_Check(object.ptr()); }

/// The handle that a stream object names, or a null object.
nb::object handle_of(nb::handle object) {
  if (nb::object method = attribute_or_null(object, kProtocol); method.is_valid()) {
    // The protocol is a method; some early producers have it as a plain tuple.
    const nb::object pair = PyCallable_Check(method.ptr()) ? method() : method;
    if (!nb::isinstance<nb::tuple>(pair) || nb::len(pair) != 2) return nb::object();
    return pair[1];
  }
  for (const Name* name : {&kCudaStream, &kPtr}) {
    if (nb::object value = attribute_or_null(object, *name); value.is_valid()) return value;
  }
  return nb::object();
}

}  // namespace

cudaStream_t stream_argument(nb::handle object, const char* function) {
  const nb::object handle = is_int(object) ? nb::borrow(object) : handle_of(object);
  if (!handle.is_valid() || !is_int(handle)) {
    throw TypeError(std::string(function) + ": stream is " + type_text(object) +
                    "; accepted: an int handle, or an object with __cuda_stream__, .cuda_stream or .ptr");
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(handle.ptr(), &overflow);
  if (overflow || value < 0) {
    throw ValueError(std::string(function) + ": stream is " + shown(handle) +
                     "; accepted: a CUDA stream handle, or 0 or 1 (legacy default), or 2 (per-thread default)");
  }
  return stream_from_handle(value);
}

}  // namespace interop::exchange
