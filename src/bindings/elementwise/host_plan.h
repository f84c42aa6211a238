/// Calls on NumPy's own arrays: which functions of NumPy they are is found once for each tuple of dtypes, and kept.
#pragma once

#include <interop/elementwise.h>
#include <interop/tensor.h>
#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace interop::bindings {

/// What a plan depends on: the dtypes of a call's arrays and of `out`, which of them are 0-d, and the kinds of its
/// scalars.
class HostKey {
 public:
  /// Reads the operands of a call. False for a call that has no plan: of anything but scalars of Python and exact
  /// `numpy.ndarray`s of DLPack's dtypes, with strides in whole elements, that broadcast. It goes the way of all
  /// arrays, which finds every error. The arrays are asked for their dtype, shape and strides, and not exported.
  /// An `out` that is not None must be one, too: compact, writable and of the result's shape.
  bool read(const nanobind::handle* operands, int count, nanobind::handle out);
  /// Does NumPy give an array as `numpy.empty` would make it, without being told? So it does of compact arrays of one
  /// shape and of NumPy's own dtype objects.
  bool is_plain() const { return is_plain_; }
  bool operator==(const HostKey& other) const { return count_ == other.count_ && parts_ == other.parts_; }

 private:
  bool add_array(nanobind::handle x, Shape& shape);
  bool add_out(nanobind::handle out, const Shape& shape);
  void add(uint32_t part) { parts_[static_cast<size_t>(count_++)] = part; }

  int count_ = 0;
  bool is_plain_ = true;
  std::array<uint32_t, kMaxValues> parts_{};
};

/// The calls of NumPy's functions that compute one operation, or one expression: `interop._host.kept.Plan`.
class HostPlan {
 public:
  /// `described`: a `Plan`, or None where NumPy needs more than calls of its functions.
  explicit HostPlan(nanobind::handle described);

  /// Does the plan hold for these scalars? Those that are compared must fit their dtype.
  bool computes(const nanobind::handle* scalars) const;
  /// The result, in `out` if that is not None. `scalars` are found by their source: the operands of a function, or the
  /// sources of an expression. Of a function, `arrays` are all operands.
  nanobind::object run(const char* function, const nanobind::handle* arrays, int array_count,
                       const nanobind::handle* scalars, nanobind::handle out, bool is_plain) const;

 private:
  /// Arguments with a name, as a vectorcall takes them.
  struct Keywords {
    nanobind::object names;
    std::vector<nanobind::object> values;
  };
  /// A scalar as an element.
  struct Value {
    int source;
    nanobind::object label, dtype;
    bool warns;
  };
  /// A scalar that is compared with arrays of that dtype.
  struct Compared {
    int source;
    DLDataType dtype;
  };
  struct Step {
    nanobind::object function;
    std::vector<int> operands;  // among the arrays, then the values, the constants and the results of earlier steps
    Keywords plain, full;
    std::vector<int> last_uses;  // of earlier steps
  };
  static constexpr int kMaxOperands = 3, kMaxNamed = 3;
  static Keywords read_keywords(nanobind::handle given);

  std::vector<Value> values_;
  std::vector<Compared> compared_;
  std::vector<nanobind::object> constants_;
  std::vector<Step> steps_;
};

/// The plans of one function, or of one expression. They are added, and never removed or moved.
class HostPlans {
 public:
  /// Null where there is none yet.
  const HostPlan* find(const HostKey& key) const;
  /// Keeps what `interop._host.kept` makes of a call's operation, dtypes and scalars.
  void keep(const HostKey& key, nanobind::handle described);

 private:
  std::vector<std::pair<HostKey, std::unique_ptr<const HostPlan>>> plans_;
};

}  // namespace interop::bindings
