/// Facts of a DLTensor: names, counts, layouts, overlaps.
#include <interop/tensor.h>

#include <algorithm>
#include <utility>

namespace interop {

std::string dtype_name(DLDataType dtype) {
  const std::string bits = std::to_string(dtype.bits);
  if (dtype.lanes == 1) {
    switch (dtype.code) {
      case kDLInt:
        return "int" + bits;
      case kDLUInt:
        return "uint" + bits;
      case kDLFloat:
        return "float" + bits;
      case kDLBfloat:
        return "bfloat" + bits;
      case kDLComplex:
        return "complex" + bits;
      default:
        break;
    }
  }
  if (dtype.lanes == 1 && dtype.bits == 8) {
    switch (dtype.code) {
      case kDLBool:
        return "bool";
      case kDLFloat8_e3m4:
        return "float8_e3m4";
      case kDLFloat8_e4m3:
        return "float8_e4m3";
      case kDLFloat8_e4m3b11fnuz:
        return "float8_e4m3b11fnuz";
      case kDLFloat8_e4m3fn:
        return "float8_e4m3fn";
      case kDLFloat8_e4m3fnuz:
        return "float8_e4m3fnuz";
      case kDLFloat8_e5m2:
        return "float8_e5m2";
      case kDLFloat8_e5m2fnuz:
        return "float8_e5m2fnuz";
      case kDLFloat8_e8m0fnu:
        return "float8_e8m0fnu";
      default:
        break;
    }
  }
  return "dtype(code=" + std::to_string(dtype.code) + ", bits=" + bits + ", lanes=" + std::to_string(dtype.lanes) + ")";
}

std::string shape_text(const int64_t* sizes, int ndim) {
  std::string text = "(";
  for (int i = 0; i < ndim; ++i) {
    text += (i ? ", " : "") + std::to_string(sizes[i]);
  }
  return text + (ndim == 1 ? ",)" : ")");
}

std::string device_text(DLDevice device) {
  const std::string id = std::to_string(device.device_id);
  switch (device.device_type) {
    case kDLCPU:
      return "cpu";
    case kDLCUDA:
      return "cuda:" + id;
    case kDLCUDAHost:
      return "pinned host memory";
    case kDLCUDAManaged:
      return "CUDA managed memory";
    default:
      return "DLPack device type " + std::to_string(static_cast<int>(device.device_type)) + ", id " + id;
  }
}

bool is_beyond_counting(const DLTensor& tensor) {
  double bytes = static_cast<double>(item_bytes(tensor.dtype));
  // As in NumPy, sizes of 0 do not count: the compact strides of an empty array must not overflow either.
  for (int i = 0; i < tensor.ndim; ++i) bytes *= tensor.shape[i] > 0 ? static_cast<double>(tensor.shape[i]) : 1.0;
  return bytes > 0x1p62;
}

void compact_strides(const int64_t* sizes, int ndim, int64_t* strides) {
  uint64_t stride = 1;  // wraps around for shapes beyond counting, which are refused in their place
  for (int i = ndim - 1; i >= 0; --i) {
    strides[i] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(std::max<int64_t>(sizes[i], 1));
  }
}

void transpose_matrices(DLTensor& tensor) {
  const int last = tensor.ndim - 1;
  std::swap(tensor.shape[last], tensor.shape[last - 1]);
  std::swap(tensor.strides[last], tensor.strides[last - 1]);
}

bool is_compact(const DLTensor& tensor) {
  int64_t expected = 1;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return element_count(tensor) == 0;
    expected *= tensor.shape[i];
  }
  return true;
}

bool is_compact_backwards(const DLTensor& tensor) {
  int64_t expected = 1;
  for (int i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return element_count(tensor) == 0;
    expected *= tensor.shape[i];
  }
  return true;
}

ByteRange byte_range(const DLTensor& tensor) {
  if (element_count(tensor) == 0) return {};
  int64_t low = 0;
  int64_t high = 0;
  for (int i = 0; i < tensor.ndim; ++i) {
    const int64_t reach = (tensor.shape[i] - 1) * tensor.strides[i];
    (reach < 0 ? low : high) += reach;
  }
  const auto base = reinterpret_cast<uintptr_t>(tensor.data);
  const int64_t item = item_bytes(tensor.dtype);
  return {base + static_cast<uintptr_t>(low * item), base + static_cast<uintptr_t>((high + 1) * item)};
}

bool may_overlap_itself(const DLTensor& tensor) {
  if (element_count(tensor) <= 1 || is_compact(tensor)) return false;
  std::pair<int64_t, int64_t> dims[kMaxDims];  // (step, size) of every dimension that moves
  int count = 0;
  for (int i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] > 1) dims[count++] = {std::abs(tensor.strides[i]), tensor.shape[i]};
  }
  std::sort(dims, dims + count);
  int64_t reach = 0;  // the furthest element that the dimensions so far can name
  for (int i = 0; i < count; ++i) {
    if (dims[i].first <= reach) return true;
    reach += (dims[i].second - 1) * dims[i].first;
  }
  return false;
}

bool is_same(const DLTensor& x, const DLTensor& y) {
  return x.data == y.data && x.dtype == y.dtype && x.ndim == y.ndim && std::equal(x.shape, x.shape + x.ndim, y.shape) &&
         std::equal(x.strides, x.strides + x.ndim, y.strides);
}

bool is_dense(const DLTensor& tensor) {
  const ByteRange range = byte_range(tensor);
  const auto bytes = static_cast<uintptr_t>(element_count(tensor) * item_bytes(tensor.dtype));
  return range.end - range.begin == bytes && !may_overlap_itself(tensor);
}

bool is_integral(DLDataType dtype) { return dtype.code == kDLInt || dtype.code == kDLUInt || dtype.code == kDLBool; }

bool is_float(DLDataType dtype) { return dtype.code == kDLFloat || dtype.code == kDLBfloat; }

bool is_served(DLDataType dtype) {
  if (dtype.lanes != 1) return false;
  switch (dtype.code) {
    case kDLBool:
      return dtype.bits == 8;
    case kDLInt:
    case kDLUInt:
      return dtype.bits == 8 || dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64;
    case kDLFloat:
      return dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64;
    case kDLBfloat:
      return dtype.bits == 16;
    case kDLComplex:
      return dtype.bits == 64 || dtype.bits == 128;
    default:
      return false;
  }
}

}  // namespace interop
