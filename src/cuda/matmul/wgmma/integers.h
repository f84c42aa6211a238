/// Integer and bool products on the tensor cores of sm_90. Private to src/cuda.
#pragma once

#include <interop/cuda/matmul.h>

#include <optional>
#include <string>

#include "cuda/matmul/choosing.h"

namespace interop::cuda::wgmma {

/// Plans a product, without its kernel; none if these kernels do not serve it, or would pack more than
/// `most_packed_bytes`. Both operands are integers or bool of the same width. The device has compute capability 9.0,
/// this build has code for it (90a), and there is something to compute. Operands of 8 bits whose unit stride is k are
/// read directly where TMA can; all others are packed.
std::optional<MatmulPlan> plan_integers(const Gemm& gemm, std::size_t most_packed_bytes, const Device& device);
/// The bytes that such a plan packs, for operands aligned as these are; 0 if that is more than `most_packed_bytes`.
/// Queries no device.
std::size_t largest_integer_packing(const Gemm& gemm, std::size_t most_packed_bytes);
/// The quickest of the tiles, without the packing. All tiles of one result's width compute any product of it.
Estimate choose_integers(const Gemm& gemm, const Device& device);

/// `plan` comes from `plan_integers`. The result is exact, modulo its dtype's range. `workspace` has
/// plan.workspace_bytes and is 256-byte aligned.
void launch_integer_variant(int variant, const Gemm& gemm, const MatmulPlan& plan, void* workspace,
                            cudaStream_t stream);
/// "wgmma 128x256x128 of bytes, 10 passes, int32".
std::string describe_integers(const Gemm& gemm, int variant);

int integer_variant_count(const Gemm& gemm);
const char* integer_variant_name(const Gemm& gemm, int variant);

}  // namespace interop::cuda::wgmma
