/// Copies between arrays on a GPU, and between one and the host: which way the layouts allow.
#include "bindings/memory/copies.h"

#include <interop/cuda/elementwise.h>
#include <interop/cuda/memory.h>
#include <interop/error.h>
#include <interop/profile.h>

#include "ops/elementwise.h"

namespace interop::bindings {
namespace {

constexpr size_t kLeastRow = 64;                 // bytes: of shorter rows the copy engines move few in a second
constexpr int64_t kMostPitch = (1LL << 31) - 1;  // bytes, of CUDA's copies

/// Bool, unsigned and signed integers, floats, complex numbers: NumPy's order, in which a kind holds those before it.
int kind_rank(DLDataType dtype) {
  switch (dtype.code) {
    case kDLBool:
      return 0;
    case kDLUInt:
      return 1;
    case kDLInt:
      return 2;
    case kDLComplex:
      return 4;
    default:
      return 3;
  }
}

/// Is there a kernel that reads `src` as `dst`? Of floats none makes integers: what a dtype cannot hold is undefined.
bool has_kernel(DLDataType dst, DLDataType src) {
  if (!is_served(dst) || !is_served(src)) return false;
  if (dst.code == kDLBool) return src.code == kDLBool;
  return dst.code == kDLComplex || (src.code != kDLComplex && (is_float(dst) || is_integral(src)));
}

/// A dtype whose elements are moved as they are: that of the same size.
DLDataType bits_of(DLDataType dtype) {
  const auto bits = static_cast<uint8_t>(8 * item_bytes(dtype));
  return bits == 128 ? DLDataType{kDLComplex, 128, 1} : DLDataType{kDLUInt, bits, 1};
}

bool is_host(const DLTensor& tensor) {
  return tensor.device.device_type == kDLCPU || tensor.device.device_type == kDLCUDAHost;
}

DLTensor as_dtype(DLTensor tensor, DLDataType dtype) {
  tensor.dtype = dtype;
  return tensor;
}

/// Where rows lie along a dimension of a loop; none where the copy engines cannot go.
std::optional<size_t> pitch_of(int64_t stride, int64_t item) {
  if (stride <= 0 || stride > kMostPitch / item) return std::nullopt;
  return static_cast<size_t>(stride * item);
}

}  // namespace

void check_conversion(const CopyNames& names, DLDataType dst, DLDataType src) {
  if (dst == src || has_kernel(dst, src)) return;
  const std::string accepted = is_served(dst) && is_served(src)
                                   ? "integers to integers, floats or complex numbers, floats to floats or complex "
                                     "numbers; x.to(memory='host').astype(dtype) for all others"
                                   : std::string("one dtype for both, or two of ") + ops::kServedDtypes;
  throw TypeError(std::string(names.function) + ": " + names.src + " is " + dtype_name(src) + " and " + names.dst +
                  " is " + dtype_name(dst) + ", which no kernel converts; accepted: " + accepted);
}

void check_copy(const CopyNames& names, const DLTensor& dst, const DLTensor& src) {
  const int lead = dst.ndim - src.ndim;
  bool fits = lead >= 0;
  for (int i = 0; fits && i < src.ndim; ++i) fits = src.shape[i] == 1 || src.shape[i] == dst.shape[lead + i];
  if (!fits) {
    throw ValueError(std::string(names.function) + ": " + names.src + " has shape " + shape_text(src) +
                     ", which does not broadcast to that of " + names.dst + ", " + shape_text(dst) +
                     "; accepted: a shape that does");
  }
  if (!names.to_any_kind && kind_rank(src.dtype) > kind_rank(dst.dtype)) {
    throw TypeError(std::string(names.function) + ": " + names.src + " is " + dtype_name(src.dtype) + ", and " +
                    names.dst + " is " + dtype_name(dst.dtype) +
                    "; accepted: a dtype of the same kind, or of one that holds it");
  }
}

DeviceCopy::DeviceCopy(const DLTensor& to, const DLTensor& from)
    : transfer_(profile::kind_of_transfer(is_host(from), is_host(to))) {
  dtype_ = to.dtype == from.dtype ? bits_of(to.dtype) : to.dtype;
  const DLTensor input = to.dtype == from.dtype ? as_dtype(from, dtype_) : from;
  ops::plan_pass(work_, as_dtype(to, dtype_), &input, 1);
}

DeviceCopy::DeviceCopy(const DLTensor& to, const ScalarValue& value) : dtype_(bits_of(to.dtype)) {
  DLTensor input = ops::kValueInput;
  ops::plan_pass(work_, as_dtype(to, dtype_), &input, 1);
  work_.values[0] = value;
}

size_t DeviceCopy::byte_count() const {
  int64_t count = 1;
  for (int i = 0; i < work_.loop.ndim; ++i) count *= work_.loop.sizes[i];
  return static_cast<size_t>(count * item_bytes(work_.out_dtype));
}

bool DeviceCopy::is_in_place() const { return ops::is_in_place(work_, 0); }

bool DeviceCopy::is_one_run() const {
  const Loop& loop = work_.loop;
  const bool is_compact = loop.ndim == 0 || (loop.ndim == 1 && loop.strides[0][0] == 1 && loop.strides[1][0] == 1);
  return is_compact && work_.inputs[0].data && work_.inputs[0].dtype == work_.out_dtype;
}

void DeviceCopy::queue(cudaStream_t stream) const {
  if (work_.loop.layout == LayoutClass::empty) return;
  if (!is_one_run()) {
    const profile::Stopwatch watch;
    cuda::launch_elementwise(ElementwiseStep{ElementwiseOp::copy, dtype_}, work_, stream);
    if (transfer_) watch.note(profile::What::transfer, transfer_, byte_count());
    return;
  }
  cuda::copy(work_.out, work_.inputs[0].data, byte_count(), stream);
}

void RowCopy::queue(cudaStream_t stream) const {
  if (row_bytes == 0 || rows == 0 || planes == 0) return;
  const cuda::Rows target{to, to_pitch, to_plane, to_host};
  const cuda::Rows source{const_cast<void*>(from), from_pitch, from_plane, from_host};
  if (rows == 1 && planes == 1) {
    cuda::copy(to, from, row_bytes, stream);
  } else {
    cuda::copy_rows(target, source, row_bytes, rows, planes, stream);
  }
}

std::optional<RowCopy> as_rows(const DLTensor& to, const DLTensor& from) {
  if (to.dtype != from.dtype) return std::nullopt;
  Loop loop;
  DLTensor out = to, in = from;
  ops::plan_loop(loop, out, &in, 1);
  const int64_t item = item_bytes(to.dtype);
  RowCopy copy{out.data, in.data, static_cast<size_t>(item)};
  copy.to_host = is_host(to);
  copy.from_host = is_host(from);
  if (loop.layout == LayoutClass::empty) copy.rows = 0;
  if (loop.ndim == 0 || copy.rows == 0) return copy;
  const int last = loop.ndim - 1;
  if (loop.ndim > 3 || loop.strides[0][last] != 1 || loop.strides[1][last] != 1) return std::nullopt;
  copy.row_bytes = static_cast<size_t>(loop.sizes[last] * item);
  if (loop.ndim == 1) return copy;
  const auto to_pitch = pitch_of(loop.strides[0][last - 1], item),
             from_pitch = pitch_of(loop.strides[1][last - 1], item);
  if (!to_pitch || !from_pitch || copy.row_bytes < kLeastRow) return std::nullopt;
  if (*to_pitch < copy.row_bytes || *from_pitch < copy.row_bytes) return std::nullopt;
  copy.rows = static_cast<size_t>(loop.sizes[last - 1]);
  copy.to_pitch = *to_pitch;
  copy.from_pitch = *from_pitch;
  if (loop.ndim == 2) return copy;
  const auto plane = [&](int k, size_t pitch) -> std::optional<size_t> {  // a whole number of rows
    const int64_t stride = loop.strides[k][0];
    if (stride <= 0) return std::nullopt;
    const auto bytes = static_cast<size_t>(stride * item);
    return bytes % pitch == 0 && bytes >= pitch * copy.rows ? std::optional(bytes) : std::nullopt;
  };
  const auto to_plane = plane(0, *to_pitch), from_plane = plane(1, *from_pitch);
  if (!to_plane || !from_plane) return std::nullopt;
  copy.planes = static_cast<size_t>(loop.sizes[0]);
  copy.to_plane = *to_plane;
  copy.from_plane = *from_plane;
  return copy;
}

CompactTensor::CompactTensor(const DLTensor& shape, DLDataType dtype, DLDevice device, void* memory)
    : tensor_{memory, device, shape.ndim, dtype, shape.shape, strides_, 0} {
  compact_strides(shape.shape, shape.ndim, strides_);
}

}  // namespace interop::bindings
