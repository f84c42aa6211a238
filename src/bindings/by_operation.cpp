/// Which function does something with a call, by the operation that Python gives.
#include "bindings/by_operation.h"

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace interop::bindings {
namespace {

/// The functions that do one thing, one for each kind of operation.
struct ByOperation {
  nb::object (*matmul)(nb::handle a, nb::handle b, nb::dict given);
  nb::object (*elementwise)(nb::handle name, nb::handle a, nb::handle b, nb::dict given);
  nb::object (*expression)(nb::handle expression, nb::tuple operands, nb::dict given);

  nb::object operator()(nb::handle operation, nb::tuple operands, nb::dict given) const {
    if (!PyUnicode_Check(operation.ptr())) return expression(operation, operands, given);
    const nb::object a = operands[0], b = operands[1];
    const bool is_matmul = PyUnicode_CompareWithASCIIString(operation.ptr(), "matmul") == 0;
    return is_matmul ? matmul(a, b, given) : elementwise(operation, a, b, given);
  }
};

constexpr ByOperation kExplain{explain_matmul, explain_elementwise, explain_expression};
constexpr ByOperation kBelowAutograd{matmul_below_autograd, elementwise_below_autograd, expression_below_autograd};

nb::object below_autograd(nb::handle operation, nb::handle options, nb::args operands) {
  return kBelowAutograd(operation, operands, options.is_none() ? nb::dict() : nb::borrow<nb::dict>(options));
}

}  // namespace

void bind_by_operation(nb::module_& m) {
  m.def("explain", kExplain, nb::arg(), nb::arg(), nb::arg(),
        nb::sig("def explain(operation: str | Expression, operands: tuple[typing.Any, ...], "
                "options: dict[str, typing.Any], /) -> typing.Any"),
        "What a call would do: of \"matmul\", of an elementwise function by its name, whose second operand may be "
        "None, or of an expression. Where JAX would do it: None, or of an expression its split and the arguments. "
        "Launches, compiles and allocates nothing.");
  m.def("below_autograd", &below_autograd, nb::arg(), nb::arg().none(), nb::arg(),
        nb::sig("def below_autograd(operation: str | Expression, options: dict[str, typing.Any] | None, /, "
                "*operands: typing.Any) -> typing.Any"),
        "What the call computes of torch's tensors as memory: \"matmul\", an elementwise function by its name, whose "
        "second operand may be None, or an expression. Gradients, modes and transforms are the caller's to see to.");
}

}  // namespace interop::bindings
