/// The values of a kernel's parameters in one launch.
#pragma once

#include <interop/tensor.h>
#include <interop/view.cuh>

#include "bindings/functions/kernel_declaration.h"
#include "bindings/functions/mdspan.h"

namespace interop::bindings {

/// What they are made of, in one call.
struct KernelArguments {
  const DLTensor* const* tensors;  // by parameter; null where it takes no array
  const ScalarValue* scalars;      // by parameter
  int device;
  IndexFault* fault;  // where a view that is checked notes a fault; null: it checks nothing
  bool is_empty;      // nothing is launched: arrays may have no elements, of which there is no tensor map
};

/// The values, where the driver reads them.
class KernelValues {
 public:
  /// Throws TypeError or ValueError for an array that a tensor map or an mdspan does not take.
  KernelValues(const KernelDeclaration& kernel, const MdspanLayouts* mdspans, const KernelArguments& arguments);
  KernelValues(const KernelValues&) = delete;
  KernelValues& operator=(const KernelValues&) = delete;

  void** pointers() { return pointers_; }

 private:
  void put_view(const KernelParameter& parameter, const DLTensor& tensor, IndexFault* fault, int place);

  alignas(cuda::TensorMap) unsigned char bytes_[kMostParameterBytes];
  void* pointers_[kMostParameters];
};

/// Throws ValueError where the parameter, a view, an mdspan or a tensor map, does not take a compact array of that
/// shape: a result that the call makes, or one of XLA's.
void check_compact(const char* function, const KernelParameter& parameter, const Shape& shape);

}  // namespace interop::bindings
