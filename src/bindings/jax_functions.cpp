/// What XLA calls: kernels and C functions of users, on XLA's stream, in XLA's memory.
///
/// As in jax_ffi.cpp: any thread, several at once, without the GIL. What a program says of the function is a key of
/// what it is made of, which means the same in every process that has made it.
#include <interop/cuda/driver.h>
#include <interop/error.h>
#include <interop/tensor.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/functions/xla_function.h"
#include "bindings/jax_buffers.h"
#include "bindings/jax_ffi.h"

namespace nb = nanobind;

namespace interop {
namespace {

using bindings::XlaFunction;
using bindings::XlaParameter;

/// What XLA says of a call beside the buffers.
struct Attributes {
  std::string_view function;         // the key
  ffi::Span<const uint8_t> numbers;  // a ScalarValue for each parameter that is a number
  ffi::Span<const int64_t> launch;   // of a kernel: as `Kernel.launch_for` has it
};

constexpr size_t kLaunchSizes = 12, kLeastLaunchSizes = 11;  // the least: of programs of older versions

cuda::Launch launch_of(ffi::Span<const int64_t> sizes) {
  cuda::Launch launch;
  const auto size = [&](size_t i) { return static_cast<unsigned>(sizes[i]); };
  for (size_t i = 0; i < 3; ++i) {
    launch.grid[i] = size(i);
    launch.block[i] = size(i + 3);
    launch.cluster[i] = size(i + 6);
  }
  launch.shared_bytes = size(9);
  launch.cooperative = sizes[10] != 0;
  launch.dependent = sizes.size() == kLaunchSizes && sizes[11] != 0;
  return launch;
}

/// The arguments of a call, by parameter.
class Arguments {
 public:
  Arguments(const XlaFunction& function, const ffi::RemainingArgs& operands, const ffi::RemainingRets& results,
            ffi::Span<const uint8_t> numbers, DLDevice device)
      : device_(device),
        tensors_(function.parameters.size()),
        pointers_(function.parameters.size()),
        numbers_(function.parameters.size()),
        strides_(function.parameters.size() * kFewDims) {
    size_t operand = 0, result = 0, number = 0;
    for (size_t i = 0; i < function.parameters.size(); ++i) {
      const XlaParameter& parameter = function.parameters[i];
      if (parameter.kind == XlaParameter::Kind::number) {
        const size_t end = ++number * sizeof(ScalarValue);
        if (end > numbers.size()) refuse(function);
        std::memcpy(&numbers_[i], numbers.begin() + end - sizeof(ScalarValue), sizeof(ScalarValue));
      } else if (parameter.kind == XlaParameter::Kind::array) {
        if (parameter.written) {
          auto buffer = results.get<ffi::AnyBuffer>(result++);
          if (!buffer.has_value()) refuse(function);
          put(function, i, **buffer);
        } else {
          const auto buffer = operands.get<ffi::AnyBuffer>(operand++);
          if (!buffer.has_value()) refuse(function);
          put(function, i, *buffer);
        }
      }
    }
    if (operand != operands.size() || result != results.size() || number * sizeof(ScalarValue) != numbers.size()) {
      refuse(function);
    }
  }

  bindings::XlaCall call() const { return {pointers_.data(), numbers_.data(), nullptr, -1, nullptr}; }

 private:
  static constexpr size_t kFewDims = 8;

  [[noreturn]] static void refuse(const XlaFunction& function) {
    throw ValueError(function.label + ": the program calls it with other arguments than it is declared with");
  }

  /// An XLA buffer is compact and row-major, the layout that the lowering rule asks XLA for.
  void put(const XlaFunction& function, size_t i, const ffi::AnyBuffer& buffer) {
    const XlaParameter& parameter = function.parameters[i];
    const auto sizes = buffer.dimensions();
    DLTensor& tensor = tensors_[i];
    tensor.data = buffer.untyped_data();
    tensor.device = device_;
    tensor.dtype = dtype_of(buffer);
    tensor.ndim = static_cast<int32_t>(sizes.size());
    tensor.shape = const_cast<int64_t*>(sizes.begin());  // which nothing writes to
    if (parameter.dtype.bits != 0 && tensor.dtype != parameter.dtype) refuse(function);
    if (parameter.ndim >= 0) {
      if (parameter.ndim != tensor.ndim) refuse(function);
      if (sizes.size() <= kFewDims) {
        tensor.strides = &strides_[i * kFewDims];
      } else {
        tensor.strides = more_.emplace_back(sizes.size()).data();
      }
      compact_strides(tensor.shape, tensor.ndim, tensor.strides);
    }
    pointers_[i] = &tensor;
  }

  const DLDevice device_;
  std::vector<DLTensor> tensors_;
  std::vector<const DLTensor*> pointers_;
  std::vector<ScalarValue> numbers_;
  std::vector<int64_t> strides_;
  std::vector<std::vector<int64_t>> more_;
};

// Of the stage in which XLA makes a program ready to run: what only Python finds or compiles is found here.
ffi::Error instantiate(ffi::RemainingArgs, ffi::RemainingRets, ffi::Dictionary attributes) {
  return guarded("interop", [&] {
    const auto key = attributes.get<std::string_view>("function");
    if (!key.has_value()) throw ValueError(key.error().message());
    bindings::prepare_for_xla(*key);
    return ffi::Error::Success();
  });
}

// Newer XLA passes the buffers, without memory, in this stage, too.
XLA_FFI_DEFINE_HANDLER(kInstantiate, instantiate, ffi::Ffi::BindInstantiate().RemainingArgs().RemainingRets().Attrs());

ffi::Error call_on_host(ffi::RemainingArgs operands, ffi::RemainingRets results, std::string_view key,
                        ffi::Span<const uint8_t> numbers) {
  return guarded("interop", [&] {
    const XlaFunction& function = bindings::function_of_xla(key);
    return guarded(function.label, [&] {
      if (function.is_kernel) throw ValueError("a kernel is not called on the host");
      const Arguments arguments(function, operands, results, numbers, {kDLCPU, 0});
      function.run(arguments.call());
      return ffi::Error::Success();
    });
  });
}

XLA_FFI_DEFINE_HANDLER(kCallOnHost, call_on_host,
                       ffi::Ffi::Bind()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<std::string_view>("function")
                           .Attr<ffi::Span<const uint8_t>>("numbers"));

ffi::Error call_on_gpu(cudaStream_t stream, int32_t device, ffi::RemainingArgs operands, ffi::RemainingRets results,
                       std::string_view key, ffi::Span<const uint8_t> numbers, ffi::Span<const int64_t> launch) {
  return guarded("interop", [&] {
    const XlaFunction& function = bindings::function_of_xla(key);
    return guarded(function.label, [&] {
      const Arguments arguments(function, operands, results, numbers, {kDLCUDA, device});
      bindings::XlaCall call = arguments.call();
      cuda::Launch sizes;
      if (function.is_kernel) {
        if (launch.size() != kLaunchSizes && launch.size() != kLeastLaunchSizes)
          throw ValueError("the program says nothing of its launch");
        sizes = launch_of(launch);
        call.launch = &sizes;
      }
      call.device = device;
      call.stream = stream;
      function.run(call);
      return ffi::Error::Success();
    });
  });
}

constexpr auto binding_on_gpu = [] {
  return ffi::Ffi::Bind()
      .Ctx<ffi::PlatformStream<cudaStream_t>>()
      .Ctx<ffi::DeviceOrdinal>()
      .RemainingArgs()
      .RemainingRets()
      .Attr<std::string_view>("function")
      .Attr<ffi::Span<const uint8_t>>("numbers")
      .Attr<ffi::Span<const int64_t>>("launch");
};

XLA_FFI_DEFINE_HANDLER(kCallOnGpu, call_on_gpu, binding_on_gpu());
// The same, which XLA may record into a CUDA graph, and replay: of kernels, which we launch, and of C functions whose
// author says so.
XLA_FFI_DEFINE_HANDLER(kCallInGraphs, call_on_gpu, binding_on_gpu(), {ffi::Traits::kCmdBufferCompatible});

nb::dict stages(XLA_FFI_Handler* execute) {
  nb::dict made;
  made["instantiate"] = nb::capsule(reinterpret_cast<void*>(kInstantiate));
  made["execute"] = nb::capsule(reinterpret_cast<void*>(execute));
  return made;
}

}  // namespace

nb::dict jax_function_targets() {
  nb::dict host, gpu, targets;
  host["interop_function"] = stages(kCallOnHost);
  targets["cpu"] = host;
  if (cuda::built_for() != 0) {
    gpu["interop_function"] = stages(kCallOnGpu);
    gpu["interop_function_in_graphs"] = stages(kCallInGraphs);
    targets["CUDA"] = gpu;
  }
  return targets;
}

}  // namespace interop
