/// Copies between arrays on a GPU, and between one and the host: which way the layouts allow.
#pragma once

#include <interop/elementwise.h>
#include <interop/tensor.h>

#include <optional>
#include <string>

#include "bindings/bindings.h"
#include "exchange/python.h"

typedef struct CUstream_st* cudaStream_t;

namespace interop::bindings {

/// Throws ValueError where `src` does not broadcast to the shape of `dst`, and TypeError where NumPy's rule
/// "same_kind", if it counts, does not allow the conversion.
void check_copy(const CopyNames& names, const DLTensor& dst, const DLTensor& src);
/// Throws TypeError where the GPU's kernels do not convert between two dtypes.
void check_conversion(const CopyNames& names, DLDataType dst, DLDataType src);

/// A copy on a GPU into `to`, of `from` broadcast to it. Any strides. The tensors outlive it.
class DeviceCopy {
 public:
  DeviceCopy(const DLTensor& to, const DLTensor& from);
  /// Of one value of the dtype of `to`.
  DeviceCopy(const DLTensor& to, const ScalarValue& value);

  /// Is each element read before it is written, and by itself? Else memory that the two share is a hazard.
  bool is_in_place() const;
  /// Is it one run of bytes, without a conversion?
  bool is_one_run() const;
  /// Queues the copy, on the device of both.
  void queue(cudaStream_t stream) const;

 private:
  size_t byte_count() const;

  Elementwise work_;
  DLDataType dtype_;
  const char* transfer_ = nullptr;  // its kind in a profile; null for a value, which lies nowhere
};

/// A copy between the host and a GPU, or two GPUs, that the copy engines do: rows of bytes, in up to two further
/// dimensions.
struct RowCopy {
  void* to;
  const void* from;
  size_t row_bytes, rows = 1, planes = 1;
  size_t to_pitch = 0, from_pitch = 0;  ///< in bytes, from row to row
  size_t to_plane = 0, from_plane = 0;  ///< and from plane to plane
  bool to_host = false, from_host = false;

  void queue(cudaStream_t stream) const;
};
/// None for other layouts, for rows that are too short to be worth it, and where the dtypes differ.
std::optional<RowCopy> as_rows(const DLTensor& to, const DLTensor& from);

/// A compact tensor of this shape at `memory`, which is for `device`.
class CompactTensor {
 public:
  CompactTensor(const DLTensor& shape, DLDataType dtype, DLDevice device, void* memory);
  CompactTensor(const CompactTensor&) = delete;
  CompactTensor& operator=(const CompactTensor&) = delete;
  const DLTensor& operator*() const { return tensor_; }

 private:
  int64_t strides_[kMaxDims];
  DLTensor tensor_;
};

inline size_t byte_count(const DLTensor& tensor, DLDataType dtype) {
  return static_cast<size_t>(element_count(tensor) * item_bytes(dtype));
}

}  // namespace interop::bindings
