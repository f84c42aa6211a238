/// Arrays that a call only reads, compared before it and after.
#include "bindings/functions/checked_reads.h"

#include <interop/cuda/driver.h>
#include <interop/error.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>

namespace nb = nanobind;

namespace interop::bindings {

CheckedReads::CheckedReads(const char* function, Call* on_gpu) : function_(function), on_gpu_(on_gpu) {}

void CheckedReads::refuse_capture() const {
  if (arrays_.empty() || !on_gpu_ || !cuda::is_capturing(on_gpu_->stream())) return;
  throw ValueError(std::string(function_) + ": the call's stream is being captured into a CUDA graph, and " +
                   "INTEROP_CHECKED=1 compares " + arrays_.front().name + " before the call and after, which cannot " +
                   "be captured; accepted: a call outside the capture, or a process without INTEROP_CHECKED");
}

std::vector<unsigned char> CheckedReads::bytes_of(const DLTensor& tensor) const {
  const auto count = static_cast<size_t>(element_count(tensor) * item_bytes(tensor.dtype));  // pointers take no gaps
  std::vector<unsigned char> bytes(count);
  if (count == 0) return bytes;
  if (tensor.device.device_type == kDLCPU) {
    std::memcpy(bytes.data(), tensor.data, count);
    return bytes;
  }
  on_gpu_->launch([&](cudaStream_t stream) {
    cuda::copy_to_host(bytes.data(), tensor.data, count, stream);
    cuda::synchronize(stream);
  });
  return bytes;
}

void CheckedReads::copy() {
  for (Array& array : arrays_) array.before = bytes_of(*array.tensor);
}

void CheckedReads::compare() {
  for (const Array& array : arrays_) {
    const std::vector<unsigned char> after = bytes_of(*array.tensor);
    const auto changed = std::mismatch(after.begin(), after.end(), array.before.begin()).first;
    if (changed == after.end()) continue;
    throw ValueError(std::string(function_) + ": " + array.name + " is only read, as reads= says, but has changed " +
                     "in the call, from element " +
                     std::to_string((changed - after.begin()) / item_bytes(array.tensor->dtype)) +
                     " on; accepted: reads= without " + array.name);
  }
}

void CheckedReads::explain(nb::dict explained) const {
  if (arrays_.empty()) return;
  std::string names;
  for (const Array& array : arrays_) names += (names.empty() ? "" : ", ") + std::string(array.name);
  nb::list waits = nb::borrow<nb::list>(explained["waits"]);
  waits.append("INTEROP_CHECKED=1: the host compares " + names + " before the call and after" +
               (on_gpu_ ? ", and waits for its stream" : ""));
}

}  // namespace interop::bindings
