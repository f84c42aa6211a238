/// What Python knows of promotion, `interop._operations.promotion`, as C++ asks it.
#include "bindings/promotion.h"

#include <cstring>

#include "exchange/python.h"
#include "exchange/routes/numpy.h"

namespace interop::bindings::promotion {
namespace {

using exchange::Lookup;
using exchange::numpy_dtype;

constexpr const char* kModule = "interop._operations.promotion";
const Lookup kPromote(kModule, "promote");
const Lookup kValueOf(kModule, "value_of");

}  // namespace

nb::object promote(const char* function, const char* library, bool in_float, nb::handle a, nb::handle b) {
  return kPromote.get()(function, library, in_float, a, b);
}

ScalarValue element_of(const char* function, const char* parameter, nb::handle scalar, DLDataType dtype) {
  const nb::object found = kValueOf.get()(function, parameter, scalar, numpy_dtype(dtype));
  return value_of_bytes(nb::object(found[0]), dtype);
}

ScalarValue compared_of(const char* function, nb::object& comparison, const char* parameter, nb::handle scalar,
                        DLDataType dtype, bool is_left) {
  const nb::object found =
      kValueOf.get()(function, parameter, scalar, numpy_dtype(dtype), nb::none(), comparison, is_left);
  comparison = found[1];
  return value_of_bytes(nb::object(found[0]), dtype);
}

ScalarValue factor_of(const char* function, const char* parameter, nb::handle factor, DLDataType result,
                      DLDataType dtype) {
  const nb::object found = kValueOf.get()(function, parameter, factor, numpy_dtype(dtype), numpy_dtype(result));
  return value_of_bytes(nb::object(found[0]), dtype);
}

ScalarValue value_of_bytes(nb::handle bytes, DLDataType dtype) {
  ScalarValue value{};
  std::memcpy(value.bytes, PyBytes_AS_STRING(bytes.ptr()), static_cast<size_t>(item_bytes(dtype)));
  return value;
}

}  // namespace interop::bindings::promotion
