/// The operators of an `interop.Array`: interop's own operations.
#include "bindings/bindings.h"
#include "bindings/scalars.h"
#include "exchange/array/array.h"
#include "exchange/route.h"

namespace interop::bindings {
namespace {

using exchange::Array;
using exchange::Lookup;

/// A function of the package, and the methods that call it.
struct Binary {
  Lookup function;
  const char *name, *reflected, *in_place;  // null where there is none
};
const Binary kBinaries[] = {
    {{"interop", "add"}, "__add__", "__radd__", "__iadd__"},
    {{"interop", "subtract"}, "__sub__", "__rsub__", "__isub__"},
    {{"interop", "multiply"}, "__mul__", "__rmul__", "__imul__"},
    {{"interop", "divide"}, "__truediv__", "__rtruediv__", "__itruediv__"},
    {{"interop", "floor_divide"}, "__floordiv__", "__rfloordiv__", "__ifloordiv__"},
    {{"interop", "remainder"}, "__mod__", "__rmod__", "__imod__"},
    {{"interop", "pow"}, "__pow__", "__rpow__", "__ipow__"},
    {{"interop", "matmul"}, "__matmul__", "__rmatmul__", nullptr},
    {{"interop", "equal"}, "__eq__", nullptr, nullptr},
    {{"interop", "not_equal"}, "__ne__", nullptr, nullptr},
    {{"interop", "less"}, "__lt__", nullptr, nullptr},
    {{"interop", "less_equal"}, "__le__", nullptr, nullptr},
    {{"interop", "greater"}, "__gt__", nullptr, nullptr},
    {{"interop", "greater_equal"}, "__ge__", nullptr, nullptr},
};

struct Unary {
  Lookup function;
  const char* name;
};
const Unary kUnaries[] = {
    {{"interop", "negative"}, "__neg__"},
    {{"interop", "copy"}, "__pos__"},
    {{"interop", "abs"}, "__abs__"},
};

/// Python asks the other operand, and then says that the two do not go together, where this is no array or scalar.
bool is_operand(nb::handle x) { return kind_of(x) != Kind::array || exchange::find_route(x); }

nb::object not_implemented() { return nb::borrow(Py_NotImplemented); }

}  // namespace

void add_operators(nb::object object) {
  auto type = nb::borrow<nb::class_<Array>>(object);
  const auto signature = [](const char* name, const char* operands) {
    return std::string("def ") + name + "(self" + operands + ") -> typing.Any";
  };
  for (const Binary& binary : kBinaries) {
    const Lookup& function = binary.function;
    type.def(
        binary.name,
        [&function](nb::handle self, nb::handle other) {
          return is_operand(other) ? function.get()(self, other) : not_implemented();
        },
        nb::arg("other").none(), nb::sig(signature(binary.name, ", other: typing.Any, /").c_str()));
    if (binary.reflected) {
      type.def(
          binary.reflected,
          [&function](nb::handle self, nb::handle other) {
            return is_operand(other) ? function.get()(other, self) : not_implemented();
          },
          nb::arg("other").none(), nb::sig(signature(binary.reflected, ", other: typing.Any, /").c_str()));
    }
    if (binary.in_place) {
      type.def(
          binary.in_place,
          [&function](nb::handle self, nb::handle other) {
            return is_operand(other) ? function.get()(self, other, nb::arg("out") = self) : not_implemented();
          },
          nb::arg("other").none(), nb::sig(signature(binary.in_place, ", other: typing.Any, /").c_str()));
    }
  }
  for (const Unary& unary : kUnaries) {
    type.def(
        unary.name, [&unary](nb::handle self) { return unary.function.get()(self); },
        nb::sig(signature(unary.name, "").c_str()));
  }
  // NumPy's and CuPy's arrays leave an operator to the other operand where that says so: the result is still that of
  // the library of the first one.
  object.attr("__array_priority__") = 1000.0;
}

}  // namespace interop::bindings
