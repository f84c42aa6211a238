/// Where an array lies, before a call is made of it.
#include "exchange/place.h"

#include <interop/cuda/memory.h>

#include "exchange/array/array.h"
#include "exchange/route.h"

namespace interop::exchange {

Place find_place(nb::handle array, const char* function, const char* name) {
  Operand operand;
  operand.function = function;
  operand.name = name;
  operand.object = array;
  operand.route = &route_of(array, function, name);
  operand.route->enter(operand);
  operand.route->inspect(operand);
  const DLTensor& tensor = operand.tensor;
  Place place;
  place.is_ours = nb::isinstance<Array>(array) && !nb::cast<const Array&>(array).is_view;
  switch (tensor.device.device_type) {
    case kDLCUDA:
      place.gpu = tensor.device.device_id;
      break;
    case kDLCUDAManaged:
      place.gpu = tensor.data ? cuda::pointer_device(tensor.data).value_or(0) : 0;
      break;
    case kDLCUDAHost:
      place.is_pinned = true;
      break;
    default:
      place.plain = tensor.data;
  }
  return place;
}

void Place::ask_driver() {
  if (plain) is_pinned = cuda::has_gpu() && cuda::pointer_device(plain).has_value();
}

}  // namespace interop::exchange
