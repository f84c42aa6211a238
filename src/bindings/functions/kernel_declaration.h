/// What a kernel of a user declares, as interop/_functions/kernel_declaration.py has parsed it.
#pragma once

#include <interop/tensor.h>

#include <cstddef>
#include <string>
#include <tuple>
#include <vector>

namespace interop::bindings {

constexpr size_t kMostParameterBytes = 4096;  // of a kernel, on every device
constexpr int kMostParameters = 128;

struct KernelParameter {
  enum class Kind { pointer, view, scalar };
  /// (kind, name, dtype, is written to, dimensions): the dtype is "" for void*; the last is that of a view.
  using Declared = std::tuple<std::string, std::string, std::string, bool, int>;

  Kind kind;
  std::string name;
  DLDataType dtype;
  bool written;
  int ndim;
  bool checked;   // a view whose indexes the kernel checks
  size_t offset;  // of its value among those of a launch

  bool is_array() const { return kind != Kind::scalar; }
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
};

}  // namespace interop::bindings
