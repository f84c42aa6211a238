/// Who computes a call, and where.
#include "exchange/door.h"

#include <memory>

#include "exchange/route.h"
#include "exchange/routes/torch.h"

namespace interop::exchange {
namespace {

Computes who_computes_of_torch(const char* function, const Argument* arrays, int count) {
  const TorchState state = torch_state(function);
  if (state.in_mode || state.in_trace || state.in_transform) return Computes::torch;
  bool has_gradient = false;
  for (int k = 0; k < count; ++k) {
    const Route* const route = find_route(arrays[k].object);
    if (route == &torch_subclass_route()) return Computes::torch;
    if (route != &torch_route()) continue;
    if (state.has_tangents && has_tangent(arrays[k].object)) return Computes::torch;
    has_gradient = has_gradient || records_gradient(arrays[k].object);
  }
  return has_gradient ? Computes::torch_autograd : Computes::interop_memory;
}

}  // namespace

Computes who_computes(const char* function, const Argument* arrays, int count, int all_count, nb::handle execution) {
  bool is_traced = false;
  for (int k = 0; k < count; ++k) {
    const Route& route = route_of(arrays[k].object, function, arrays[k].name);
    if (k == 0 && route.is_torch()) return who_computes_of_torch(function, arrays, all_count);
    const Tracing tracing = route.tracing();
    if (tracing == Tracing::none) return Computes::interop;
    is_traced |= tracing == Tracing::tracer;
  }
  return execution.is_none() || is_traced ? Computes::jax : Computes::interop;
}

DLDevice device_of(const char* function, const Argument* arrays, int count) {
  DLDevice found = {kDLCPU, 0};
  for (int k = 0; k < count; ++k) {
    const Route& route = route_of(arrays[k].object, function, arrays[k].name);
    if (&route == &torch_route()) {  // nothing else need be read
      if (is_on_host(arrays[k].object)) continue;
      if (is_on_cuda(arrays[k].object)) return {kDLCUDA, 0};
    }
    const auto operand = std::make_unique<Operand>();  // not on the stack: what is read may call interop again
    operand->function = function;
    operand->name = arrays[k].name;
    operand->object = arrays[k].object;
    operand->route = &route;
    operand->below_autograd = route.is_torch();
    route.enter(*operand);
    route.inspect(*operand);
    const DLDevice device = operand->tensor.device;
    if (device.device_type == kDLCUDA || device.device_type == kDLCUDAManaged) return {kDLCUDA, device.device_id};
    if (device.device_type != kDLCPU && device.device_type != kDLCUDAHost && found.device_type == kDLCPU)
      found = device;
  }
  return found;
}

bool is_concrete_in_jax(nb::handle x) {
  const Route* const route = find_route(x);
  return route && route->tracing() == Tracing::concrete;
}

}  // namespace interop::exchange
