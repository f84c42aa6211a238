/// What a call would do, as Python asks it.
#include "bindings/explain.h"

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace interop::bindings {
namespace {

nb::object explain(nb::handle operation, nb::tuple operands, nb::dict options) {
  if (!PyUnicode_Check(operation.ptr())) return explain_expression(operation, operands, options);
  const nb::object a = operands[0], b = operands[1];
  const bool is_matmul = PyUnicode_CompareWithASCIIString(operation.ptr(), "matmul") == 0;
  return is_matmul ? explain_matmul(a, b, options) : explain_elementwise(operation, a, b, options);
}

}  // namespace

void bind_explain(nb::module_& m) {
  m.def(
      "explain", &explain, nb::arg(), nb::arg(), nb::arg(),
      nb::sig("def explain(operation: str | Expression, operands: tuple[typing.Any, ...], "
              "options: dict[str, typing.Any], /) -> typing.Any"),
      "What a call would do: of \"matmul\", of an elementwise function by its name, whose second operand may be None, "
      "or of an expression. Where JAX would do it: None, or of an expression its split and the arguments. Launches, "
      "compiles and allocates nothing.");
}

}  // namespace interop::bindings
