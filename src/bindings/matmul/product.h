/// One product of a call: its arrays, and what the rules of shapes and dtypes say of it.
#pragma once

#include <interop/call.h>

#include <string>

#include "bindings/matmul/terms.h"
#include "ops/matmul.h"

namespace interop::bindings {

/// The dtype of that name. Throws TypeError where there is none.
DLDataType dtype_called(const std::string& name);
/// The dtype of a product: that of its operands, as their library promotes them, or what `dtype=` widens that to.
DLDataType product_dtype(const char* library, DLDataType a, DLDataType b, nanobind::handle asked);
/// A factor as a value of the dtype that the kernels take it in. Throws, naming it, for what is none of the product's.
ScalarValue factor_value(const char* name, nanobind::handle factor, DLDataType result);
/// The scale of an operand that is not an array; 1 if there is none.
double scale_of(const char* name, nanobind::handle scale);

/// The arguments of a call that are arrays, and where each one stands among them; -1: it is not there.
struct Arrays {
  Argument arguments[7];
  int count = 2;
  int c = -1, bias = -1, aux = -1, scale_a = -1, scale_b = -1;

  Arrays(nanobind::handle a, nanobind::handle b, const Terms& terms) {
    arguments[0] = {"a", a, Access::takes_conjugated};
    arguments[1] = {"b", b, Access::takes_conjugated};
    add(c, {"c", terms.c, Access::may_be_out});
    add(bias, {"bias", terms.bias});
    add(aux, {"aux", terms.aux, Access::write});
    add_scale(scale_a, "scale_a", terms.scale_a);
    add_scale(scale_b, "scale_b", terms.scale_b);
  }

 private:
  void add(int& place, const Argument& argument) {
    if (argument.object == Py_None) return;
    place = count;
    arguments[count++] = argument;
  }
  void add_scale(int& place, const char* name, nanobind::handle scale) {
    if (!scale.is_none() && !is_number(scale)) add(place, {name, scale});
  }
};

/// A call, with the shape and dtype of its result.
struct Product {
  /// How its arrays are read: see `CallOptions`.
  struct Reading {
    bool only_looks;
    bool below_autograd;
  };

  Terms terms;
  Arrays arrays;
  Call call;
  ops::MatmulResult result;
  ops::MatmulTerms beside;

  Product(nanobind::handle a, nanobind::handle b, const Terms& given, Reading reading);

  bool is_plain() const {
    return !has_factors() && arrays.count == 2 && terms.scale_a.is_none() && terms.scale_b.is_none() &&
           beside.activation == Activation::none;
  }
  bool has_factors() const { return !terms.alpha.is_none() || !terms.beta.is_none(); }
  nanobind::object alpha() const { return factor(terms.alpha); }
  nanobind::object beta() const { return factor(terms.beta); }
  nanobind::object numpy_of(int place) const { return place < 0 ? nanobind::none() : call.numpy(place); }

 private:
  static nanobind::object factor(nanobind::handle given) {
    return given.is_none() ? nanobind::object(nanobind::int_(1)) : nanobind::borrow(given);
  }
  void check_scales() const;
};

}  // namespace interop::bindings
