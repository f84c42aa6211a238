/// float16, bfloat16 and TF32 products on the tensor cores of sm_90. Private to src/cuda.
#pragma once

#include <interop/cuda/matmul.h>

#include <optional>
#include <string>

#include "cuda/matmul/choosing.h"

namespace interop::cuda::wgmma {

/// Plans a product, without its kernel; none if these kernels do not serve it, or would pack more than
/// `most_packed_bytes`. For `exact`, both operands are float16 or both bfloat16, and the result has their dtype or is
/// float32; otherwise both are float32. The device has compute capability 9.0, this build has code for it (90a), and
/// there is something to compute.
///
/// TMA reads an operand directly if it has one unit stride, and its address and its other strides are multiples of 16
/// bytes; these strides are positive, or 0 for a broadcast batch. Other operands are packed first. `tf32` also packs
/// the smaller operand where k is the unit stride of neither; `tf32x3` packs both. Arrays of the result's shape may
/// have any strides.
std::optional<MatmulPlan> plan(const Gemm& gemm, MatmulPrecision precision, std::size_t most_packed_bytes,
                               const Device& device);
/// The bytes that such a plan packs, for operands aligned as these are; 0 if that is more than `most_packed_bytes`.
/// Queries no device.
std::size_t largest_packing(const Gemm& gemm, MatmulPrecision precision, std::size_t most_packed_bytes);

/// The quickest of the tiles, all of which compute any product that is served, without the packing.
Estimate choose(const Gemm& gemm, MatmulPrecision precision, bool packs_b, const Device& device);

/// `plan` comes from `plan()`. Accumulates in float32, in one fixed order. `workspace` has plan.workspace_bytes and is
/// 256-byte aligned.
void launch_variant(int variant, const Gemm& gemm, const MatmulPlan& plan, void* workspace, cudaStream_t stream);
/// "wgmma 128x256x64, bfloat16".
std::string describe(const Gemm& gemm, const MatmulPlan& plan);

int variant_count(MatmulPrecision precision);
const char* variant_name(MatmulPrecision precision, int variant);

}  // namespace interop::cuda::wgmma
