/// The products in the gradients of a product: each is one product of the arrays as they are, with flags for adjoints.
#include "bindings/matmul/backward.h"

#include <algorithm>

#include "bindings/arguments.h"
#include "bindings/functions/results.h"
#include "bindings/matmul/product.h"
#include "bindings/matmul/terms.h"
#include "exchange/closing.h"

namespace interop::bindings {
namespace {

/// The shape of an operand.
struct Operand {
  Shape shape;
  explicit Operand(const char* name, nb::handle sizes) { shape.ndim = read_sizes(kMatmul, name, sizes, shape.sizes); }
  bool is_vector() const { return shape.ndim == 1; }
  /// Was it broadcast over every stack there was?
  bool is_one_matrix() const {
    return std::all_of(shape.sizes, shape.sizes + std::max(shape.ndim - 2, 0), [](int64_t size) { return size == 1; });
  }
};

nb::object gradient(nb::handle left, nb::handle right, const Terms& terms, const Turned& turned) {
  const cuda::MatmulOptions options = read_kernel_options(terms.backend, terms.precision);
  return exchange::as_call(kMatmul, !terms.execution.is_none(), [&] {
    Product product(left, right, terms, {false, true}, &turned);
    return run(product, options);
  });
}

nb::tuple matmul_backward(nb::handle grad, nb::handle a, nb::handle b, nb::handle a_sizes, nb::handle b_sizes,
                          nb::dict given) {
  const exchange::CallGuard guard;
  const Terms terms = read_terms(grad, grad, given);
  check_terms(terms);
  const Operand a_operand("a", a_sizes), b_operand("b", b_sizes);
  const bool a_is_row = a_operand.is_vector(), b_is_column = b_operand.is_vector();
  nb::object by_a = nb::none(), by_b = nb::none();
  if (!b.is_none()) {  // grad b^H
    by_a = gradient(
        grad, b, terms,
        {{a_is_row, false}, {b_is_column, b_is_column}, {false, true}, a_is_row, false, a_operand.is_one_matrix()});
  }
  if (!a.is_none()) {  // a^H grad
    by_b = gradient(
        a, grad, terms,
        {{a_is_row, a_is_row}, {false, b_is_column}, {true, false}, false, b_is_column, b_operand.is_one_matrix()});
  }
  return nb::make_tuple(by_a, by_b);
}

}  // namespace

void bind_matmul_backward(nb::module_& m) {
  m.def("matmul_backward", &matmul_backward, nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(),
        nb::arg(),
        nb::sig("def matmul_backward(grad: typing.Any, a: typing.Any, b: typing.Any, a_shape: tuple[int, ...], "
                "b_shape: tuple[int, ...], options: dict[str, typing.Any], /) -> tuple[typing.Any, typing.Any]"),
        "The gradients by a and b of a product of tensors of these shapes, from that of the product, with the named "
        "arguments of a product. That by a is None where b is, and the other way round. They are in the dtype of their "
        "products, and have the stacks of `grad` where an operand was broadcast over them in another layout than one "
        "product can add up. Tensors are read as memory.");
}

}  // namespace interop::bindings
