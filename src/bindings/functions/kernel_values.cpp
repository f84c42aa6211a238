/// The values of a kernel's parameters: pointers, views, mdspans, tensor maps and numbers, where the driver reads them.
#include "bindings/functions/kernel_values.h"

#include <interop/error.h>

#include <cstring>
#include <string>

namespace interop::bindings {

using Kind = KernelParameter::Kind;

KernelValues::KernelValues(const KernelDeclaration& kernel, const MdspanLayouts* mdspans,
                           const KernelArguments& arguments) {
  size_t next_mdspan = 0;
  int place = 0;
  for (const KernelParameter& parameter : kernel.parameters) {
    unsigned char* const at = bytes_ + parameter.offset;
    pointers_[place] = at;
    const char* const name = parameter.name.c_str();
    switch (parameter.kind) {
      case Kind::scalar:
        std::memcpy(at, arguments.scalars[place].bytes, parameter.bytes());
        break;
      case Kind::pointer:
        std::memcpy(at, &arguments.tensors[place]->data, sizeof(void*));
        break;
      case Kind::view:
        put_view(parameter, *arguments.tensors[place], arguments.fault, place);
        break;
      case Kind::mdspan: {
        const DLTensor& tensor = *arguments.tensors[place];
        check_mdspan_indices(parameter.mdspan, tensor, kernel.label, name);
        put_mdspan(parameter.mdspan, mdspans->at(next_mdspan++), tensor, at);
        break;
      }
      case Kind::map:
        if (arguments.is_empty) break;
        const char* const array = kernel.parameters[static_cast<size_t>(parameter.map_of)].name.c_str();
        const cuda::TensorMap map =
            parameter.maps->of(*arguments.tensors[parameter.map_of], arguments.device, kernel.label, array);
        std::memcpy(at, map.bytes, sizeof map.bytes);
    }
    ++place;
  }
}

void KernelValues::put_view(const KernelParameter& parameter, const DLTensor& tensor, IndexFault* fault, int place) {
  unsigned char* at = bytes_ + parameter.offset;
  const size_t bytes = sizeof(int64_t) * static_cast<size_t>(parameter.ndim);
  std::memcpy(at, &tensor.data, sizeof tensor.data);
  at += sizeof tensor.data;
  std::memcpy(at, tensor.shape, bytes);
  std::memcpy(at + bytes, tensor.strides, bytes);
  if (!parameter.checked) return;
  at += 2 * bytes;
  std::memcpy(at, &fault, sizeof fault);
  std::memcpy(at + sizeof fault, &place, sizeof place);
}

void check_compact(const char* function, const KernelParameter& parameter, const Shape& shape) {
  const char* const name = parameter.name.c_str();
  if (parameter.kind == Kind::mdspan) {
    int64_t strides[kMaxDims];
    compact_strides(shape.sizes, shape.ndim, strides);
    DLTensor tensor{};
    tensor.ndim = shape.ndim;
    tensor.shape = const_cast<int64_t*>(shape.sizes);  // which nothing writes to
    tensor.strides = strides;
    return check_mdspan_form(parameter.mdspan, tensor, function, name);
  }
  const bool is_any = parameter.kind == Kind::pointer && parameter.ndim == 0;
  if (is_any || shape.ndim == parameter.ndim) return;
  throw ValueError(std::string(function) + ": the shape of " + name + " is " + shape_text(shape) +
                   "; accepted: " + std::to_string(parameter.ndim) + " dimensions, as it is a " +
                   (parameter.kind == Kind::view ? "view" : "tensor map") + " of so many");
}

}  // namespace interop::bindings
