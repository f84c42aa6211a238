/// The terms of `interop.matmul` besides the operands.
#include "bindings/matmul/terms.h"

#include "bindings/arguments.h"
#include "bindings/by_python.h"
#include "exchange/python.h"

namespace interop::bindings {
namespace {

using exchange::Lookup;
using exchange::Name;

const Lookup kNumpyGeneric("numpy", "generic");

const Keyword<Terms> kTerms[] = {
    {Name("out"), &Terms::out},
    {Name("dtype"), &Terms::dtype},
    {Name("c"), &Terms::c},
    {Name("alpha"), &Terms::alpha},
    {Name("beta"), &Terms::beta},
    {Name("bias"), &Terms::bias},
    {Name("epilogue"), &Terms::epilogue},
    {Name("aux"), &Terms::aux},
    {Name("scale_a"), &Terms::scale_a},
    {Name("scale_b"), &Terms::scale_b},
    {Name("precision"), &Terms::precision},
    {Name("backend"), &Terms::backend},
    {Name("autotune"), &Terms::autotune},
    {Name("stream"), &Terms::stream},
    {Name("execution"), &Terms::execution},
};

[[noreturn]] void bad_choice(const char* name, nb::handle value, const char* accepted) {
  throw ValueError(std::string(kMatmul) + ": " + name + " is " + exchange::shown(value) + "; accepted: " + accepted);
}

bool equals(nb::handle value, const char* text) {
  return PyUnicode_Check(value.ptr()) && PyUnicode_CompareWithASCIIString(value.ptr(), text) == 0;
}

}  // namespace

Terms read_terms(nb::handle a, nb::handle b, nb::dict given) {
  Terms terms;
  if (is_missing(a) || is_missing(b)) refuse_call(kMatmul, a, b, given);
  PyObject *name, *value;
  for (Py_ssize_t at = 0; PyDict_Next(given.ptr(), &at, &name, &value);) {
    const Keyword<Terms>* term = find_keyword(kTerms, name);
    if (!term) refuse_call(kMatmul, a, b, given);
    terms.*term->place = value;
  }
  if (terms.alpha.is(nb::int_(1))) terms.alpha = Py_None;
  return terms;
}

void check_terms(const Terms& terms) {
  if (!terms.beta.is_none() && terms.c.is_none()) {
    throw ValueError(std::string(kMatmul) + ": beta is given, and there is no c for it to multiply; accepted: both");
  }
  if (!terms.autotune.is_none() && !PyBool_Check(terms.autotune.ptr())) {
    bad_choice("autotune", terms.autotune, "None, True, False");
  }
  read_epilogue(terms.epilogue);
}

nb::dict jax_keywords(const Terms& terms) {
  nb::dict keywords;
  for (const Keyword<Terms>& term : kTerms) {
    const nb::handle value = terms.*term.place;
    if (!value.is_none()) keywords[nb::handle(term.name.get())] = value;
  }
  if (!terms.stream.is_none()) keywords["stream"] = stream_for_jax(kMatmul, terms.stream);
  if (!terms.autotune.is_none()) {
    throw ValueError(std::string(kMatmul) + ": autotune is given, and the arrays are JAX's, whose products XLA " +
                     "launches; accepted: None (choices that were made with other arrays serve JAX's, too)");
  }
  return keywords;
}

Activation read_epilogue(nb::handle epilogue) {
  if (epilogue.is_none()) return Activation::none;
  if (equals(epilogue, "relu")) return Activation::relu;
  if (equals(epilogue, "gelu")) return Activation::gelu;
  if (equals(epilogue, "gelu_tanh")) return Activation::gelu_tanh;
  bad_choice("epilogue", epilogue, "None, 'relu', 'gelu' (exact), 'gelu_tanh'");
}

cuda::MatmulOptions read_kernel_options(nb::handle backend, nb::handle precision) {
  cuda::MatmulOptions options;
  if (!backend.is_none()) {
    if (equals(backend, "tiled")) {
      options.backend = cuda::MatmulBackend::tiled;
    } else if (equals(backend, "cublas")) {
      options.backend = cuda::MatmulBackend::cublas;
    } else {
      bad_choice("backend", backend, "None, 'tiled', 'cublas'");
    }
  }
  if (!precision.is_none()) {
    if (equals(precision, "tf32")) {
      options.precision = cuda::MatmulPrecision::tf32;
    } else if (equals(precision, "tf32x3")) {
      options.precision = cuda::MatmulPrecision::tf32x3;
    } else {
      bad_choice("precision", precision, "None (exact), 'tf32', 'tf32x3'");
    }
    if (options.precision == cuda::MatmulPrecision::tf32x3 && options.backend == cuda::MatmulBackend::cublas) {
      throw ValueError(std::string(kMatmul) +
                       ": precision is 'tf32x3', which backend='cublas' does not serve; accepted: " +
                       "precision None or 'tf32', or backend None or 'tiled'");
    }
  }
  return options;
}

bool is_number(nb::handle x) {
  return PyFloat_Check(x.ptr()) || PyLong_Check(x.ptr()) || PyComplex_Check(x.ptr()) ||
         nb::isinstance(x, kNumpyGeneric.get());
}

}  // namespace interop::bindings
