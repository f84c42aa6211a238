/// A product in BLAS's terms: the key of a plan. Private to src/cuda.
#pragma once

#include <interop/cuda/matmul.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "cuda/matmul/cublas/cublaslt_api.h"

namespace interop::cuda::cublas {

/// cuBLASLt's types for a product of some dtypes.
struct Types {
  lt::DataType a, b, result;
  lt::ComputeType compute;
  lt::DataType scale;  // of alpha and beta
  uint64_t allowed;    // a mask of implementations
};

/// How products of these dtypes are computed; none where cuBLASLt has no product that is as exact as ours.
///
/// The mask overrides the environment. A float32 product is exact unless the caller allows TF32: the compute type asks
/// for that, and the mask enforces it even where NVIDIA_TF32_OVERRIDE=1 is set. No float64 product is emulated on
/// integer units, no 16-bit float is added up in 16 bits, and no complex product takes three real ones (Gauss).
std::optional<Types> types_of(const Gemm& gemm, MatmulPrecision precision);

/// All that cuBLASLt's choice depends on.
struct Key {
  int64_t m, n, k;
  int64_t lda, ldb, ldc;
  int64_t batch, a_stride, b_stride, c_stride;
  int64_t ld_addend, addend_stride, ld_aux, aux_stride;
  uint64_t flags;         // the device, and the bits below
  uint64_t types;         // of a, b, the result
  uint64_t alignments;    // of a, b, c, the addend
  uint64_t alignments_2;  // of the bias, aux
};
constexpr int kKeyWords = 18;
static_assert(sizeof(Key) == kKeyWords * 8, "compared and hashed as bytes: no padding");

constexpr uint64_t kTf32 = 1, kRowMajorA = 2, kRowMajorB = 4, kRowMajorC = 8, kConjugatesA = 16, kConjugatesB = 32,
                   kHasAddend = 64, kHasBias = 128, kHasAux = 256, kHasRelu = 512, kHasGelu = 1024, kHasFactorA = 2048,
                   kHasFactorB = 4096, kIgnoresChoices = 8192;
constexpr int kDeviceShift = 16;
constexpr int kResultTypeShift = 16;
constexpr uint64_t kDeviceMask = ~uint64_t{0} << kDeviceShift;

uint64_t hash_of(const Key& key);

/// A key with its hash, so that a lookup computes it once.
struct HashedKey {
  Key key;
  uint64_t hash;
};
inline bool operator==(const HashedKey& x, const HashedKey& y) {
  return std::memcmp(&x.key, &y.key, sizeof x.key) == 0;
}
struct StoredHash {
  std::size_t operator()(const HashedKey& key) const { return key.hash; }
};

/// Why cuBLASLt cannot take the batch of a product; null if it can.
const char* why_not_batch(const Gemm& gemm);
/// Translates the product to BLAS's terms; returns why that is impossible, or null.
const char* make_key(const Gemm& gemm, const MatmulOptions& options, const Types& types, int device, Key& key);

}  // namespace interop::cuda::cublas
