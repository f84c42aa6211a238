/// A tensor for the tests of rules, which read no element.
#pragma once

#include <interop/tensor.h>

#include <utility>
#include <vector>

namespace interop::tests {

/// An array without memory, compact where no strides are given.
struct Layout {
  explicit Layout(std::vector<int64_t> sizes, DLDataType dtype = kFloat32, std::vector<int64_t> given = {})
      : shape(std::move(sizes)), strides(std::move(given)) {
    if (strides.empty()) {
      strides.resize(shape.size());
      compact_strides(shape.data(), static_cast<int>(shape.size()), strides.data());
    }
    tensor = {nullptr, {kDLCPU, 0}, static_cast<int>(shape.size()), dtype, shape.data(), strides.data(), 0};
  }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;

  std::vector<int64_t> shape, strides;
  DLTensor tensor;
};

}  // namespace interop::tests
