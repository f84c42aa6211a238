/// Indexes of views that are out of bounds, as the kernel has noted them.
#include "bindings/functions/checked_indexes.h"

#include <interop/cuda/driver.h>
#include <interop/error.h>
#include <nanobind/stl/string.h>

#include <string>

namespace nb = nanobind;

namespace interop::bindings {
namespace {

template <class Number>
std::string in_parentheses(const Number* numbers, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + std::to_string(numbers[i]);
  return "(" + text + ")";
}

std::string views_of(const KernelDeclaration& kernel) {
  std::string names;
  for (const KernelParameter& parameter : kernel.parameters) {
    if (parameter.checked) names += (names.empty() ? "" : ", ") + parameter.name;
  }
  return names;
}

}  // namespace

CheckedIndexes::CheckedIndexes(const KernelDeclaration& kernel, Call& call) : kernel_(kernel), call_(call) {
  if (!cuda::is_capturing(call.stream())) return;
  throw ValueError(std::string(kernel.label) + ": the call's stream is being captured into a CUDA graph, and " +
                   "INTEROP_CHECKED=1 reads after the call whether an index of " + views_of(kernel) +
                   " was out of bounds, which cannot be captured; accepted: a call outside the capture, or a process " +
                   "without INTEROP_CHECKED");
}

IndexFault* CheckedIndexes::prepare() {
  on_device_ = static_cast<IndexFault*>(call_.workspace(sizeof fault_));
  call_.launch([&](cudaStream_t stream) { cuda::copy_to_device(on_device_, &fault_, sizeof fault_, stream); });
  return on_device_;
}

void CheckedIndexes::read() {
  call_.launch([&](cudaStream_t stream) {
    cuda::copy_to_host(&fault_, on_device_, sizeof fault_, stream);
    cuda::synchronize(stream);
  });
}

void CheckedIndexes::check() const {
  if (!fault_.is_noted) return;
  const KernelParameter& view = kernel_.parameters[static_cast<size_t>(fault_.argument)];
  const std::string accepted = fault_.size > 0 ? "0 to " + std::to_string(fault_.size - 1) : "none";
  const std::string what = std::string(kernel_.label) + ": " + view.name + in_parentheses(fault_.indexes, view.ndim) +
                           " is out of bounds: dimension " + std::to_string(fault_.dimension) + " has size " +
                           std::to_string(fault_.size) + "; accepted: " + accepted + "; the first such access was in " +
                           "block " + in_parentheses(fault_.block, 3) + ", thread " + in_parentheses(fault_.thread, 3) +
                           ", and what the call has written is undefined";
  throw nb::index_error(what.c_str());
}

void CheckedIndexes::explain(nb::dict explained) const {
  nb::list waits = nb::borrow<nb::list>(explained["waits"]);
  waits.append("INTEROP_CHECKED=1: the host reads whether an index of " + views_of(kernel_) +
               " was out of bounds, and waits for its stream");
}

}  // namespace interop::bindings
