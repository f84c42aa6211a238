/// What a product on a GPU is: the operands that are converted first, then the kernel.
#include "bindings/matmul/device_product.h"

#include <interop/cuda/driver.h>
#include <interop/cuda/elementwise.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "exchange/python.h"
#include "ops/elementwise.h"

namespace interop::bindings {
namespace {

const exchange::Lookup kLoadLibrary("cuda.pathfinder", "load_nvidia_dynamic_lib");

/// The paths of libcublasLt to try, best first; none if only the loader's own search is left.
std::vector<std::string> cublas_paths() {
  try {
    // cublasLt by itself: loading cublas first would bind it to whatever cublasLt the loader finds.
    const nb::object path = kLoadLibrary.get()("cublasLt").attr("abs_path");
    if (!path.is_none()) return {nb::cast<std::string>(path)};
  } catch (nb::python_error& error) {  // a library that is not found is a RuntimeError
    if (!error.matches(PyExc_RuntimeError) && !error.matches(PyExc_OSError)) throw;
  }
  return {};
}

constexpr size_t kAlignment = 256;  // of what a kernel's workspace is cut into
size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

void find_cublas() {
  static bool found = false;
  if (found) return;
  const std::vector<std::string> paths = cublas_paths();
  if (found) return;  // by another thread meanwhile, which may be reading the paths by now
  found = true;
  std::vector<const char*> pointers;
  for (const std::string& path : paths) pointers.push_back(path.c_str());
  cuda::set_cublas_paths(pointers.data(), static_cast<int>(pointers.size()));
}

/// A copy of an operand in the dtype of the product. It is compact, except that broadcast dimensions stay broadcast.
class Converted {
 public:
  Converted(const DLTensor& operand, DLDataType dtype) : operand_(operand) {
    int64_t stride = 1;
    for (int i = operand.ndim - 1; i >= 0; --i) {
      const bool repeats = operand.strides[i] == 0;
      sizes_[i] = repeats ? std::min<int64_t>(operand.shape[i], 1) : operand.shape[i];
      strides_[i] = repeats ? 0 : stride;
      stride *= std::max<int64_t>(sizes_[i], 1);
    }
    tensor_ = {nullptr, operand.device, operand.ndim, dtype, operand.shape, strides_, 0};
    place(reinterpret_cast<void*>(uintptr_t{1} << 20));  // as well aligned as it will be
  }
  Converted(const Converted&) = delete;
  Converted& operator=(const Converted&) = delete;

  size_t bytes() const {
    return aligned(static_cast<size_t>(element_count(sizes_, tensor_.ndim) * item_bytes(tensor_.dtype)));
  }
  void place(void* memory) { tensor_.data = memory; }
  const DLTensor& operator*() const { return tensor_; }

  /// Queues what fills it.
  void fill(cudaStream_t stream) const {
    Elementwise copy;
    DLTensor out = tensor_, input = operand_;
    out.shape = input.shape = const_cast<int64_t*>(sizes_);  // only read
    ops::plan_pass(copy, out, &input, 1);
    cuda::launch_elementwise(ElementwiseStep{ElementwiseOp::copy, tensor_.dtype}, copy, stream);
  }

 private:
  const DLTensor& operand_;
  int64_t sizes_[kMaxDims];
  int64_t strides_[kMaxDims];
  DLTensor tensor_{};
};

DeviceProduct::DeviceProduct(const Product& product, const DLTensor& out, cuda::MatmulOptions options) {
  if (product.terms.autotune.is(Py_False)) options.uses_choices = false;
  options_ = options;
  const DLDataType dtype = product.result.dtype;
  const DLTensor* operands[2] = {&product.operand(0), &product.operand(1)};
  if (!ops::reads_matmul(operands[0]->dtype, operands[1]->dtype, dtype)) {
    for (int i = 0; i < 2; ++i) {
      if (operands[i]->dtype == dtype) continue;
      converted_[i] = std::make_unique<Converted>(*operands[i], dtype);
      operands[i] = &**converted_[i];
    }
  }
  gemm_ = ops::plan_matmul(*operands[0], *operands[1], out, product.beside);
  gemm_.a_conjugated = product.conjugated(0);
  gemm_.b_conjugated = product.conjugated(1);
  // Explained, host arrays have no copies yet: those would be as well aligned as the output.
  if (out.device.device_type == kDLCPU) gemm_.a = gemm_.b = out.data;
  set_scales(product);
  options.apart = [](const std::function<void()>& ask) {
    const nb::gil_scoped_release no_gil;
    ask();
  };
  plan_ = cuda::plan_matmul(gemm_, options);
}

DeviceProduct::~DeviceProduct() = default;

size_t DeviceProduct::workspace_bytes() const {
  size_t bytes = plan_.workspace_bytes;
  for (const auto& operand : converted_) bytes += operand ? operand->bytes() : 0;
  return bytes;
}

void DeviceProduct::launch(Call& call, bool tunes) {
  char* memory = static_cast<char*>(call.workspace(workspace_bytes()));
  tunes = tunes && plan_.tunable && !cuda::is_capturing(call.stream());
  void* const tuning = tunes ? call.workspace(cuda::tuning_bytes(gemm_, options_)) : nullptr;
  for (int i = 0; i < 2; ++i) {
    if (!converted_[i]) continue;
    converted_[i]->place(memory);
    (i == 0 ? gemm_.a : gemm_.b) = memory;
    memory += converted_[i]->bytes();
  }
  call.launch([&](cudaStream_t s) {
    for (const auto& operand : converted_) {
      if (operand) operand->fill(s);
    }
    if (tunes) {
      cuda::tune_matmul(gemm_, options_, tuning, s);
      plan_ = cuda::plan_matmul(gemm_, options_);
      memory = static_cast<char*>(tuning);
    }
    cuda::launch_matmul(gemm_, plan_, memory, s);
  });
}

std::string DeviceProduct::describe() const {
  std::string text = cuda::describe(gemm_, plan_);
  for (int i = 0; i < 2; ++i) {
    if (converted_[i]) {
      text += std::string("; ") + (i == 0 ? "a" : "b") + " is converted to " + dtype_name((**converted_[i]).dtype) +
              " first, in the workspace";
    }
  }
  return text;
}

/// alpha and beta, and the scales of float8: numbers are part of alpha, arrays are read by the kernel.
void DeviceProduct::set_scales(const Product& product) {
  const double scale = scale_of("scale_a", product.terms.scale_a) * scale_of("scale_b", product.terms.scale_b);
  if (product.has_factors() || scale != 1) {
    const DLDataType dtype = product.result.dtype;
    ScalarValue alpha = factor_value("alpha", product.alpha(), dtype);
    if (scale != 1) {  // of float8, whose factors are float32
      float value;
      std::memcpy(&value, alpha.bytes, sizeof value);
      value = static_cast<float>(value * scale);
      std::memcpy(alpha.bytes, &value, sizeof value);
    }
    set_factors(gemm_, alpha, factor_value("beta", product.beta(), dtype));
  }
  const auto pointer = [&](int place) {
    return place < 0 ? nullptr : static_cast<const float*>(product.call.tensor(place).data);
  };
  gemm_.factor_a = pointer(product.arrays.scale_a);
  gemm_.factor_b = pointer(product.arrays.scale_b);
}

}  // namespace interop::bindings
