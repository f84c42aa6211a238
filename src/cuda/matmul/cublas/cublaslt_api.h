/// The part of cuBLASLt that we call, declared here so that the build needs no cuBLAS. If the build finds cublasLt.h,
/// it checks every value and size against it. Private to src/cuda.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace interop::cuda::lt {

using Status = int;
using Handle = struct HandleOpaque*;
using Operation = struct OperationOpaque*;    // cublasLtMatmulDesc_t
using Layout = struct LayoutOpaque*;          // cublasLtMatrixLayout_t
using Preference = struct PreferenceOpaque*;  // cublasLtMatmulPreference_t

constexpr Status kSuccess = 0;
constexpr Status kInvalidValue = 7;
constexpr Status kNotSupported = 15;

enum DataType : int {
  kReal32F = 0,
  kReal64F = 1,
  kReal16F = 2,
  kReal8I = 3,
  kComplex32F = 4,
  kComplex64F = 5,
  kReal32I = 10,
  kReal16BF = 14,
  kReal8FE4M3 = 28,
  kReal8FE5M2 = 29,
};
enum ComputeType : int { kCompute32F = 68, kCompute64F = 70, kCompute32I = 72, kCompute32FFastTf32 = 77 };
enum Transpose : std::int32_t { kAsIs = 0, kTransposed = 1, kConjugateTransposed = 2 };
enum OperationAttribute : int {
  kTransposeA = 3,
  kTransposeB = 4,
  kEpilogue = 7,
  kBiasPointer = 8,
  kAuxPointer = 11,
  kAuxLd = 12,
  kAuxBatchStride = 13,
  kScaleAPointer = 17,
  kScaleBPointer = 18,
};
/// Flags to be or'ed, except the first.
enum Epilogue : std::uint32_t { kNoEpilogue = 1, kRelu = 2, kBias = 4, kGelu = 32, kGeluAux = 32 | 128 };
enum LayoutAttribute : int { kBatchCount = 5, kBatchStride = 6 };
enum PreferenceAttribute : int {
  kMaxWorkspaceBytes = 1,
  kReductionSchemeMask = 3,
  kAlignmentA = 5,
  kAlignmentB = 6,
  kAlignmentC = 7,
  kAlignmentD = 8,
  kImplementationMask = 12,
};
enum AlgorithmAttribute : int { kAlgorithmId = 0, kTileId = 1, kSplitK = 2, kReductionScheme = 3, kStagesId = 6 };
enum ReductionScheme : std::uint32_t { kNoReduction = 0, kReduceInComputeType = 2 };

/// The length of an algorithm's tile along k, by its kStagesId; 0 where that does not say it.
constexpr int kTileK[] = {0,   16,  16,  16,  16,  16, 16, 32, 32, 32, 32, 32, 32, 64, 64, 64, 64,  64,  64, 128,
                          128, 128, 128, 128, 128, 32, 8,  16, 8,  0,  0,  8,  8,  16, 32, 64, 128, 256, 768};
constexpr int tile_k(std::uint32_t stages) { return stages < std::size(kTileK) ? kTileK[stages] : 0; }

/// What a kernel computes with: instruction | accumulator | operands.
enum Implementation : std::uint64_t {
  kFma = 0x1,
  kTensorHalf = 0x2,
  kTensorDouble = 0x8,
  kAnyInstruction = 0xff,
  kAccumulate32F = 0x200,
  kAccumulate64F = 0x400,
  kAccumulate32I = 0x800,
  kInputTf32 = 0x40000,
  kInput32F = 0x80000,
  kInput64F = 0x100000,
  kAnyInput = 0xff0000,
};

struct Algorithm {
  std::uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  std::size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};

/// The functions, by their names in the library.
struct Api {
  std::size_t (*cublasLtGetVersion)();
  const char* (*cublasLtGetStatusName)(Status);
  Status (*cublasLtCreate)(Handle*);
  Status (*cublasLtMatmulDescCreate)(Operation*, ComputeType, DataType);
  Status (*cublasLtMatmulDescDestroy)(Operation);
  Status (*cublasLtMatmulDescSetAttribute)(Operation, OperationAttribute, const void*, std::size_t);
  Status (*cublasLtMatrixLayoutCreate)(Layout*, DataType, std::uint64_t rows, std::uint64_t columns, std::int64_t ld);
  Status (*cublasLtMatrixLayoutDestroy)(Layout);
  Status (*cublasLtMatrixLayoutSetAttribute)(Layout, LayoutAttribute, const void*, std::size_t);
  Status (*cublasLtMatmulPreferenceCreate)(Preference*);
  Status (*cublasLtMatmulPreferenceDestroy)(Preference);
  Status (*cublasLtMatmulPreferenceSetAttribute)(Preference, PreferenceAttribute, const void*, std::size_t);
  Status (*cublasLtMatmulAlgoGetHeuristic)(Handle, Operation, Layout a, Layout b, Layout c, Layout d, Preference,
                                           int requested, Heuristic*, int* returned);
  Status (*cublasLtMatmulAlgoCheck)(Handle, Operation, Layout a, Layout b, Layout c, Layout d, const Algorithm*,
                                    Heuristic*);
  Status (*cublasLtMatmulAlgoConfigGetAttribute)(const Algorithm*, AlgorithmAttribute, void*, std::size_t,
                                                 std::size_t*);
  Status (*cublasLtMatmul)(Handle, Operation, const void* alpha, const void* a, Layout, const void* b, Layout,
                           const void* beta, const void* c, Layout, void* d, Layout, const Algorithm*, void* workspace,
                           std::size_t workspace_bytes, CUstream);
};

}  // namespace interop::cuda::lt

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

namespace interop::cuda::lt {

static_assert(kInvalidValue == CUBLAS_STATUS_INVALID_VALUE && kSuccess == CUBLAS_STATUS_SUCCESS &&
              kNotSupported == CUBLAS_STATUS_NOT_SUPPORTED);
static_assert(int(kReal32F) == CUDA_R_32F && int(kReal64F) == CUDA_R_64F && int(kReal16F) == CUDA_R_16F);
static_assert(int(kReal8I) == CUDA_R_8I && int(kReal32I) == CUDA_R_32I && int(kReal16BF) == CUDA_R_16BF);
static_assert(int(kComplex32F) == CUDA_C_32F && int(kComplex64F) == CUDA_C_64F);
static_assert(int(kReal8FE4M3) == CUDA_R_8F_E4M3 && int(kReal8FE5M2) == CUDA_R_8F_E5M2);
static_assert(int(kCompute32F) == CUBLAS_COMPUTE_32F && int(kCompute64F) == CUBLAS_COMPUTE_64F);
static_assert(int(kCompute32I) == CUBLAS_COMPUTE_32I && int(kConjugateTransposed) == CUBLAS_OP_C);
static_assert(int(kEpilogue) == CUBLASLT_MATMUL_DESC_EPILOGUE &&
              int(kBiasPointer) == CUBLASLT_MATMUL_DESC_BIAS_POINTER);
static_assert(int(kAuxPointer) == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
static_assert(int(kAuxLd) == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
static_assert(int(kAuxBatchStride) == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE);
static_assert(int(kScaleAPointer) == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
static_assert(int(kScaleBPointer) == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
static_assert(int(kNoEpilogue) == CUBLASLT_EPILOGUE_DEFAULT && int(kRelu) == CUBLASLT_EPILOGUE_RELU);
static_assert(int(kRelu | kBias) == CUBLASLT_EPILOGUE_RELU_BIAS && int(kBias) == CUBLASLT_EPILOGUE_BIAS);
static_assert(int(kGelu) == CUBLASLT_EPILOGUE_GELU && int(kGelu | kBias) == CUBLASLT_EPILOGUE_GELU_BIAS);
static_assert(int(kGeluAux) == CUBLASLT_EPILOGUE_GELU_AUX && int(kGeluAux | kBias) == CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
static_assert(int(kCompute32FFastTf32) == CUBLAS_COMPUTE_32F_FAST_TF32);
static_assert(int(kAsIs) == CUBLAS_OP_N && int(kTransposed) == CUBLAS_OP_T);
static_assert(int(kTransposeA) == CUBLASLT_MATMUL_DESC_TRANSA && int(kTransposeB) == CUBLASLT_MATMUL_DESC_TRANSB);
static_assert(int(kBatchCount) == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
static_assert(int(kBatchStride) == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
static_assert(int(kMaxWorkspaceBytes) == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(int(kReductionSchemeMask) == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
static_assert(int(kAlignmentA) == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(int(kAlignmentB) == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
static_assert(int(kAlignmentC) == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
static_assert(int(kAlignmentD) == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
static_assert(int(kImplementationMask) == CUBLASLT_MATMUL_PREF_IMPL_MASK);
static_assert(int(kAlgorithmId) == CUBLASLT_ALGO_CONFIG_ID && int(kTileId) == CUBLASLT_ALGO_CONFIG_TILE_ID);
static_assert(int(kSplitK) == CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
static_assert(int(kReductionScheme) == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
static_assert(int(kStagesId) == CUBLASLT_ALGO_CONFIG_STAGES_ID);
static_assert(tile_k(CUBLASLT_MATMUL_STAGES_UNDEFINED) == 0 && tile_k(CUBLASLT_MATMUL_STAGES_16x6) == 16);
static_assert(tile_k(CUBLASLT_MATMUL_STAGES_32x1) == 32 && tile_k(CUBLASLT_MATMUL_STAGES_32x6) == 32);
static_assert(tile_k(CUBLASLT_MATMUL_STAGES_64x1) == 64 && tile_k(CUBLASLT_MATMUL_STAGES_64x6) == 64);
static_assert(tile_k(CUBLASLT_MATMUL_STAGES_128x1) == 128 && tile_k(CUBLASLT_MATMUL_STAGES_128x6) == 128);
static_assert(tile_k(CUBLASLT_MATMUL_STAGES_32x10) == 32 && tile_k(CUBLASLT_MATMUL_STAGES_8x4) == 8);
static_assert(tile_k(CUBLASLT_MATMUL_STAGES_16x10) == 16 && tile_k(CUBLASLT_MATMUL_STAGES_8x5) == 8);
static_assert(tile_k(CUBLASLT_MATMUL_STAGES_8x3) == 8 && tile_k(CUBLASLT_MATMUL_STAGES_8xAUTO) == 8);
static_assert(tile_k(CUBLASLT_MATMUL_STAGES_16xAUTO) == 16 && tile_k(CUBLASLT_MATMUL_STAGES_32xAUTO) == 32);
static_assert(tile_k(CUBLASLT_MATMUL_STAGES_64xAUTO) == 64 && tile_k(CUBLASLT_MATMUL_STAGES_128xAUTO) == 128);
static_assert(int(kNoReduction) == CUBLASLT_REDUCTION_SCHEME_NONE);
static_assert(int(kReduceInComputeType) == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
static_assert(std::uint64_t(kFma) == CUBLASLT_NUMERICAL_IMPL_FLAGS_FMA);
static_assert(std::uint64_t(kTensorHalf) == CUBLASLT_NUMERICAL_IMPL_FLAGS_HMMA);
static_assert(std::uint64_t(kTensorDouble) == CUBLASLT_NUMERICAL_IMPL_FLAGS_DMMA);
static_assert(std::uint64_t(kAccumulate32F) == CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_32F);
static_assert(std::uint64_t(kAccumulate64F) == CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_64F);
static_assert(std::uint64_t(kAccumulate32I) == CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_32I);
static_assert(std::uint64_t(kAnyInstruction) == CUBLASLT_NUMERICAL_IMPL_FLAGS_OP_TYPE_MASK);
static_assert(std::uint64_t(kAnyInput) == CUBLASLT_NUMERICAL_IMPL_FLAGS_OP_INPUT_TYPE_MASK);
static_assert(std::uint64_t(kInputTf32) == CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32);
static_assert(std::uint64_t(kInput32F) == CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_32F);
static_assert(std::uint64_t(kInput64F) == CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_64F);
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(Heuristic) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(Heuristic, workspace_bytes) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(Heuristic, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));

}  // namespace interop::cuda::lt
#endif
