/// What a call of an elementwise function or of an expression does on a GPU.
#pragma once

#include <interop/call.h>
#include <interop/cuda/elementwise.h>
#include <interop/elementwise.h>

#include <string>

#include "ops/elementwise.h"

namespace interop::bindings {

/// Is argument `k` an array of one element on the host beside arrays of a GPU? Then the kernel has it as a value.
inline bool is_value(const Call& call, int k) {
  return !call.on_host() && !call.staged() && call.tensor(k).device.device_type == kDLCPU;
}

/// A compact array at `memory`, for a result that is computed beside an `out` that overlaps what is read.
class Temporary {
 public:
  Temporary(const DLTensor& out, void* memory);
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  const DLTensor& operator*() const { return tensor_; }

 private:
  int64_t strides_[kMaxDims];
  DLTensor tensor_;
};

/// The pass of a call over its arrays. Where `out` overlaps what is read, the result is computed beside it and copied.
class DevicePass {
 public:
  Elementwise work;

  /// Plans the pass over the call's arrays at `places`, into `out`. At place -1 the operand is a value.
  void plan(const Call& call, const int* places, int count, const DLTensor& out);

  /// Bytes of the temporary; 0 where there is none.
  size_t workspace_bytes() const;

  /// `algorithm`, and that its result is copied where it is.
  std::string with_copy(const std::string& algorithm) const;

  /// Queues the pass. `find(work)` gives the kernel, as `cuda::launch_elementwise` takes it, once all layouts are
  /// known.
  template <class Find>
  void run(Call& call, Find&& find) {
    if (!needs_temporary_) {
      const auto kernel = find(work);
      call.launch([&](cudaStream_t s) { cuda::launch_elementwise(kernel, work, s); });
      return;
    }
    const Temporary temporary(*out_, call.workspace(workspace_bytes()));
    set_arrays(call, *temporary);
    const auto kernel = find(work);
    call.launch([&](cudaStream_t s) {
      cuda::launch_elementwise(kernel, work, s);
      copy_out(*temporary, s);
    });
  }

 private:
  void set_arrays(const Call& call, const DLTensor& out);
  void copy_out(const DLTensor& from, cudaStream_t stream) const;
  bool overlaps(const Call& call) const;

  const int* places_ = nullptr;
  int count_ = 0;
  const DLTensor* out_ = nullptr;
  bool needs_temporary_ = false;
};

}  // namespace interop::bindings
