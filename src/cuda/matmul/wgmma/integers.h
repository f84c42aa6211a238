/// Integer and bool products on the tensor cores of sm_90. Private to src/cuda.
#pragma once

#include <interop/cuda/matmul.h>

#include <optional>
#include <string>

namespace interop::cuda::wgmma {

/// Two operands of integers or bool, as wide as each other, on a device of compute capability 9.0, if this build has
/// code for it (90a), and something to compute; none where that is not so, or more than `most_packed_bytes` would be
/// packed. Operands of 8 bits are read as they are where TMA can and k is the unit stride; all others are packed.
std::optional<MatmulPlan> plan_integers(const Gemm& gemm, std::size_t most_packed_bytes);
/// What such a plan packs, in bytes, for operands aligned as these are; 0 where that is more than `most_packed_bytes`.
/// Asks no device.
std::size_t largest_integer_packing(const Gemm& gemm, std::size_t most_packed_bytes);
/// How long such a product takes an H100, but for the packing.
double integer_us(const Gemm& gemm);

/// `plan` is `plan_integers`'. Exact, modulo the result's range. `workspace` holds plan.workspace_bytes, 256-byte
/// aligned.
void launch_integers(const Gemm& gemm, const MatmulPlan& plan, void* workspace, cudaStream_t stream);
/// "wgmma 128x256x128 of bytes, 10 passes, int32".
std::string describe_integers(const Gemm& gemm);

/// The tiles to choose from, by name, for tests: those of one result's width compute any product of it.
int integer_variant_count(const Gemm& gemm);
const char* integer_variant_name(const Gemm& gemm, int variant);
void launch_integer_variant(int variant, const Gemm& gemm, const MatmulPlan& plan, void* workspace,
                            cudaStream_t stream);

}  // namespace interop::cuda::wgmma
