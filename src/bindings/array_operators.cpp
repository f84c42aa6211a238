/// The operators of an `interop.Array`: interop's own operations, by the symbols of their table.
#include <interop/operations.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>

#include "bindings/bindings.h"
#include "bindings/scalars.h"
#include "exchange/array/array.h"
#include "exchange/route.h"

namespace interop::bindings {
namespace {

using exchange::Array;
using exchange::Lookup;

/// The methods of a symbol of two operands; null where there is none.
struct Methods {
  std::string_view symbol;
  const char *name, *reflected, *in_place;
};
constexpr Methods kMethods[] = {
    {"+", "__add__", "__radd__", "__iadd__"},
    {"-", "__sub__", "__rsub__", "__isub__"},
    {"*", "__mul__", "__rmul__", "__imul__"},
    {"/", "__truediv__", "__rtruediv__", "__itruediv__"},
    {"//", "__floordiv__", "__rfloordiv__", "__ifloordiv__"},
    {"%", "__mod__", "__rmod__", "__imod__"},
    {"**", "__pow__", "__rpow__", "__ipow__"},
    {"@", "__matmul__", "__rmatmul__", "__imatmul__"},
    {"==", "__eq__", nullptr, nullptr},
    {"!=", "__ne__", nullptr, nullptr},
    {"<", "__lt__", nullptr, nullptr},
    {"<=", "__le__", nullptr, nullptr},
    {">", "__gt__", nullptr, nullptr},
    {">=", "__ge__", nullptr, nullptr},
};

const Methods& methods_of(std::string_view symbol) {
  return *std::find_if(std::begin(kMethods), std::end(kMethods),
                       [&](const Methods& methods) { return methods.symbol == symbol; });
}

/// Python asks the other operand, and then says that the two do not go together, where this is no array or scalar.
bool is_operand(nb::handle x) { return kind_of(x) != Kind::array || exchange::find_route(x); }

nb::object not_implemented() { return nb::borrow(Py_NotImplemented); }

using Function = std::shared_ptr<const Lookup>;

Function function_called(const char* name) { return std::make_shared<const Lookup>("interop", name); }

std::string signature(const char* name, const char* operands) {
  return std::string("def ") + name + "(self" + operands + ") -> typing.Any";
}

void add_binary(nb::class_<Array>& type, const Methods& methods, const Function& function) {
  constexpr const char* kOther = ", other: typing.Any, /";
  type.def(
      methods.name,
      [function](nb::handle self, nb::handle other) {
        return is_operand(other) ? function->get()(self, other) : not_implemented();
      },
      nb::arg("other").none(), nb::sig(signature(methods.name, kOther).c_str()));
  if (methods.reflected) {
    type.def(
        methods.reflected,
        [function](nb::handle self, nb::handle other) {
          return is_operand(other) ? function->get()(other, self) : not_implemented();
        },
        nb::arg("other").none(), nb::sig(signature(methods.reflected, kOther).c_str()));
  }
  if (methods.in_place) {
    type.def(
        methods.in_place,
        [function, name = methods.in_place, is_product = methods.symbol == "@"](nb::handle self, nb::handle other) {
          // Not NotImplemented: Python would go on to the other operand, whose result would be bound to the name.
          if (!is_operand(other)) {
            throw TypeError(std::string("interop.Array.") + name + ": the operand is " + exchange::type_text(other) +
                            "; accepted: an array, or a number");
          }
          if (!is_product) return function->get()(self, other, nb::arg("out") = self);
          const nb::object product = function->get()(self, other);  // which has read all of the array
          if (!product.attr("shape").equal(self.attr("shape"))) {
            throw ValueError("interop.Array.__imatmul__: the product has shape " +
                             exchange::shown(product.attr("shape")) + "; accepted: that of the array, " +
                             exchange::shown(self.attr("shape")));
          }
          copy_into({"interop.Array.__imatmul__", "the array", "the product"}, self, product);
          return nb::borrow(self);
        },
        nb::arg("other").none(), nb::sig(signature(methods.in_place, kOther).c_str()));
  }
}

void add_unary(nb::class_<Array>& type, const char* name, const Function& function) {
  type.def(name, [function](nb::handle self) { return function->get()(self); }, nb::sig(signature(name, "").c_str()));
}

}  // namespace

void add_operators(nb::object object) {
  auto type = nb::borrow<nb::class_<Array>>(object);
  for (const Operation& operation : kFunctions) {
    if (operation.symbol && operation.arity == 2) {
      add_binary(type, methods_of(operation.symbol), function_called(operation.name));
    }
  }
  add_binary(type, methods_of("@"), function_called("matmul"));
  add_unary(type, "__neg__", function_called("negative"));
  add_unary(type, "__pos__", function_called("copy"));
  add_unary(type, "__abs__", function_called("abs"));
  // NumPy's and CuPy's arrays leave an operator to the other operand where that says so: the result is still that of
  // the library of the first one.
  object.attr("__array_priority__") = 1000.0;
}

}  // namespace interop::bindings
