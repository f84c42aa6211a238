/// What Python knows of promotion, `interop._operations.promotion`, as C++ asks it.
#include "bindings/promotion.h"

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "exchange/python.h"
#include "exchange/routes/numpy.h"
#include "exchange/typestr.h"

namespace interop::bindings::promotion {
namespace {

using exchange::Lookup;
using exchange::numpy_dtype;

constexpr const char* kModule = "interop._operations.promotion";
const Lookup kPromote(kModule, "promote");
const Lookup kValueOf(kModule, "value_of");
const Lookup kConfiguredBy(kModule, "configured_by");

// ---- the dtypes of two arrays, kept ----

// Added to and read with the GIL, and never freed, as Python may be gone.

/// What tells the configuration of a library; None if promotion depends on none.
struct Library {
  std::string name;
  PyObject* configured_by;
};

const Library& library_called(const char* name) {
  static auto* const known = new std::vector<std::unique_ptr<Library>>;
  const auto find = [&]() -> const Library* {
    for (const auto& library : *known) {
      if (library->name == name) return library.get();
    }
    return nullptr;
  };
  if (const Library* found = find()) return *found;
  nb::object configured_by = kConfiguredBy.get()(name);
  if (const Library* found = find()) return *found;  // the first call imports, which lets other threads in
  known->push_back(std::make_unique<Library>(Library{name, configured_by.release().ptr()}));
  return *known->back();
}

nb::object configuration_of(const Library& library) {
  return library.configured_by == Py_None ? nb::none() : nb::handle(library.configured_by)();
}

/// An answer of a library, for one configuration.
struct Answer {
  const Library* library = nullptr;
  bool in_float = false;
  PromotedArray a{}, b{};
  PyObject* configuration = nullptr;
  DLDataType dtype{};

  bool is_of(const Answer& other) const {
    return library == other.library && in_float == other.in_float && a.dtype == other.a.dtype &&
           b.dtype == other.b.dtype && a.is_0d == other.a.is_0d && b.is_0d == other.b.is_0d;
  }
};

/// Where an answer is kept, until another one comes there.
Answer& place_of(const Answer& asked) {
  static auto* const places = new std::array<Answer, 256>;
  const auto number = [](const PromotedArray& x) { return x.dtype.code * 37u + x.dtype.bits * 3u + x.is_0d; };
  return (*places)[(number(asked.a) * 61u + number(asked.b) * 2u + asked.in_float) % places->size()];
}

nb::object described(const PromotedArray& x) { return nb::make_tuple(dtype_name(x.dtype), x.is_0d); }

}  // namespace

nb::object promote(const char* function, const char* library, bool in_float, nb::handle a, nb::handle b) {
  return kPromote.get()(function, library, in_float, a, b);
}

std::optional<DLDataType> promote_arrays(const char* function, const char* library, bool in_float,
                                         const PromotedArray& a, const PromotedArray& b) {
  Answer asked{&library_called(library), in_float, a, b, nullptr, {}};
  const nb::object configuration = configuration_of(*asked.library);
  Answer& place = place_of(asked);
  if (place.configuration == configuration.ptr() && place.is_of(asked)) return place.dtype;
  const nb::object name = promote(function, library, in_float, described(a), described(b));
  const auto found = exchange::dtype_from_name(nb::cast<std::string>(name));
  // Another thread may have changed the configuration while the library was asked.
  if (!found || !configuration_of(*asked.library).is(configuration)) return found;
  asked.dtype = *found;
  asked.configuration = configuration.inc_ref().ptr();
  std::swap(place, asked);
  Py_XDECREF(asked.configuration);
  return found;
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
