/// Kernels of users, and functions of compiled modules, as XLA calls them.
#include "bindings/functions/kernel_of_xla.h"

#include <interop/cuda/driver.h>
#include <interop/error.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/frame.h"
#include "bindings/functions/kernel_compiled.h"
#include "bindings/functions/kernel_values.h"
#include "bindings/functions/loaded_kernel.h"

namespace nb = nanobind;

namespace interop::bindings {

/// Runs a function of a compiled module, and throws what it reports.
void run_module_function(InteropFunction function, const char* label, const XlaCall& call, int count) {
  Room<const void*> numbers(count);
  for (int i = 0; i < count; ++i) numbers.data()[i] = call.tensors[i] ? nullptr : call.numbers[i].bytes;
  const InteropRun run{call.tensors, numbers.data(), call.stream, call.device};
  char message[1024] = "";
  const int32_t status = function(&run, message, sizeof message);
  if (status == 0) return;
  const std::string what =
      std::strncmp(message, label, std::strlen(label)) == 0 ? message : std::string(label) + ": " + message;
  switch (status - 1) {
    case INTEROP_TYPE_ERROR:
      throw TypeError(what);
    case INTEROP_BUFFER_ERROR:
      throw BufferError(what);
    case INTEROP_CUDA_ERROR:
      throw CudaError(what);
    default:
      throw ValueError(what);
  }
}

namespace {

std::vector<XlaParameter> xla_parameters(const KernelDeclaration& kernel) {
  std::vector<XlaParameter> all;
  for (const KernelParameter& p : kernel.parameters) {
    const auto kind = p.is_array()        ? XlaParameter::Kind::array
                      : p.takes_nothing() ? XlaParameter::Kind::none
                                          : XlaParameter::Kind::number;
    all.push_back({kind, p.name, p.dtype, p.written, p.is_array() && p.ndim > 0 ? p.ndim : -1});
  }
  return all;
}

/// The forms of XLA's arrays, which are compact.
void check_arrays(const KernelDeclaration& kernel, const XlaCall& call) {
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    if (!kernel.parameters[i].is_array()) continue;
    const DLTensor& tensor = *call.tensors[i];
    Shape shape;
    shape.ndim = tensor.ndim;
    std::copy(tensor.shape, tensor.shape + tensor.ndim, shape.sizes);
    check_compact(kernel.label, kernel.parameters[i], shape);
  }
}

class ModuleFunctionOfXla final : public XlaFunction {
 public:
  ModuleFunctionOfXla(const KernelDeclaration& kernel, InteropFunction function)
      : XlaFunction(kernel.label, false), declaration_(kernel), function_(function) {
    parameters = xla_parameters(kernel);
  }

  void run(const XlaCall& call) const override {
    check_arrays(declaration_, call);
    run_module_function(function_, declaration_.label, call, static_cast<int>(parameters.size()));
  }

 private:
  const KernelDeclaration declaration_;
  InteropFunction function_;
};

/// A kernel without Python but for its compiling.
class KernelOfXla final : public XlaFunction {
 public:
  KernelOfXla(const KernelDeclaration& kernel, nb::object load)
      : XlaFunction(kernel.label, true), declaration_(kernel), load_(std::move(load)) {
    parameters = xla_parameters(kernel);
  }

  void prepare() override {
    for (int device = 0; device < cuda::device_count(); ++device) {
      const std::string architecture = cuda::architecture_name(device);
      if (loaded(device, architecture)) continue;
      LoadedKernel made = load(architecture);
      const bool is_of_one_context = cuda::is_of_one_context(*made.kernel);
      if (is_of_one_context) {  // of the device that was current
        const cuda::DeviceGuard guard(device);
        made = load(architecture);
      }
      const std::lock_guard lock(mutex_);
      if (is_of_one_context) {
        of_one_device_[device] = made;
      } else {
        by_architecture_[architecture] = made;
      }
    }
  }

  void run(const XlaCall& call) const override {
    check_arrays(declaration_, call);
    if (declaration_.first_map >= 0) {
      const auto place = static_cast<size_t>(declaration_.first_map);
      cuda::require_tensor_maps(call.device, declaration_.label, parameters[place].name.c_str());
    }
    const CompiledKernel compiled = on(call.device);
    KernelValues values(declaration_, compiled.mdspans,
                        {call.tensors, call.numbers, call.device, nullptr, call.launch->is_empty()});
    cuda::launch_kernel(*compiled.kernel, *call.launch, declaration_.label, values.pointers(), call.device,
                        call.stream);
  }

 private:
  LoadedKernel load(const std::string& architecture) const {
    const nb::object made = load_(architecture);  // lets other threads in
    return nb::cast<const LoadedKernel&>(made);
  }

  std::optional<LoadedKernel> loaded(int device, const std::string& architecture) const {
    const std::lock_guard lock(mutex_);
    if (const auto own = of_one_device_.find(device); own != of_one_device_.end()) return own->second;
    const auto found = by_architecture_.find(architecture);
    if (found == by_architecture_.end()) return std::nullopt;
    return found->second;
  }

  /// The kernel on a device, which is current.
  CompiledKernel on(int device) const {
    {
      const std::lock_guard lock(mutex_);
      for (const CompiledKernel& compiled : by_device_) {
        if (compiled.device == device) return compiled;
      }
    }
    const auto found = loaded(device, cuda::architecture_name(device));
    if (!found) throw ValueError(label + ": the program was not prepared for device " + std::to_string(device));
    const CompiledKernel compiled{device, found->kernel, found->mdspans};
    check_compiled(declaration_, compiled);
    const std::lock_guard lock(mutex_);
    by_device_.push_back(compiled);
    return compiled;
  }

  const KernelDeclaration declaration_;
  const nb::object load_;
  mutable std::mutex mutex_;
  std::map<std::string, LoadedKernel> by_architecture_;
  std::map<int, LoadedKernel> of_one_device_;  // that another library has loaded there
  mutable std::vector<CompiledKernel> by_device_;
};

}  // namespace

std::unique_ptr<XlaFunction> kernel_of_xla(const KernelDeclaration& kernel, nb::object load) {
  return std::make_unique<KernelOfXla>(kernel, std::move(load));
}

std::unique_ptr<XlaFunction> module_function_of_xla(const KernelDeclaration& kernel, InteropFunction function) {
  return std::make_unique<ModuleFunctionOfXla>(kernel, function);
}

}  // namespace interop::bindings
