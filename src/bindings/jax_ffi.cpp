/// The matrix product that XLA calls: `plan_matmul` and `launch_matmul` on XLA's stream, in XLA's memory.
///
/// XLA calls a handler on any of its threads, without the GIL, with the operands' context current; several calls may
/// run at once. Nothing here knows Python but the last function, no state is kept, and no exception leaves a handler.
#include "bindings/jax_ffi.h"

#include <interop/cuda/driver.h>
#include <interop/cuda/matmul.h>
#include <interop/error.h>
#include <interop/tensor.h>
#include <xla/ffi/api/ffi.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

#include "ops/matmul.h"

namespace ffi = xla::ffi;
namespace nb = nanobind;

namespace interop {
namespace {

DLDataType dtype_of(const ffi::AnyBuffer& buffer) {
  switch (buffer.element_type()) {
    case ffi::DataType::F32:
      return kFloat32;
    case ffi::DataType::F64:
      return kFloat64;
    default:
      throw TypeError("an XLA buffer of element type " + std::to_string(static_cast<int>(buffer.element_type())) +
                      "; accepted: F32, F64");
  }
}

/// An XLA buffer as a DLTensor: compact and row-major, the layout that the lowering rule asks XLA for.
class Tensor {
 public:
  explicit Tensor(const ffi::AnyBuffer& buffer) {
    const auto sizes = buffer.dimensions();
    if (sizes.size() > kMaxDims) throw ValueError("an XLA buffer of more than 64 dimensions");
    tensor_.data = buffer.untyped_data();
    tensor_.device = {kDLCUDA, 0};  // not used by the shape rules
    tensor_.dtype = dtype_of(buffer);
    tensor_.ndim = static_cast<int32_t>(sizes.size());
    tensor_.shape = const_cast<int64_t*>(sizes.begin());  // only read
    tensor_.strides = strides_;
    compact_strides(tensor_.shape, tensor_.ndim, strides_);
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  const DLTensor& operator*() const { return tensor_; }

 private:
  DLTensor tensor_{};
  int64_t strides_[kMaxDims];
};

cuda::MatmulOptions options_of(std::string_view backend, bool allow_tf32) {
  cuda::MatmulOptions options;
  options.allow_tf32 = allow_tf32;
  if (backend == "tiled") {
    options.backend = cuda::MatmulBackend::tiled;
  } else if (backend == "cublas") {
    options.backend = cuda::MatmulBackend::cublas;
  } else if (backend != "automatic") {
    throw ValueError("backend='" + std::string(backend) + "'; accepted: 'automatic', 'tiled', 'cublas'");
  }
  return options;
}

/// The shape that XLA allocated is what the module was compiled with; it may come from elsewhere than `interop.jax`.
void check_result(const DLTensor& c, const Shape& shape) {
  if (c.ndim != shape.ndim || !std::equal(c.shape, c.shape + c.ndim, shape.sizes)) {
    throw ValueError("the product has shape " + shape_text(shape) + ", XLA's result has shape " + shape_text(c));
  }
}

// XLA refuses to promise more than 16 bytes, so the handler aligns what it gets.
constexpr std::uintptr_t kWorkspaceAlignment = 256;

void* align_up(void* memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  return reinterpret_cast<void*>((address + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment);
}

/// c = a @ b, queued on `stream`.
ffi::Error queue_matmul(cudaStream_t stream, ffi::ScratchAllocator& scratch, ffi::AnyBuffer a, ffi::AnyBuffer b,
                        ffi::AnyBuffer c, std::string_view backend, bool allow_tf32) {
  const cuda::MatmulOptions options = options_of(backend, allow_tf32);
  const Tensor left(a);
  const Tensor right(b);
  const Tensor out(c);
  check_result(*out, ops::matmul_result(*left, *right).shape);
  if (element_count(*out) == 0) return ffi::Error::Success();

  const Gemm gemm = ops::plan_matmul(*left, *right, *out);
  const cuda::MatmulPlan plan = cuda::plan_matmul(gemm, options);
  void* workspace = nullptr;
  if (plan.workspace_bytes > 0) {
    const auto memory = scratch.Allocate(plan.workspace_bytes + kWorkspaceAlignment - 1);
    if (!memory) {
      return ffi::Error(ffi::ErrorCode::kResourceExhausted, "interop.matmul: XLA has no " +
                                                                std::to_string(plan.workspace_bytes) +
                                                                " bytes of device memory left for the workspace");
    }
    workspace = align_up(*memory);
  }
  cuda::launch_matmul(gemm, plan, workspace, stream);
  return ffi::Error::Success();
}

/// An error of ours as XLA's; `interop.jax` knows it by its first words.
ffi::Error report(ffi::ErrorCode code, const std::string& message) {
  const std::string prefix = "interop.matmul: ";
  return ffi::Error(code, message.compare(0, prefix.size(), prefix) == 0 ? message : prefix + message);
}

ffi::Error matmul(cudaStream_t stream, ffi::ScratchAllocator scratch, ffi::AnyBuffer a, ffi::AnyBuffer b,
                  ffi::Result<ffi::AnyBuffer> c, std::string_view backend, bool allow_tf32) try {
  return queue_matmul(stream, scratch, a, b, *c, backend, allow_tf32);
} catch (const TypeError& error) {
  return report(ffi::ErrorCode::kInvalidArgument, error.what());
} catch (const ValueError& error) {
  return report(ffi::ErrorCode::kInvalidArgument, error.what());
} catch (const std::exception& error) {
  return report(ffi::ErrorCode::kInternal, error.what());
} catch (...) {
  return report(ffi::ErrorCode::kInternal, "unknown C++ exception");
}

// Not marked kCmdBufferCompatible: XLA would record the call into a CUDA graph and replay it after the workspace has
// gone back to its allocator, so that the replay would write into memory of someone else.
XLA_FFI_DEFINE_HANDLER(kMatmulHandler, matmul,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Ctx<ffi::ScratchAllocator>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<std::string_view>("backend")
                           .Attr<bool>("allow_tf32"));

}  // namespace

void bind_jax_ffi(nb::module_& m) {
  m.def(
      "jax_ffi_targets",
      [] {
        nb::dict targets;
        if (cuda::built_for() != 0) {
          targets["interop_matmul"] = nb::capsule(reinterpret_cast<void*>(kMatmulHandler));
        }
        return targets;
      },
      nb::sig("def jax_ffi_targets() -> dict[str, typing.Any]"),
      "The XLA FFI targets of platform CUDA: name -> capsule of the handler. Empty in a build without CUDA.");
}

}  // namespace interop
