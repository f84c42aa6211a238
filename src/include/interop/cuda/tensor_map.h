/// Tensor maps, by which a kernel's TMA instructions find the boxes of an array. Knows no Python.
#pragma once

#include <interop/tensor.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

namespace interop::cuda {

inline constexpr int kTensorMapDims = 5;

/// What a kernel's author says of a map.
struct TensorMapForm {
  int ndim = 1;                    // 1 to kTensorMapDims
  uint32_t box[kTensorMapDims]{};  // in the order of the array's dimensions: the last one is the fastest
  int swizzle = 0;                 // bytes: 0, 32, 64, 128
  int l2_promotion = 0;            // bytes: 0, 64, 128, 256
  bool fills_nan = false;          // elements out of bounds are NaN; else 0
};

/// As the kernel takes it: a CUtensorMap, of which TMA needs an alignment of 64, and CUDA 13 declares one of 128.
struct alignas(128) TensorMap {
  unsigned char bytes[128];
};

/// Throws ValueError where the device has no TMA. `function` and `map` are what the message calls the kernel and its
/// parameter.
void require_tensor_maps(int device, const char* function, const char* map);

/// Throws what TMA does not take: TypeError for a dtype, ValueError for sizes, strides and an address. The address is
/// not looked at where it is null. `function` and `name` are what the message calls the kernel and the array.
void check_tensor_map(const TensorMapForm& form, const DLTensor& tensor, const char* function, const char* name);

/// The maps of one parameter, kept by all that they depend on: device, address, shape, strides and dtype. The least
/// recently used go first. Any thread.
class TensorMaps {
 public:
  explicit TensorMaps(const TensorMapForm& form) : form_(form) {}

  const TensorMapForm& form() const { return form_; }
  /// The map of an array, which has as many dimensions as the form. Throws as `check_tensor_map` does; CudaError if the
  /// driver refuses it.
  TensorMap of(const DLTensor& tensor, int device, const char* function, const char* name);

 private:
  struct Key {
    void* data;
    int device;
    DLDataType dtype;
    std::array<int64_t, kTensorMapDims> sizes, strides;

    bool operator==(const Key& other) const;
  };
  struct Kept {
    TensorMap map;
    Key key;
    uint64_t last_use;
  };
  static constexpr std::size_t kMost = 32;

  const TensorMapForm form_;
  std::mutex mutex_;
  std::vector<Kept> kept_;
  uint64_t uses_ = 0;
};

}  // namespace interop::cuda
