/// What Python knows of promotion, `interop._operations.promotion`, as C++ asks it.
#include "bindings/promotion.h"

#include <nanobind/stl/string.h>

#include "exchange/python.h"
#include "exchange/routes/numpy.h"

namespace interop::bindings::promotion {
namespace {

using exchange::Lookup;
using exchange::numpy_dtype;

constexpr const char* kModule = "interop._operations.promotion";
const Lookup kPromote(kModule, "promote");
const Lookup kConfiguration(kModule, "configuration");
const Lookup kSideOf(kModule, "side_of");
const Lookup kComparisonOf(kModule, "comparison_of");
const Lookup kElementOf(kModule, "element_of");
const Lookup kBytesOf(kModule, "bytes_of");
const Lookup kFactorOf(kModule, "factor_of");
const Lookup kDtypeName(kModule, "dtype_name");

}  // namespace

nb::object promote(const char* function, const char* library, bool in_float, nb::handle a, nb::handle b) {
  return kPromote.get()(function, library, in_float, a, b);
}

nb::object configuration(const char* library) { return kConfiguration.get()(library); }

int side_of(nb::handle scalar, DLDataType dtype) { return nb::cast<int>(kSideOf.get()(scalar, numpy_dtype(dtype))); }

nb::object comparison_of(const char* function, const char* comparison, const char* parameter, nb::handle scalar,
                         DLDataType dtype, bool is_left) {
  return kComparisonOf.get()(function, comparison, parameter, scalar, numpy_dtype(dtype), is_left);
}

nb::object element_of(const char* function, const char* parameter, nb::handle scalar, DLDataType dtype) {
  return kElementOf.get()(function, parameter, scalar, numpy_dtype(dtype));
}

nb::object bytes_of(nb::handle scalar, DLDataType dtype) { return kBytesOf.get()(scalar, numpy_dtype(dtype)); }

nb::object factor_of(const char* function, const char* parameter, nb::handle factor, DLDataType result,
                     DLDataType dtype) {
  return kFactorOf.get()(function, parameter, factor, numpy_dtype(result), numpy_dtype(dtype));
}

std::string dtype_name(const char* function, nb::handle dtype) {
  return nb::cast<std::string>(kDtypeName.get()(function, dtype));
}

}  // namespace interop::bindings::promotion
