/// The tensor maps of kernels that users wrote: what TMA takes, and the maps that are kept.
#include <interop/cuda/tensor_map.h>

#include <interop/error.h>

#include <algorithm>
#include <optional>
#include <string>

#include "cuda/driver/driver_api.h"

namespace interop::cuda {
namespace {

static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) >= alignof(CUtensorMap));

constexpr int64_t kMostBox = 256, kMostSize = int64_t{1} << 32, kMostStride = int64_t{1} << 40;
constexpr int64_t kUnit = 16;  // bytes

std::optional<CUtensorMapDataType> type_of(DLDataType dtype) {
  if (dtype.lanes != 1) return std::nullopt;
  switch (dtype.code * 256 + dtype.bits) {
    case kDLUInt * 256 + 8:
    case kDLInt * 256 + 8:  // TMA moves bytes
    case kDLBool * 256 + 8:
    case kDLFloat8_e4m3fn * 256 + 8:
    case kDLFloat8_e5m2 * 256 + 8:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    case kDLUInt * 256 + 16:
    case kDLInt * 256 + 16:
      return CU_TENSOR_MAP_DATA_TYPE_UINT16;
    case kDLUInt * 256 + 32:
      return CU_TENSOR_MAP_DATA_TYPE_UINT32;
    case kDLInt * 256 + 32:
      return CU_TENSOR_MAP_DATA_TYPE_INT32;
    case kDLUInt * 256 + 64:
      return CU_TENSOR_MAP_DATA_TYPE_UINT64;
    case kDLInt * 256 + 64:
      return CU_TENSOR_MAP_DATA_TYPE_INT64;
    case kDLFloat * 256 + 16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case kDLFloat * 256 + 32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case kDLFloat * 256 + 64:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT64;
    case kDLBfloat * 256 + 16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    default:
      return std::nullopt;
  }
}

/// The rules for one array.
class Rules {
 public:
  Rules(const TensorMapForm& form, const DLTensor& tensor, const char* function, const char* name)
      : form_(form), tensor_(tensor), function_(function), name_(name), item_(item_bytes(tensor.dtype)) {}

  void check() const {
    check_dtype();
    check_box();
    check_sizes();
    check_strides();
    const auto address = reinterpret_cast<uintptr_t>(tensor_.data);
    if (address % kUnit != 0) {
      refuse("starts at an address that is not a multiple of 16 bytes, as TMA needs", "an aligned array");
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& found, const std::string& accepted) const {
    throw ValueError(std::string(function_) + ": " + name_ + " " + found + "; accepted for a tensor map: " + accepted);
  }

  void check_dtype() const {
    if (!type_of(tensor_.dtype)) {
      throw TypeError(std::string(function_) + ": " + name_ + " is " + dtype_name(tensor_.dtype) +
                      "; accepted for a tensor map: bool, integers, float8, float16, bfloat16, float32, float64");
    }
    if (form_.fills_nan && !is_float(tensor_.dtype)) {
      throw TypeError(std::string(function_) + ": " + name_ + " is " + dtype_name(tensor_.dtype) +
                      "; accepted for a tensor map with oob_fill='nan': float16, bfloat16, float32, float64");
    }
  }

  void check_box() const {
    const int64_t bytes = form_.box[form_.ndim - 1] * item_;
    const std::string found =
        "is " + dtype_name(tensor_.dtype) + ", so that a row of the box has " + std::to_string(bytes) + " bytes";
    if (bytes % kUnit != 0) refuse(found, "a box whose rows are multiples of 16 bytes");
    if (form_.swizzle != 0 && bytes > form_.swizzle) {
      refuse(found, "with swizzle=" + std::to_string(form_.swizzle) + " rows of up to so many bytes");
    }
  }

  void check_sizes() const {
    for (int d = 0; d < form_.ndim; ++d) {
      if (tensor_.shape[d] < 1) refuse("has no elements", "at least one");
      if (tensor_.shape[d] > kMostSize) refuse("has shape " + shape_text(tensor_), "sizes up to 2**32");
    }
  }

  void check_strides() const {
    const int last = form_.ndim - 1;
    const auto has = [&] { return "has strides " + shape_text(tensor_.strides, form_.ndim) + ", in elements"; };
    if (tensor_.shape[last] > 1 && tensor_.strides[last] != 1) refuse(has(), "1 for the last dimension");
    for (int d = 0; d < last; ++d) {
      if (tensor_.shape[d] == 1) continue;
      const int64_t stride = tensor_.strides[d];
      if (stride < 0 || stride >= kMostStride / item_) refuse(has(), "strides from 0 to below 2**40 bytes");
      if (stride * item_ % kUnit != 0) {
        refuse(has() + " of " + dtype_name(tensor_.dtype),
               "multiples of 16 bytes for all dimensions but the last, such as rows of " +
                   std::to_string((stride * item_ + kUnit - 1) / kUnit * kUnit / item_) + " elements");
      }
    }
  }

  const TensorMapForm& form_;
  const DLTensor& tensor_;
  const char* function_;
  const char* name_;
  int64_t item_;
};

/// The driver counts dimensions from the fastest one.
void encode(TensorMap& map, const TensorMapForm& form, const DLTensor& tensor, const std::string& doing) {
  const int64_t item = item_bytes(tensor.dtype);
  cuuint64_t sizes[kTensorMapDims], strides[kTensorMapDims];  // strides: from the second dimension on
  cuuint32_t box[kTensorMapDims], steps[kTensorMapDims];
  for (int i = 0; i < form.ndim; ++i) {
    const int d = form.ndim - 1 - i;
    sizes[i] = static_cast<cuuint64_t>(tensor.shape[d]);
    box[i] = form.box[d];
    steps[i] = 1;
    // That of a dimension of one element is never used, and may be any number.
    if (i > 0) strides[i - 1] = static_cast<cuuint64_t>(tensor.shape[d] == 1 ? kUnit : tensor.strides[d] * item);
  }
  const auto swizzle = form.swizzle == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                       : form.swizzle == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                       : form.swizzle == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                            : CU_TENSOR_MAP_SWIZZLE_NONE;
  const auto promotion = form.l2_promotion == 256   ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B
                         : form.l2_promotion == 128 ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B
                         : form.l2_promotion == 64  ? CU_TENSOR_MAP_L2_PROMOTION_L2_64B
                                                    : CU_TENSOR_MAP_L2_PROMOTION_NONE;
  const auto fill =
      form.fills_nan ? CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA : CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
  check(driver().cuTensorMapEncodeTiled(reinterpret_cast<CUtensorMap*>(&map), *type_of(tensor.dtype),
                                        static_cast<cuuint32_t>(form.ndim), tensor.data, sizes, strides, box, steps,
                                        CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion, fill),
        doing.c_str());
}

}  // namespace

void require_tensor_maps(int device, const char* function, const char* map) {
  const int capability = compute_capability(device);
  if (capability >= 90) return;
  throw ValueError(std::string(function) + ": " + map + " is a tensor map, and the device has compute capability " +
                   std::to_string(capability / 10) + "." + std::to_string(capability % 10) +
                   "; accepted: 9.0 or later, which has TMA");
}

void check_tensor_map(const TensorMapForm& form, const DLTensor& tensor, const char* function, const char* name) {
  Rules(form, tensor, function, name).check();
}

bool TensorMaps::Key::operator==(const Key& other) const {
  return data == other.data && device == other.device && dtype == other.dtype && sizes == other.sizes &&
         strides == other.strides;
}

TensorMap TensorMaps::of(const DLTensor& tensor, int device, const char* function, const char* name) {
  Key key{tensor.data, device, tensor.dtype, {}, {}};
  std::copy(tensor.shape, tensor.shape + form_.ndim, key.sizes.begin());
  std::copy(tensor.strides, tensor.strides + form_.ndim, key.strides.begin());
  const std::lock_guard lock(mutex_);
  ++uses_;
  for (Kept& kept : kept_) {
    if (!(kept.key == key)) continue;
    kept.last_use = uses_;
    return kept.map;
  }
  check_tensor_map(form_, tensor, function, name);
  Kept made{{}, key, uses_};
  encode(made.map, form_, tensor, std::string(function) + ": making a tensor map of " + name);
  if (kept_.size() < kMost) {
    kept_.push_back(made);
  } else {
    *std::min_element(kept_.begin(), kept_.end(),
                      [](const Kept& x, const Kept& y) { return x.last_use < y.last_use; }) = made;
  }
  return made.map;
}

}  // namespace interop::cuda
