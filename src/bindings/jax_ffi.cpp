/// What XLA calls: our launchers on XLA's stream, in XLA's memory.
///
/// XLA calls a handler on any of its threads, without the GIL, with the operands' context current; several calls may
/// run at once. Nothing here knows Python but the last function, no state is kept, and no exception leaves a handler.
#include "bindings/jax_ffi.h"

#include <interop/cuda/driver.h>
#include <interop/cuda/elementwise.h>
#include <interop/cuda/matmul.h>
#include <interop/error.h>
#include <interop/tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "bindings/jax_buffers.h"
#include "exchange/typestr.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"

namespace nb = nanobind;

namespace interop {
namespace {

/// An XLA buffer as a DLTensor: compact and row-major, the layout that the lowering rule asks XLA for.
class Tensor {
 public:
  /// With `transposed`, the transpose of each matrix of the buffer.
  explicit Tensor(const ffi::AnyBuffer& buffer, bool transposed = false) {
    const auto sizes = buffer.dimensions();
    if (sizes.size() > kMaxDims) throw ValueError("an XLA buffer of more than 64 dimensions");
    tensor_.data = buffer.untyped_data();
    tensor_.device = {kDLCUDA, 0};  // not used by the shape rules
    tensor_.dtype = dtype_of(buffer);
    tensor_.ndim = static_cast<int32_t>(sizes.size());
    std::copy(sizes.begin(), sizes.end(), sizes_);
    tensor_.shape = sizes_;
    tensor_.strides = strides_;
    compact_strides(tensor_.shape, tensor_.ndim, strides_);
    if (!transposed) return;
    if (tensor_.ndim < 2) throw ValueError("an XLA buffer of less than 2 dimensions has no matrices to transpose");
    transpose_matrices(tensor_);
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  const DLTensor& operator*() const { return tensor_; }

 private:
  DLTensor tensor_{};
  int64_t sizes_[kMaxDims];
  int64_t strides_[kMaxDims];
};

// The alignment that XLA promises for every buffer. A product that is planned for it runs the same kernels at any
// address, which a CUDA graph needs, as XLA exchanges its addresses. cuBLASLt's fastest kernels ask for no more.
constexpr unsigned int kXlaAlignment = 16;

cuda::MatmulOptions options_of(std::string_view backend, std::string_view precision) {
  cuda::MatmulOptions options;
  options.alignment = kXlaAlignment;
  if (precision == "tf32") {
    options.precision = cuda::MatmulPrecision::tf32;
  } else if (precision == "tf32x3") {
    options.precision = cuda::MatmulPrecision::tf32x3;
  } else if (precision != "exact") {
    throw ValueError("precision='" + std::string(precision) + "'; accepted: 'exact', 'tf32', 'tf32x3'");
  }
  if (backend == "tiled") {
    options.backend = cuda::MatmulBackend::tiled;
  } else if (backend == "cublas") {
    options.backend = cuda::MatmulBackend::cublas;
  } else if (backend != "automatic") {
    throw ValueError("backend='" + std::string(backend) + "'; accepted: 'automatic', 'tiled', 'cublas'");
  }
  return options;
}

/// Checks the shape that XLA allocated: the module was compiled with it, and may not come from `interop.jax`.
void check_result(const DLTensor& c, const Shape& shape) {
  if (c.ndim != shape.ndim || !std::equal(c.shape, c.shape + c.ndim, shape.sizes)) {
    throw ValueError("the product has shape " + shape_text(shape) + ", XLA's result has shape " + shape_text(c));
  }
}

// More than XLA promises: the lowering rule asks for so many bytes more, and the handler aligns what it gets.
constexpr std::size_t kWorkspaceAlignment = 256;

/// The workspace: a second result, which the lowering rule declares wherever a plan may need one, as XLA's own products
/// do. XLA then owns it as long as whatever it has recorded of this call. Memory that the handler took itself would be
/// gone when a CUDA graph of XLA's replays the call, and could not be taken while that is recorded.
struct Workspace {
  void* memory = nullptr;
  std::size_t bytes = 0;

  explicit Workspace(const ffi::RemainingRets& spare) {
    if (spare.size() == 0) return;
    auto buffer = spare.get<ffi::AnyBuffer>(0);
    if (!buffer.has_value()) throw ValueError(buffer.error().message());
    memory = (*buffer)->untyped_data();
    bytes = (*buffer)->size_bytes();
    if (!std::align(kWorkspaceAlignment, 0, memory, bytes)) bytes = 0;
  }

  void* for_plan(const cuda::MatmulPlan& plan) const {
    if (plan.workspace_bytes <= bytes) return memory;
    throw ValueError("the workspace has " + std::to_string(bytes) + " bytes and the product needs " +
                     std::to_string(plan.workspace_bytes) + ": the program was lowered by another version of interop");
  }
};

/// What XLA says of a product beside the buffers.
struct MatmulAttributes {
  std::string_view backend;
  std::string_view precision;
  bool transpose_a;
  bool transpose_b;
};

/// c = a @ b, queued on `stream`.
void queue_matmul(cudaStream_t stream, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer c,
                  const ffi::RemainingRets& spare, const MatmulAttributes& attributes) {
  const Workspace workspace(spare);
  cuda::MatmulOptions options = options_of(attributes.backend, attributes.precision);
  options.most_packed_bytes = workspace.bytes;
  const Tensor left(a, attributes.transpose_a);
  const Tensor right(b, attributes.transpose_b);
  const Tensor out(c);
  check_result(*out, ops::matmul_result(*left, *right, (*out).dtype).shape);
  if (element_count(*out) == 0) return;

  const Gemm gemm = ops::plan_matmul(*left, *right, *out);
  const cuda::MatmulPlan plan = cuda::plan_matmul(gemm, options);
  cuda::launch_matmul(gemm, plan, workspace.for_plan(plan), stream);
}

ffi::Error matmul(cudaStream_t stream, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> c,
                  ffi::RemainingRets spare, std::string_view backend, std::string_view precision, bool transpose_a,
                  bool transpose_b) {
  return guarded("interop.matmul", [&] {
    queue_matmul(stream, a, b, *c, spare, {backend, precision, transpose_a, transpose_b});
    return ffi::Error::Success();
  });
}

// kCmdBufferCompatible: XLA may record the call into a CUDA graph, and replay that. It records anew when a buffer has
// moved. Every call of one shape queues the same kernels, in memory that XLA owns, and allocates nothing; what only the
// first one does (loading, planning) runs with the capture mode relaxed.
XLA_FFI_DEFINE_HANDLER(kMatmulHandler, matmul,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .RemainingRets()
                           .Attr<std::string_view>("backend")
                           .Attr<std::string_view>("precision")
                           .Attr<bool>("transpose_a")
                           .Attr<bool>("transpose_b"),
                       {ffi::Traits::kCmdBufferCompatible});

/// What XLA says of an elementwise operation beside the buffers.
struct ElementwiseAttributes {
  std::string_view operation;
  std::string_view dtype;
  bool replaces_zero;
  int64_t where_zero[2];  // the bytes of a value of `dtype`
};

/// out = op(a, b), queued on `stream`.
ffi::Error queue_elementwise(cudaStream_t stream, ffi::RemainingArgs inputs, ffi::AnyBuffer result,
                             const char* function, const ElementwiseAttributes& attributes) {
  const auto dtype = exchange::dtype_from_name(std::string(attributes.dtype));
  if (!dtype) throw TypeError("XLA asks for dtype " + std::string(attributes.dtype));
  const int count = static_cast<int>(inputs.size());
  std::optional<Tensor> buffers[2];
  DLTensor tensors[2];
  ops::NamedTensor named[2];
  if (count < 1 || count > 2) throw ValueError(std::to_string(count) + " operands; accepted: 1 or 2");
  for (int k = 0; k < count; ++k) {
    const auto buffer = inputs.get<ffi::AnyBuffer>(static_cast<size_t>(k));
    if (!buffer) return buffer.error();
    tensors[k] = *buffers[k].emplace(*buffer);
    named[k] = {k == 0 ? "a" : "b", &tensors[k]};
  }
  const Operation* const operation = find_operation(attributes.operation);
  if (!operation || !is_function(*operation)) throw ValueError("XLA asks for " + std::string(attributes.operation));
  const Tensor output(result);
  const DLTensor& out = *output;
  const DLDataType out_dtype = ops::result_dtype(function, *operation, *dtype);
  const Shape shape = ops::broadcast_shape(function, named, count);
  if (out.dtype != out_dtype || out.ndim != shape.ndim || !std::equal(out.shape, out.shape + out.ndim, shape.sizes)) {
    throw ValueError("the result is " + dtype_name(out_dtype) + " of shape " + shape_text(shape) +
                     ", XLA's result is " + dtype_name(out.dtype) + " of shape " + shape_text(out));
  }
  Elementwise work;
  ops::plan_pass(work, out, tensors, count);
  std::memcpy(work.values[kWhereZero].bytes, attributes.where_zero, sizeof attributes.where_zero);
  const ElementwiseStep step{function_op(*operation), *dtype, attributes.replaces_zero};
  cuda::launch_elementwise(step, work, stream);
  return ffi::Error::Success();
}

ffi::Error elementwise(cudaStream_t stream, ffi::RemainingArgs inputs, ffi::Result<ffi::AnyBuffer> result,
                       std::string_view operation, std::string_view dtype, bool replaces_zero, int64_t where_zero_low,
                       int64_t where_zero_high) {
  const std::string function = "interop." + std::string(operation);
  return guarded(function, [&] {
    return queue_elementwise(stream, inputs, *result, function.c_str(),
                             {operation, dtype, replaces_zero, {where_zero_low, where_zero_high}});
  });
}

// No memory but the operands': XLA may record the call into a CUDA graph.
XLA_FFI_DEFINE_HANDLER(kElementwiseHandler, elementwise,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<std::string_view>("operation")
                           .Attr<std::string_view>("dtype")
                           .Attr<bool>("replaces_zero")
                           .Attr<int64_t>("where_zero_low")
                           .Attr<int64_t>("where_zero_high"),
                       {ffi::Traits::kCmdBufferCompatible});

}  // namespace

nb::dict jax_ffi_targets() {
  nb::dict targets;
  if (cuda::built_for() != 0) {
    targets["interop_elementwise"] = nb::capsule(reinterpret_cast<void*>(kElementwiseHandler));
    targets["interop_matmul"] = nb::capsule(reinterpret_cast<void*>(kMatmulHandler));
  }
  return targets;
}

}  // namespace interop
