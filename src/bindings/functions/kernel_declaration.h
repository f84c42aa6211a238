/// What a kernel of a user declares, as interop/_functions/kernel_declaration.py has parsed it.
#pragma once

#include <interop/cuda/tensor_map.h>
#include <interop/tensor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/functions/mdspan.h"

namespace interop::bindings {

constexpr size_t kMostParameterBytes = 4096;  // of a kernel, on every device
constexpr int kMostParameters = 128;

struct KernelParameter {
  enum class Kind { pointer, view, mdspan, map, scalar };
  /// (kind, name, dtype, is written to, dimensions, form): the dtype is "" for any. The form is that of an mdspan, see
  /// `MdspanForm::of`; or of a tensor map: the place of the parameter that takes its array, the bytes of the swizzle
  /// and of the promotion to L2, whether NaN stands out of bounds, and the box.
  using Declared = std::tuple<std::string, std::string, std::string, bool, int, std::vector<int64_t>>;

  Kind kind;
  std::string name;
  DLDataType dtype;
  bool written;
  int ndim;       // of a pointer: 0 for any
  bool checked;   // a view whose indexes the kernel checks
  size_t offset;  // of its value among those of a launch
  bool takes_array;
  MdspanForm mdspan;
  std::shared_ptr<cuda::TensorMaps> maps;  // of a tensor map
  int map_of;                              // the place of the parameter that takes its array: its own, or another

  bool is_array() const { return takes_array; }
  /// A tensor map of the array that another parameter takes.
  bool takes_nothing() const { return kind == Kind::map && !takes_array; }
  /// Of its value; of an mdspan, those that are kept for it.
  size_t bytes() const;
};

struct KernelDeclaration {
  /// `checks_indexes`: the kernel is compiled with INTEROP_CHECKED defined, see <interop/view.cuh>. Throws ValueError
  /// for more parameters than a kernel may have.
  KernelDeclaration(const std::string& label, const std::vector<KernelParameter::Declared>& declared,
                    bool checks_indexes);

  const char* label;  // lives as long as the process, for errors that show themselves late
  std::vector<KernelParameter> parameters;
  bool has_checked_views = false;
  int first_map = -1;  // the place of the first tensor map; -1 for none
};

}  // namespace interop::bindings
