/// `interop.matmul`: who computes a product, and then by NumPy, on the GPU, in JAX, or in torch.
#include <interop/call.h>
#include <interop/cuda/matmul.h>
#include <nanobind/stl/string.h>

#include <optional>

#include "bindings/bindings.h"
#include "bindings/by_operation.h"
#include "bindings/by_python.h"
#include "bindings/frame.h"
#include "bindings/jax_plans.h"
#include "bindings/matmul/abstract.h"
#include "bindings/matmul/backward.h"
#include "bindings/matmul/choices.h"
#include "bindings/matmul/device_product.h"
#include "bindings/matmul/product.h"
#include "bindings/matmul/terms.h"
#include "exchange/closing.h"
#include "exchange/door.h"
#include "exchange/python.h"
#include "exchange/routes/numpy.h"

namespace interop::bindings {
namespace {

using exchange::Computes;
using exchange::Lookup;

const exchange::Name kMatmulName("matmul");
const Lookup kNumpyMatmul("numpy", "matmul");

Computes who_computes(nb::handle a, nb::handle b, const Terms& terms) {
  Argument arrays[8] = {{"a", a}, {"b", b}};
  int count = 2;
  const auto add = [&](const char* name, nb::handle x) {
    if (!x.is_none()) arrays[count++] = {name, x};
  };
  add("c", terms.c);
  add("bias", terms.bias);
  const int operands = count;
  add("aux", terms.aux);
  add("scale_a", terms.scale_a);
  add("scale_b", terms.scale_b);
  add("out", terms.out);
  return exchange::who_computes(kMatmul, arrays, operands, count, terms.execution);
}

nb::object in_jax(nb::handle a, nb::handle b, nb::dict given, const Terms& terms) {
  const nb::handle door = enter_jax(kMatmul), name = kMatmulName.get();
  if (given.size() == 0) {
    const nb::handle arrays[] = {a, b};
    const nb::object result = compute_planned(name, arrays, 2);
    return result.is_valid() ? result : door(name, nb::none(), a, b);
  }
  return door(name, jax_keywords(terms), a, b);
}

/// By NumPy: its own product where there is nothing else to do, and no conversion.
void on_host(const Product& product) {
  const Call& call = product.call;
  const DLDataType dtype = product.result.dtype;
  const bool is_half = dtype.bits == 16 && is_float(dtype);
  const bool converts = product.operand(0).dtype != dtype || product.operand(1).dtype != dtype || is_half ||
                        product.conjugated(0) || product.conjugated(1);
  if (product.is_plain() && !converts) {
    nb::dict keywords;
    keywords["out"] = product.numpy_output();
    std::optional<exchange::Within> guard;
    if (!led_by_numpy(call)) guard.emplace(exchange::numpy_in_silence());
    kNumpyMatmul.get()(product.numpy_operand(0), product.numpy_operand(1), **keywords);
    return;
  }
  nb::dict keywords;
  keywords["conjugates"] = nb::make_tuple(product.conjugated(0), product.conjugated(1));
  keywords["c"] = product.numpy_of(product.arrays.c);
  keywords["alpha"] = product.alpha();
  keywords["beta"] = product.beta();
  keywords["bias"] = product.numpy_of(product.arrays.bias);
  keywords["epilogue"] = product.terms.epilogue;
  keywords["aux"] = product.numpy_of(product.arrays.aux);
  nb::list scales;
  for (const auto& [scale, place] : {std::pair{product.terms.scale_a, product.arrays.scale_a},
                                     std::pair{product.terms.scale_b, product.arrays.scale_b}}) {
    if (!scale.is_none()) scales.append(place < 0 ? nb::borrow(scale) : product.numpy_of(place));
  }
  keywords["scales"] = scales;
  const nb::tuple operands = nb::make_tuple(product.numpy_operand(0), product.numpy_operand(1));
  compute_on_host(call, kMatmulName.get(), operands, exchange::numpy_dtype(dtype), keywords, product.numpy_output());
}

/// The result of a product whose arrays are read.
const DLTensor& make_result(Product& product) {
  Call& call = product.call;
  if (call.on_host() && !product.terms.backend.is_none()) {
    throw ValueError(std::string(kMatmul) + ": backend is given, but the arrays are in host memory, where NumPy " +
                     "computes; accepted: None, or execution='cuda' with it");
  }
  if (!call.on_host()) find_cublas();
  return product.make_output();
}

/// What a call of `interop.matmul` is: all that is decided before anything is computed. `run` does it, `explain` says
/// it.
class Decision {
 public:
  Decision(Product& product, const DLTensor& out, const cuda::MatmulOptions& options) : product_(product) {
    if (!product.call.on_host()) device_.emplace(product, out, options);
  }

  nb::object run() {
    if (device_) {
      device_->launch(product_.call, asks_tuning(product_.terms));
    } else {
      on_host(product_);
    }
    return product_.call.hand_over();
  }

  nb::dict explain() {
    auto explained = nb::borrow<nb::dict>(product_.call.explain());
    if (!device_ && product_.has_factors()) {  // which the host's way finds out as it computes
      factor_value("alpha", product_.alpha(), product_.result.dtype);
      factor_value("beta", product_.beta(), product_.result.dtype);
    }
    explained["algorithm"] = device_ ? device_->describe() : "numpy.matmul, on views of the arrays";
    explained["workspace_bytes"] = device_ ? device_->workspace_bytes() : 0;
    return explained;
  }

 private:
  Product& product_;
  std::optional<DeviceProduct> device_;
};

}  // namespace

nb::object run(Product& product, const cuda::MatmulOptions& options) {
  const DLTensor& out = make_result(product);
  return on_own_frame([&] { return Decision(product, out, options).run(); });
}

namespace {

nb::object compute(nb::handle a, nb::handle b, const Terms& terms, const cuda::MatmulOptions& options,
                   bool below_autograd) {
  return exchange::as_call(kMatmul, !terms.execution.is_none(), [&] {
    Product product(a, b, terms, {false, below_autograd});
    return run(product, options);
  });
}

nb::object matmul(nb::handle a, nb::handle b, nb::dict given) {
  const exchange::CallGuard guard;
  const Terms terms = read_terms(a, b, given);
  const cuda::MatmulOptions options = read_kernel_options(terms.backend, terms.precision);
  check_terms(terms);
  const Computes who = who_computes(a, b, terms);
  if (who == Computes::jax) return in_jax(a, b, given, terms);
  if (is_left_to_torch(who)) return in_torch(who, kMatmulName.get(), given, nb::make_tuple(a, b));
  return compute(a, b, terms, options, who == Computes::interop_memory);
}

}  // namespace

nb::object matmul_below_autograd(nb::handle a, nb::handle b, nb::dict given) {
  const exchange::CallGuard guard;
  const Terms terms = read_terms(a, b, given);
  const cuda::MatmulOptions options = read_kernel_options(terms.backend, terms.precision);
  check_terms(terms);
  return compute(a, b, terms, options, true);
}

nb::object explain_matmul(nb::handle a, nb::handle b, nb::dict given) {
  const exchange::CallGuard guard;
  const Terms terms = read_terms(a, b, given);
  const cuda::MatmulOptions options = read_kernel_options(terms.backend, terms.precision);
  check_terms(terms);
  const Computes who = who_computes(a, b, terms);
  if (who == Computes::jax) {
    jax_keywords(terms);
    return nb::none();
  }
  Product product(a, b, terms, {true, who == Computes::torch_autograd});
  const DLTensor& out = make_result(product);
  return on_own_frame([&] { return Decision(product, out, options).explain(); });
}

void bind_matmul(nb::module_& m) {
  bind_abstract_matmul(m);
  bind_matmul_backward(m);
  bind_matmul_choices(m);
  m.def("matmul", &matmul, nb::arg().none(), nb::arg().none(), nb::arg(),
        nb::sig("def matmul(a: typing.Any, b: typing.Any, options: dict[str, typing.Any], /) -> typing.Any"),
        "interop.matmul, with the arguments that have a name in a dict.");
}

}  // namespace interop::bindings
