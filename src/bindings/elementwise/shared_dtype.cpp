/// The dtype that operands share by themselves.
#include "bindings/elementwise/shared_dtype.h"

#include "ops/elementwise.h"

namespace interop::bindings {
namespace {

bool is_integral_operand(const PromotedOperand& operand) {
  if (operand.dtype) return is_integral(*operand.dtype) && is_served(*operand.dtype);
  return is_integral_scalar(operand.scalar, operand.kind);
}

}  // namespace

std::optional<DLDataType> shared_dtype(const Operation& operation, const PromotedOperand* operands, int count) {
  const PromotedOperand *first = nullptr, *last = nullptr, *strong = nullptr;  // among the arrays
  bool is_exact = is_comparison(operation);
  for (const PromotedOperand* x = operands; x != operands + count; ++x) {
    if (x->dtype) {
      if (!first) first = x;
      if (!strong && x->kind == Kind::array) strong = x;
      last = x;
    }
    is_exact = is_exact && is_integral_operand(*x);
  }
  if (!first) return std::nullopt;
  if (is_exact) return ops::comparison_dtype(*first->dtype, *last->dtype);
  const DLDataType dtype = *(strong ? strong : first)->dtype;
  for (const PromotedOperand* x = operands; x != operands + count; ++x) {
    if (x->kind == Kind::array ? !(*x->dtype == dtype) : x->kind > kind_of(dtype)) return std::nullopt;
  }
  if (operation.in_float && is_integral(dtype)) return std::nullopt;
  return dtype;
}

}  // namespace interop::bindings
