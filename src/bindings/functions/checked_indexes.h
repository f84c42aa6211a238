/// What INTEROP_CHECKED=1 asks for: a kernel's views are indexed within their arrays.
#pragma once

#include <interop/call.h>
#include <nanobind/nanobind.h>
#include <interop/view.cuh>

#include "bindings/functions/kernel_declaration.h"

namespace interop::bindings {

class CheckedIndexes {
 public:
  /// Throws ValueError if the call's stream is being captured.
  CheckedIndexes(const KernelDeclaration& kernel, Call& call);

  /// Where the kernel of this call notes an index that is out of bounds: memory of its device, with nothing noted.
  IndexFault* prepare();
  /// Copies that to the host, and waits for it: once the kernel is queued, and before the call hands over.
  void read();
  /// Throws IndexError if an index was out of bounds.
  void check() const;
  /// What all this does, for `explain`.
  void explain(nanobind::dict explained) const;

 private:
  const KernelDeclaration& kernel_;
  Call& call_;
  IndexFault* on_device_ = nullptr;
  IndexFault fault_{};
};

}  // namespace interop::bindings
