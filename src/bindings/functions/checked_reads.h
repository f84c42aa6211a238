/// What INTEROP_CHECKED=1 asks for: the arrays that `reads=` says a call only reads have the same bytes after it.
#pragma once

#include <interop/call.h>
#include <interop/tensor.h>
#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "exchange/overlap.h"

namespace interop::bindings {

class CheckedReads {
 public:
  /// `on_gpu` is the call whose arrays are the GPU's; null where none are. Throws ValueError if arrays are to be
  /// compared and its stream is being captured.
  CheckedReads(const char* function, Call* on_gpu);

  /// Of the parameters at `places`, whose arrays are `tensors`, those are compared whose memory no array that is
  /// written shares: the caller who gives one array for both has it changed.
  template <class Parameters>
  void add(const Parameters& parameters, const std::vector<int>& places, const DLTensor* const* tensors) {
    for (const int place : places) {
      bool is_shared = false;
      for (size_t i = 0; i < parameters.size() && !is_shared; ++i) {
        is_shared = parameters[i].written && exchange::share_memory(*tensors[i], *tensors[place]);
      }
      if (!is_shared) arrays_.push_back({parameters[static_cast<size_t>(place)].name.c_str(), tensors[place], {}});
    }
    refuse_capture();
  }

  /// Copies the arrays to the host, and waits for that.
  void copy();
  /// Throws ValueError if an array has changed since `copy`: once the GPU has done what the call has queued.
  void compare();
  /// What both do, for `explain`.
  void explain(nanobind::dict explained) const;

 private:
  struct Array {
    const char* name;
    const DLTensor* tensor;
    std::vector<unsigned char> before;
  };
  void refuse_capture() const;
  std::vector<unsigned char> bytes_of(const DLTensor& tensor) const;

  const char* function_;
  Call* on_gpu_;
  std::vector<Array> arrays_;
};

}  // namespace interop::bindings
