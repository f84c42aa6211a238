/// Calls on torch's tensors as memory.
#include "bindings/below_autograd.h"

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace interop::bindings {
namespace {

nb::object below_autograd(nb::handle operation, nb::handle options, nb::args operands) {
  const nb::dict given = options.is_none() ? nb::dict() : nb::borrow<nb::dict>(options);
  if (!PyUnicode_Check(operation.ptr())) return expression_below_autograd(operation, operands, given);
  const nb::object a = operands[0], b = operands[1];
  const bool is_matmul = PyUnicode_CompareWithASCIIString(operation.ptr(), "matmul") == 0;
  return is_matmul ? matmul_below_autograd(a, b, given) : elementwise_below_autograd(operation, a, b, given);
}

}  // namespace

void bind_below_autograd(nb::module_& m) {
  m.def("below_autograd", &below_autograd, nb::arg(), nb::arg().none(), nb::arg(),
        nb::sig("def below_autograd(operation: str | Expression, options: dict[str, typing.Any] | None, /, "
                "*operands: typing.Any) -> typing.Any"),
        "What the call computes of torch's tensors as memory: \"matmul\", an elementwise function by its name, whose "
        "second operand may be None, or an expression. Gradients, modes and transforms are the caller's to see to.");
}

}  // namespace interop::bindings
