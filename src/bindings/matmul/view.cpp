/// A tensor's memory in another shape, as the products of a gradient take it.
#include "bindings/matmul/view.h"

#include <algorithm>
#include <string>

#include "bindings/matmul/terms.h"
#include "exchange/python.h"
#include "exchange/routes/numpy.h"

namespace interop::bindings {
namespace {

const exchange::Lookup kSwap("numpy", "swapaxes"), kAsStrided("numpy.lib.stride_tricks", "as_strided");

}  // namespace

View::View(const DLTensor& tensor, bool conjugated) : tensor_(tensor), conjugated_(conjugated) {
  shape_.ndim = tensor.ndim;
  std::copy(tensor.shape, tensor.shape + tensor.ndim, shape_.sizes);
  std::copy(tensor.strides, tensor.strides + tensor.ndim, strides_);
  tensor_.shape = shape_.sizes;
  tensor_.strides = strides_;
}

void View::insert(int place) {
  reshaped_ = true;
  int& ndim = tensor_.ndim;
  if (ndim == kMaxDims) {
    throw ValueError(std::string(kMatmul) + ": a gradient of " + std::to_string(ndim) +
                     " dimensions; accepted: one less, where an operand is a vector");
  }
  std::copy_backward(shape_.sizes + place, shape_.sizes + ndim, shape_.sizes + ndim + 1);
  std::copy_backward(strides_ + place, strides_ + ndim, strides_ + ndim + 1);
  shape_.sizes[place] = 1;
  strides_[place] = 1;
  shape_.ndim = ++ndim;
}

void View::adjoin() {
  turned_ = !turned_;
  transpose_matrices(tensor_);
  if (tensor_.dtype.code == kDLComplex) conjugated_ = !conjugated_;
}

/// Are all dimensions but `kept` one, in memory? Then `stride` is that one's.
bool View::merges(int kept, int64_t& stride) const {
  stride = 1;
  int64_t size = 1;
  for (int i = tensor_.ndim - 1; i >= 0; --i) {
    if (i == kept || shape_.sizes[i] == 1) continue;
    if (size == 1) {
      stride = strides_[i];
    } else if (strides_[i] != stride * size) {
      return false;
    }
    size *= shape_.sizes[i];
  }
  return true;
}

/// Becomes a matrix, in which dimension `kept` is that at `place`, and all others are one.
void View::take(int place, int kept, int64_t size, int64_t stride) {
  reshaped_ = true;
  const int64_t kept_size = shape_.sizes[kept], kept_stride = strides_[kept];
  shape_.ndim = tensor_.ndim = 2;
  shape_.sizes[place] = kept_size;
  strides_[place] = kept_stride;
  shape_.sizes[1 - place] = size;
  strides_[1 - place] = stride;
}

bool View::fold(View& left, View& right) {
  const int ndim = left.tensor_.ndim;
  if (ndim != right.tensor_.ndim || !std::equal(left.shape_.sizes, left.shape_.sizes + ndim - 2, right.shape_.sizes)) {
    return false;
  }
  int64_t left_stride, right_stride;
  if (!left.merges(ndim - 2, left_stride) || !right.merges(ndim - 1, right_stride)) return false;
  int64_t size = left.shape_.sizes[ndim - 1];
  for (int i = 0; i < ndim - 2; ++i) size *= left.shape_.sizes[i];
  left.take(0, ndim - 2, size, left_stride);
  right.take(1, ndim - 1, size, right_stride);
  return true;
}

nb::object View::numpy(nb::handle array) const {
  if (!reshaped_) return turned_ ? kSwap.get()(array, -1, -2) : nb::borrow(array);
  Shape steps;
  steps.ndim = tensor_.ndim;
  for (int i = 0; i < tensor_.ndim; ++i) steps.sizes[i] = strides_[i] * item_bytes(tensor_.dtype);
  return kAsStrided.get()(array, exchange::shape_tuple(shape_), exchange::shape_tuple(steps));
}

}  // namespace interop::bindings
