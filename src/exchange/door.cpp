/// Who computes a call.
#include "exchange/door.h"

#include "exchange/route.h"

namespace interop::exchange {

Computes who_computes(const char* function, const Argument* arrays, int count, nb::handle execution) {
  bool is_traced = false;
  for (int k = 0; k < count; ++k) {
    const Tracing tracing = route_of(arrays[k].object, function, arrays[k].name).tracing();
    if (tracing == Tracing::none) return Computes::interop;
    is_traced |= tracing == Tracing::tracer;
  }
  return execution.is_none() || is_traced ? Computes::jax : Computes::interop;
}

bool is_concrete_in_jax(nb::handle x) {
  const Route* const route = find_route(x);
  return route && route->tracing() == Tracing::concrete;
}

}  // namespace interop::exchange
