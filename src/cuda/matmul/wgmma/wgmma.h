/// float16, bfloat16 and TF32 products on the tensor cores of sm_90. Private to src/cuda.
#pragma once

#include <interop/cuda/matmul.h>

#include <optional>
#include <string>

namespace interop::cuda::wgmma {

/// Two operands of float16 or two of bfloat16, with a result of their dtype or float32, for `exact`; two of float32
/// otherwise. On a device of compute capability 9.0, if this build has code for it (90a), and with something to
/// compute; none where that is not so, or more than `most_packed_bytes` would be packed.
///
/// Operands are read as they are where TMA can: one unit stride, the other strides positive multiples of 16 bytes (0
/// for a broadcast batch), as is the address. Otherwise they are packed first; for `tf32` also the smaller one of two
/// where k is the unit stride of neither, and for `tf32x3` always both. All that has the result's shape may lie as it
/// likes.
std::optional<MatmulPlan> plan(const Gemm& gemm, MatmulPrecision precision, std::size_t most_packed_bytes);
/// What such a plan packs, in bytes, for operands aligned as these are; 0 where that is more than `most_packed_bytes`.
/// Asks no device.
std::size_t largest_packing(const Gemm& gemm, MatmulPrecision precision, std::size_t most_packed_bytes);

/// `plan` is the one above. Accumulates in float32, in one fixed order. `workspace` holds plan.workspace_bytes,
/// 256-byte aligned.
void launch(const Gemm& gemm, const MatmulPlan& plan, void* workspace, cudaStream_t stream);
/// About how long that takes an H100, in microseconds, without the packing.
double estimated_us(const Gemm& gemm, const MatmulPlan& plan);
/// "wgmma 128x256x64, bfloat16".
std::string describe(const Gemm& gemm, const MatmulPlan& plan);

/// The tiles to choose from, by name, for tests: all of them compute any product that is served.
int variant_count(MatmulPrecision precision);
const char* variant_name(MatmulPrecision precision, int variant);
void launch_variant(int variant, const Gemm& gemm, const MatmulPlan& plan, void* workspace, cudaStream_t stream);

}  // namespace interop::cuda::wgmma
