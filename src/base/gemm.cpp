/// The factors of a product.
#include <interop/gemm.h>

#include <algorithm>
#include <cstring>

namespace interop {
namespace {

bool is_zero(const ScalarValue& value, DLDataType dtype) {
  if (dtype.code == kDLFloat && dtype.bits == 32) {
    float x;
    std::memcpy(&x, value.bytes, sizeof x);
    return x == 0;
  }
  const int parts = dtype.code == kDLComplex && dtype.bits == 128 ? 2 : 1;
  if (dtype.code == kDLFloat || parts == 2) {
    double x[2] = {0, 0};
    std::memcpy(x, value.bytes, sizeof(double) * parts);
    return x[0] == 0 && x[1] == 0;
  }
  if (dtype.code == kDLComplex) {
    float x[2];
    std::memcpy(x, value.bytes, sizeof x);
    return x[0] == 0 && x[1] == 0;
  }
  uint64_t x = 0;
  std::memcpy(&x, value.bytes, dtype.bits / 8);
  return x == 0;
}

}  // namespace

DLDataType factor_dtype(DLDataType out_dtype) {
  if (out_dtype.code == kDLFloat || out_dtype.code == kDLBfloat) {
    return {kDLFloat, static_cast<uint8_t>(std::max<int>(out_dtype.bits, 32)), 1};
  }
  if (out_dtype.code == kDLComplex) return out_dtype;
  const uint8_t code = out_dtype.code == kDLInt ? kDLInt : kDLUInt;
  return {code, static_cast<uint8_t>(std::max<int>(out_dtype.bits, 32)), 1};
}

void set_factors(Gemm& gemm, const ScalarValue& alpha, const ScalarValue& beta) {
  const DLDataType dtype = factor_dtype(gemm.out_dtype);
  gemm.scales = true;
  gemm.alpha = alpha;
  gemm.beta = beta;
  if (is_zero(alpha, dtype)) gemm.k = 0;
  if (is_zero(beta, dtype)) gemm.addend = nullptr;
}

}  // namespace interop
