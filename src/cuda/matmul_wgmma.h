/// float16 and bfloat16 products on the tensor cores of sm_90. Private to src/cuda.
#pragma once

#include <interop/cuda/matmul.h>

#include <string>

namespace interop::cuda::wgmma {

/// How one product is computed. The defaults leave every choice to the launcher.
struct Options {
  bool float32_c = false;      // c is float32 instead of the dtype of a and b
  bool direct_stores = false;  // even where TMA could store c
  int variant = -1;            // an index below variant_count()
  int super_row = 0;           // how many rows of c the tiles that run at one time span, about
};

/// float16 or bfloat16 on a device of compute capability 9.0, with k >= 1, of layouts that TMA reads: one unit stride
/// in each of a and b, the other strides positive multiples of 16 bytes (0 for a broadcast batch), as are the
/// addresses. c may lie as it likes. There is something to compute.
bool serves(const Gemm& gemm);

/// `serves(gemm)` is true. Accumulates in float32, in one fixed order.
void launch(const Gemm& gemm, const Options& options, cudaStream_t stream);
/// "wgmma 128x256x64 cluster 2, TMA stores, bfloat16".
std::string describe(const Gemm& gemm, const Options& options);

int variant_count();
const char* variant_name(int variant);
/// Can this variant compute the product?
bool takes(int variant, const Gemm& gemm);

}  // namespace interop::cuda::wgmma
