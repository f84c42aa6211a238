/// What bindings of elementwise operations and expressions share.
#pragma once

#include <interop/elementwise.h>

namespace interop::bindings {

/// A compact array at `memory`, for a result that is computed beside an `out` that overlaps what is read.
class Temporary {
 public:
  Temporary(const Shape& shape, DLDataType dtype, void* memory) : shape_(shape) {
    compact_strides(shape_.sizes, shape_.ndim, strides_);
    tensor_ = {memory, {kDLCUDA, 0}, shape_.ndim, dtype, shape_.sizes, strides_, 0};
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  const DLTensor& operator*() const { return tensor_; }

 private:
  Shape shape_;
  int64_t strides_[kMaxDims];
  DLTensor tensor_;
};

/// to = from
Elementwise copy_of(const DLTensor& from, DLTensor to);

}  // namespace interop::bindings
