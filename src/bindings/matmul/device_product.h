/// What a product on a GPU is: the operands that are converted first, then the kernel.
#pragma once

#include <interop/cuda/matmul.h>

#include <memory>
#include <string>

#include "bindings/matmul/product.h"

namespace interop::bindings {

/// Tells the CUDA layer, once, where cuda-pathfinder finds cuBLASLt. Not at import: it takes a while.
void find_cublas();

/// A copy of an operand in the dtype of the product.
class Converted;

/// What a product on a GPU is: the operands that are converted first, then the kernel.
class DeviceProduct {
 public:
  DeviceProduct(const Product& product, const DLTensor& out, cuda::MatmulOptions options);
  ~DeviceProduct();

  size_t workspace_bytes() const;
  /// Queues the work on the call's stream. `tunes`: the candidates are measured first, if the product can be tuned.
  void launch(Call& call, bool tunes);
  std::string describe() const;

 private:
  void set_scales(const Product& product);

  std::unique_ptr<Converted> converted_[2];  // null for what is read as it is
  Gemm gemm_;
  cuda::MatmulOptions options_;
  cuda::MatmulPlan plan_;
};

}  // namespace interop::bindings
