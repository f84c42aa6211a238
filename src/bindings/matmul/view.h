/// A tensor's memory in another shape, as the products of a gradient take it.
#pragma once

#include <interop/tensor.h>
#include <nanobind/nanobind.h>

namespace interop::bindings {

/// A tensor's memory in another shape, which is changed step by step. Nothing is copied.
class View {
 public:
  View(const DLTensor& tensor, bool conjugated);
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  const DLTensor& operator*() const { return tensor_; }
  /// Are its values the conjugates of what lies in memory?
  bool conjugated() const { return conjugated_; }

  /// Puts a dimension of length 1 before dimension `place`.
  void insert(int place);
  /// Takes the adjoint of each matrix: exchanges the last two dimensions, and conjugates complex numbers.
  void adjoin();
  /// Lays stacks of matrices, (..., p, q) and (..., q, r) of one stack, end to end: (p, n q) and (n q, r), whose
  /// product is the sum of theirs. Changes neither, and returns false, where their memory has no such view.
  static bool fold(View& left, View& right);
  /// The same view of that memory in NumPy, of the array that NumPy has of the tensor.
  nanobind::object numpy(nanobind::handle array) const;

 private:
  bool merges(int kept, int64_t& stride) const;
  void take(int place, int kept, int64_t size, int64_t stride);

  Shape shape_;
  int64_t strides_[kMaxDims];
  DLTensor tensor_;
  bool conjugated_;
  bool reshaped_ = false, turned_ = false;  // what `numpy` does again
};

}  // namespace interop::bindings
