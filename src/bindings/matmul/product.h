/// One product of a call: its arrays, and what the rules of shapes and dtypes say of it.
#pragma once

#include <interop/call.h>

#include <memory>
#include <string>

#include "bindings/matmul/terms.h"
#include "bindings/matmul/view.h"
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
/// Throws, naming it, for a scale that is none of an operand of this dtype. `tensor`: the scale, where it is an array.
void check_scale(const char* name, nanobind::handle scale, const DLTensor* tensor, DLDataType operand);

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

/// How two arrays stand in a product that is a gradient. Of each of them in turn: is it one row, or one column, of a
/// matrix; is the adjoint taken?
struct Turned {
  bool row[2], column[2], adjoint[2];
  bool drops_row, drops_column;  ///< the result is a vector: its one row, or its one column
  bool sums;  ///< the result is the sum of the stack's products, where the memory has a view of which it is one product
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

  Product(nanobind::handle a, nanobind::handle b, const Terms& given, Reading reading, const Turned* turned = nullptr);

  // The operands of the product: the arrays a and b of the call, or views of their memory.
  const DLTensor& operand(int i) const { return views_[i] ? **views_[i] : call.tensor(i); }
  bool conjugated(int i) const { return views_[i] ? views_[i]->conjugated() : call.conjugated(i); }
  nanobind::object numpy_operand(int i) const { return views_[i] ? views_[i]->numpy(call.numpy(i)) : call.numpy(i); }

  /// Makes the array for the result, and returns it as the product writes it.
  const DLTensor& make_output();
  nanobind::object numpy_output() const { return out_ ? out_->numpy(call.numpy_output()) : call.numpy_output(); }

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
  void turn(const Turned& turned);

  std::unique_ptr<View> views_[2], out_;
  bool drops_row_ = false, drops_column_ = false;
};

/// Computes the product, by NumPy or on the GPU, and returns its result.
nanobind::object run(Product& product, const cuda::MatmulOptions& options);

}  // namespace interop::bindings
