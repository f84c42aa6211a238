/// The layouts, dtypes and epilogues that cuBLASLt takes, and their translation.
#include "cuda/matmul/cublas/key.h"

#include <limits>

namespace interop::cuda::cublas {
namespace {

/// A matrix in BLAS's terms: one unit stride, and a leading dimension that is at least the length of a row (or column).
struct BlasLayout {
  bool possible = false;
  bool row_major = true;
  int64_t ld = 0;
};

/// The stride of a dimension of size 1 does not matter, so the leading dimension is then ours to choose.
BlasLayout row_major_layout(int64_t rows, int64_t columns, const MatrixStrides& strides) {
  const int64_t ld = rows == 1 ? columns : strides.row;
  return {(strides.column == 1 || columns == 1) && ld >= columns, true, ld};
}
BlasLayout column_major_layout(int64_t rows, int64_t columns, const MatrixStrides& strides) {
  const int64_t ld = columns == 1 ? rows : strides.column;
  return {(strides.row == 1 || rows == 1) && ld >= rows, false, ld};
}

BlasLayout blas_layout(int64_t rows, int64_t columns, const MatrixStrides& strides) {
  const BlasLayout layout = row_major_layout(rows, columns, strides);
  return layout.possible ? layout : column_major_layout(rows, columns, strides);
}
BlasLayout blas_layout(int64_t rows, int64_t columns, const MatrixStrides& strides, bool row_major) {
  return row_major ? row_major_layout(rows, columns, strides) : column_major_layout(rows, columns, strides);
}

/// The largest power of two, up to `most`, that divides the address of every matrix of a batch.
uint64_t alignment_of(const void* pointer, int64_t batch_stride, std::size_t item, uint64_t most) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(pointer) | (static_cast<uint64_t>(batch_stride) * item) | most;
  return bits & ~(bits - 1);
}

std::optional<lt::DataType> lt_type(DLDataType dtype) {
  switch (dtype.code) {
    case kDLFloat:
      return dtype.bits == 16 ? lt::kReal16F : dtype.bits == 32 ? lt::kReal32F : lt::kReal64F;
    case kDLBfloat:
      return lt::kReal16BF;
    case kDLComplex:
      return dtype.bits == 64 ? lt::kComplex32F : lt::kComplex64F;
    case kDLFloat8_e4m3fn:
      return lt::kReal8FE4M3;
    case kDLFloat8_e5m2:
      return lt::kReal8FE5M2;
    case kDLInt:
      if (dtype.bits == 8) return lt::kReal8I;
      if (dtype.bits == 32) return lt::kReal32I;
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

/// Can cuBLASLt conjugate this operand? It conjugates only operands that it transposes, and it computes c^T where c is
/// row-major.
bool can_conjugate(bool conjugated, bool row_major, const BlasLayout& c) {
  return !conjugated || row_major != c.row_major;
}

/// Adds the epilogue to the key; returns why cuBLASLt cannot compute it, or null.
const char* add_finish(const Gemm& gemm, const MatmulOptions& options, const BlasLayout& c, Key& key) {
  const std::size_t item = item_bytes(gemm.out_dtype);
  const BatchDim batch = gemm.batch_ndim == 1 ? gemm.batch[0] : BatchDim{};
  if (gemm.scales && gemm.out_dtype.code == kDLInt) return "its integer products have no factors but 0 and 1";
  if (gemm.addend && gemm.bias && item == 2) return "it may round to 16 bits between c and bias";
  if (gemm.addend) {
    const BlasLayout addend = blas_layout(gemm.m, gemm.n, gemm.addend_strides, c.row_major);
    if (!addend.possible) return "c has no unit stride where the result has it, or is broadcast";
    if (batch.addend_stride < 0) return "its batch has a negative stride";
    key.flags |= kHasAddend;
    key.ld_addend = addend.ld;
    key.addend_stride = batch.addend_stride;
    key.alignments |= alignment_of(gemm.addend, batch.addend_stride, item, options.alignment) << 48;
  }
  if (gemm.bias) {
    const int64_t along = c.row_major ? gemm.bias_strides.column : gemm.bias_strides.row;
    const int64_t across = c.row_major ? gemm.bias_strides.row : gemm.bias_strides.column;
    const int64_t length = c.row_major ? gemm.n : gemm.m;
    if (across != 0 || (along != 1 && length > 1)) return "bias does not run along the result's unit stride";
    // cuBLASLt would read it as bfloat16.
    if (gemm.dtype.bits == 8 && gemm.out_dtype.code == kDLFloat && item == 4) {
      return "it takes no float32 bias beside float8 operands";
    }
    key.flags |= kHasBias;
    key.alignments_2 |= alignment_of(gemm.bias, 0, item, options.alignment);
  }
  if (gemm.activation == Activation::gelu) return "it has no exact gelu (but 'gelu_tanh')";
  if (gemm.activation == Activation::relu) key.flags |= kHasRelu;
  if (gemm.activation == Activation::gelu_tanh) {
    // It uses the hardware's tanh, of 11 bits, and 1 + tanh has fewer: enough for float8 operands only.
    if (gemm.dtype.bits != 8) return "its gelu is not as exact as the result's dtype";
    key.flags |= kHasGelu;
  }
  if (gemm.aux) {
    if (gemm.activation != Activation::gelu_tanh) return "it writes aux for 'gelu_tanh' only";
    const BlasLayout aux = blas_layout(gemm.m, gemm.n, gemm.aux_strides, c.row_major);
    if (!aux.possible) return "aux has no unit stride where the result has it";
    if (batch.aux_stride < 0) return "its batch has a negative stride";
    if (aux.ld % 8 != 0 || batch.aux_stride % 8 != 0) return "the rows of aux are not a multiple of 8 elements apart";
    key.flags |= kHasAux;
    key.ld_aux = aux.ld;
    key.aux_stride = batch.aux_stride;
    key.alignments_2 |= alignment_of(gemm.aux, batch.aux_stride, item, options.alignment) << 16;
  }
  return nullptr;
}

}  // namespace

std::optional<Types> types_of(const Gemm& gemm, MatmulPrecision precision) {
  const bool allow_tf32 = precision == MatmulPrecision::tf32;  // cuBLASLt has no tf32x3: such products are exact
  const auto a = lt_type(gemm.dtype), b = lt_type(gemm.b_dtype), result = lt_type(gemm.out_dtype);
  if (!a || !b || !result) return std::nullopt;
  const auto types = [&](lt::ComputeType compute, lt::DataType scale, uint64_t allowed) {
    return Types{*a, *b, *result, compute, scale, allowed};
  };
  switch (*a) {
    case lt::kReal32F:
      if (!allow_tf32) return types(lt::kCompute32F, lt::kReal32F, lt::kFma | lt::kAccumulate32F | lt::kInput32F);
      return types(lt::kCompute32FFastTf32, lt::kReal32F,
                   lt::kFma | lt::kTensorHalf | lt::kAccumulate32F | lt::kInput32F | lt::kInputTf32);
    case lt::kReal64F:
      return types(lt::kCompute64F, lt::kReal64F, lt::kFma | lt::kTensorDouble | lt::kAccumulate64F | lt::kInput64F);
    case lt::kComplex32F:
      return types(lt::kCompute32F, lt::kComplex32F, lt::kFma | lt::kAccumulate32F | lt::kInput32F);
    case lt::kComplex64F:
      return types(lt::kCompute64F, lt::kComplex64F, lt::kFma | lt::kTensorDouble | lt::kAccumulate64F | lt::kInput64F);
    case lt::kReal16F:
    case lt::kReal16BF:
      if (*a != *b) return std::nullopt;
      [[fallthrough]];
    case lt::kReal8FE4M3:
    case lt::kReal8FE5M2:
      return types(lt::kCompute32F, lt::kReal32F, lt::kAnyInstruction | lt::kAccumulate32F | lt::kAnyInput);
    case lt::kReal8I:
      if (*b != lt::kReal8I || *result != lt::kReal32I) return std::nullopt;
      return types(lt::kCompute32I, lt::kReal32I, lt::kAnyInstruction | lt::kAccumulate32I | lt::kAnyInput);
    default:
      return std::nullopt;
  }
}

uint64_t hash_of(const Key& key) {
  uint64_t words[kKeyWords];
  std::memcpy(words, &key, sizeof key);
  uint64_t even = 0, odd = 0;  // two chains, which the processor runs side by side
  for (int i = 0; i < kKeyWords; i += 2) {
    even = (even ^ words[i]) * 0x9E3779B97F4A7C15u;
    odd = (odd ^ words[i + 1]) * 0xC2B2AE3D27D4EB4Fu;
    even ^= even >> 29;
    odd ^= odd >> 31;
  }
  const uint64_t hash = (even ^ odd * 0x9E3779B97F4A7C15u) * 0xC2B2AE3D27D4EB4Fu;
  return hash ^ hash >> 32;
}

const char* why_not_batch(const Gemm& gemm) {
  if (gemm.batch_ndim > 1) return "its batch does not collapse to one dimension";
  const BatchDim batch = gemm.batch_ndim == 1 ? gemm.batch[0] : BatchDim{};
  if (batch.a_stride < 0 || batch.b_stride < 0 || batch.c_stride < 0) return "its batch has a negative stride";
  if (batch.size > std::numeric_limits<int32_t>::max()) return "its batch is longer than 2147483647";
  return nullptr;
}

const char* make_key(const Gemm& gemm, const MatmulOptions& options, const Types& types, int device, Key& key) {
  const BlasLayout c = blas_layout(gemm.m, gemm.n, gemm.c_strides);
  const BlasLayout a = blas_layout(gemm.m, gemm.k, gemm.a_strides);
  const BlasLayout b = blas_layout(gemm.k, gemm.n, gemm.b_strides);
  if (!a.possible) return "a has no unit stride, or its rows overlap";
  if (!b.possible) return "b has no unit stride, or its rows overlap";
  if (!c.possible) return "out has no unit stride, or its rows overlap";
  if (const char* why_not = why_not_batch(gemm)) return why_not;
  const BatchDim batch = gemm.batch_ndim == 1 ? gemm.batch[0] : BatchDim{};
  if (!can_conjugate(gemm.a_conjugated, a.row_major, c)) return "it conjugates only what it transposes, and not a";
  if (!can_conjugate(gemm.b_conjugated, b.row_major, c)) return "it conjugates only what it transposes, and not b";

  key = {gemm.m, gemm.n, gemm.k, a.ld, b.ld, c.ld, batch.size, batch.a_stride, batch.b_stride, batch.c_stride, 0,
         0,      0,      0,      0,    0,    0,    0};
  key.flags = (types.compute == lt::kCompute32FFastTf32 ? kTf32 : 0) | (a.row_major ? kRowMajorA : 0) |
              (b.row_major ? kRowMajorB : 0) | (c.row_major ? kRowMajorC : 0) | (gemm.a_conjugated ? kConjugatesA : 0) |
              (gemm.b_conjugated ? kConjugatesB : 0) | (gemm.factor_a ? kHasFactorA : 0) |
              (gemm.factor_b ? kHasFactorB : 0) | (options.uses_choices ? 0 : kIgnoresChoices) |
              static_cast<uint64_t>(device) << kDeviceShift;
  key.types = static_cast<uint64_t>(types.a) | static_cast<uint64_t>(types.b) << 8 |
              static_cast<uint64_t>(types.result) << kResultTypeShift;
  const std::size_t item = item_bytes(gemm.dtype), out_item = item_bytes(gemm.out_dtype);
  key.alignments = alignment_of(gemm.a, batch.a_stride, item, options.alignment) |
                   alignment_of(gemm.b, batch.b_stride, item, options.alignment) << 16 |
                   alignment_of(gemm.c, batch.c_stride, out_item, options.alignment) << 32;
  return add_finish(gemm, options, c, key);
}

}  // namespace interop::cuda::cublas
