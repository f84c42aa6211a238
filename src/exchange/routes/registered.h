/// Array libraries that a user teaches from Python: `interop.register`.
#pragma once

#include "exchange/route.h"

namespace interop::exchange {

/// What `interop.register` was given; each object may be None, but for the type.
struct Registration {
  nb::object type;
  std::string name;
  nb::object export_array;    ///< (array) -> an object of a protocol, a capsule, or NotImplemented
  nb::object current_stream;  ///< (device ordinal) -> a stream
  nb::object empty;           ///< (shape, dtype, device, stream) -> an array
  bool writable = true;
};

/// Arrays of `type` and of its subclasses are read, ordered and made as the registration says, by calls that begin from
/// now on, and no longer as another one of the same type said. Throws ValueError for a type whose library interop
/// knows; TypeError for one that has no protocol and no `export_array`.
void register_library(Registration registration);

/// The route of the nearest registered type among the bases of `type`, or null.
const Route* registered_route(PyTypeObject* type);

}  // namespace interop::exchange
