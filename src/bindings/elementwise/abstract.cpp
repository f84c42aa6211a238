/// The table of operations, and what is known of elementwise operations on arrays without memory.
#include "bindings/elementwise/abstract.h"

#include <interop/elementwise.h>
#include <interop/error.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bindings/elementwise/shared_dtype.h"
#include "bindings/functions/results.h"
#include "exchange/routes/numpy.h"
#include "exchange/typestr.h"
#include "ops/elementwise.h"

namespace interop::bindings {
namespace {

const Operation& operation_called(const std::string& name) {
  if (const Operation* const operation = find_operation(name)) return *operation;
  throw ValueError("interop: no operation is called " + name);
}

/// The dtype of the result of an operation computed in `dtype`, or the error that says it has none.
std::string result_dtype(const Operation& operation, const std::string& dtype) {
  const std::string function = std::string("interop.") + operation.name;
  const char* const said = is_function(operation) ? function.c_str() : nullptr;
  const auto known = exchange::dtype_from_name(dtype);
  if (!known) {  // of less than a byte, as JAX has them
    throw TypeError(function + ": the operands are " + dtype + "; accepted: " + ops::kServedDtypes);
  }
  return dtype_name(ops::result_dtype(said, operation, *known));
}

/// An operand without memory.
struct Abstract {
  std::string name;
  nb::object shape;
};

/// Throws TypeError, naming the argument, for a dtype that no operation reads, ValueError for too many dimensions.
void check_operand(const std::string& function, const Abstract& operand, const std::string& dtype) {
  const auto known = exchange::dtype_from_name(dtype);
  if (!known || !is_served(*known)) {
    throw TypeError(function + ": " + operand.name + " is " + dtype + "; accepted: " + ops::kServedDtypes);
  }
  check_ndim(function.c_str(), operand.name.c_str(), nb::len(operand.shape));
}

/// The dtype that operands share, or None. An array is (dtype, is it 0-d), with the scalar that it stands for as third
/// where it is weakly typed.
nb::object dtype_of(const std::string& name, nb::list given) {
  std::vector<PromotedOperand> operands;
  for (const nb::handle x : given) {
    PromotedOperand& operand = operands.emplace_back();
    if (!nb::isinstance<nb::tuple>(x)) {
      operand.kind = kind_of(x);
      operand.scalar = x;
      continue;
    }
    operand.dtype = exchange::dtype_from_name(nb::cast<std::string>(x[0]));
    if (!operand.dtype) return nb::none();  // of less than a byte, as JAX has them
    if (nb::len(x) == 3) operand.kind = kind_of(nb::object(x[2]));
  }
  const auto shared = shared_dtype(operation_called(name), operands.data(), static_cast<int>(operands.size()));
  return shared ? nb::object(nb::str(dtype_name(*shared).c_str())) : nb::none();
}

/// A layout as the shape rules see it: (size, stride, stride, ...) of each dimension after the collapse, and its class.
nb::object plan_layout(nb::handle out_shape, nb::handle out_strides, nb::list shapes, nb::list strides) {
  int64_t sizes[kMaxInputs + 1][kMaxDims], steps[kMaxInputs + 1][kMaxDims];
  DLTensor tensors[kMaxInputs + 1];
  constexpr intptr_t kSomewhere = intptr_t{1} << 20;  // an address from which steps may go backwards
  const int count = static_cast<int>(nb::len(shapes));
  if (count > kMaxInputs || nb::len(strides) != nb::len(shapes)) throw ValueError("interop: no such loop");
  const auto read = [&](int k, nb::handle shape, nb::handle stride) {
    const int ndim = read_sizes("interop", "the shape", shape, sizes[k]);
    if (read_sizes("interop", "the strides", stride, steps[k]) != ndim)
      throw ValueError("interop: strides of no shape");
    tensors[k] =
        DLTensor{reinterpret_cast<void*>(kSomewhere), {kDLCPU, 0}, ndim, {kDLUInt, 8, 1}, sizes[k], steps[k], 0};
  };
  read(0, out_shape, out_strides);
  for (int k = 0; k < count; ++k) read(k + 1, shapes[k], strides[k]);
  Loop loop;
  ops::plan_loop(loop, tensors[0], tensors + 1, count);
  nb::list dims;
  for (int i = 0; i < loop.ndim; ++i) {
    nb::list dim;
    dim.append(loop.sizes[i]);
    for (int k = 0; k < loop.operand_count; ++k) dim.append(loop.strides[k][i]);
    dims.append(nb::tuple(dim));
  }
  nb::list first;  // the element that the loop begins with, of each operand
  for (int k = 0; k <= count; ++k) first.append(reinterpret_cast<intptr_t>(tensors[k].data) - kSomewhere);
  constexpr const char* kNames[] = {"empty", "contiguous", "rows", "transposed", "strided"};
  return nb::make_tuple(dims, first, kNames[static_cast<int>(loop.layout)], loop.cross_dim);
}

/// The names of an operation's parameters.
std::vector<std::string> parameters_of(const Operation& operation) {
  if (operation.arity == 1) return {"x"};
  return operation.arity == 2 ? std::vector<std::string>{"a", "b"} : std::vector<std::string>{"condition", "x", "y"};
}

nb::object text_or_none(const char* text) { return text ? nb::object(nb::str(text)) : nb::none(); }

nb::dict as_dict(const Operation& operation) {
  constexpr const char* kGives[] = {"same", "bool", "part"};
  nb::dict fields;
  fields["name"] = operation.name;
  fields["symbol"] = text_or_none(operation.symbol);
  fields["arity"] = operation.arity;
  nb::list parameters;
  for (const std::string& name : parameters_of(operation)) parameters.append(name);
  fields["parameters"] = nb::tuple(parameters);
  fields["functor"] = operation.functor;
  fields["accepts"] = operation.accepts;
  fields["gives"] = kGives[static_cast<int>(operation.gives)];
  fields["in_float"] = operation.in_float;
  fields["truths"] = operation.truths;
  fields["is_function"] = is_function(operation);
  fields["numpy"] = operation.numpy;
  fields["torch"] = text_or_none(operation.torch);
  nb::list derivatives;
  for (int k = 0; k < operation.arity; ++k) derivatives.append(text_or_none(operation.derivatives[k]));
  fields["derivatives"] = nb::tuple(derivatives);
  fields["identity"] = text_or_none(operation.identity);
  return fields;
}

nb::list operations() {
  nb::list all;
  for (const Operation& operation : kFunctions) all.append(as_dict(operation));
  for (const Operation& operation : kInExpressions) all.append(as_dict(operation));
  return all;
}

nb::object broadcast_shape(const std::string& function, const std::vector<Abstract>& operands) {
  int64_t sizes[kMaxInputs][kMaxDims];
  DLTensor tensors[kMaxInputs];
  ops::NamedTensor inputs[kMaxInputs];
  const int count = static_cast<int>(std::min<size_t>(operands.size(), kMaxInputs));
  for (int k = 0; k < count; ++k) {
    const Abstract& operand = operands[static_cast<size_t>(k)];
    const char* name = operand.name.c_str();
    const int ndim = read_sizes(function.c_str(), name, operand.shape, sizes[k]);
    tensors[k] = DLTensor{nullptr, {kDLCPU, 0}, ndim, {kDLUInt, 8, 1}, sizes[k], nullptr, 0};
    inputs[k] = {name, &tensors[k]};
  }
  return exchange::shape_tuple(ops::broadcast_shape(function.c_str(), inputs, count));
}

/// The shape of operands' (name, shape, dtype) broadcast against each other, or the error of such a call.
nb::object abstract_operands(const std::string& function, nb::list given) {
  std::vector<Abstract> operands;
  for (const nb::handle x : given) {
    const Abstract& operand = operands.emplace_back(Abstract{nb::cast<std::string>(x[0]), nb::object(x[1])});
    const nb::object dtype = x[2];
    if (!dtype.is_none()) check_operand(function, operand, nb::cast<std::string>(dtype));
  }
  return broadcast_shape(function, operands);
}

/// Shape and dtype of an operation computed in `dtype`, of operands' (shape, dtype), or the error of such a call.
nb::tuple abstract_elementwise(const std::string& name, const std::string& dtype, nb::list given) {
  const Operation& operation = operation_called(name);
  const std::string function = "interop." + name;
  std::vector<Abstract> operands;
  for (const std::string& parameter : parameters_of(operation)) {
    if (operands.size() == nb::len(given)) break;
    const nb::handle x = given[operands.size()];
    const Abstract& operand = operands.emplace_back(Abstract{parameter, nb::object(x[0])});
    check_operand(function, operand, nb::cast<std::string>(x[1]));
  }
  const std::string result = result_dtype(operation, dtype);
  return nb::make_tuple(broadcast_shape(function, operands), result);
}

}  // namespace

void bind_abstract_elementwise(nb::module_& m) {
  m.def("operations", &operations, nb::sig("def operations() -> list[dict[str, typing.Any]]"),
        "The table of operations on elements: see operations.h.");
  m.def("abstract_elementwise", &abstract_elementwise,
        nb::sig("def abstract_elementwise(operation: str, dtype: str, operands: list[tuple[tuple[int, ...], str]], /) "
                "-> tuple[tuple[int, ...], str]"),
        "Shape and dtype of what an operation gives, computed in a dtype, of operands of these (shape, dtype), or the "
        "error that the function raises. With no operands, only the dtype counts.");
  m.def("shared_dtype", &dtype_of,
        nb::sig("def shared_dtype(operation: str, operands: list[typing.Any], /) -> str | None"),
        "The dtype in which an operation is computed, where the operands say it; None where the library decides. See "
        "shared_dtype.h; operands are as for `as_promoted`.");
  m.def("abstract_operands", &abstract_operands,
        nb::sig("def abstract_operands(function: str, operands: list[tuple[str, tuple[int, ...], str | None]], /) -> "
                "tuple[int, ...]"),
        "The shape of operands of these (name, shape, dtype) broadcast against each other, or the error, naming the "
        "argument, that they do not fit or that no elementwise operation reads the dtype. None: a dtype that is known "
        "to be read.");
  m.def("elementwise_layout", &plan_layout,
        nb::sig("def elementwise_layout(out_shape: tuple[int, ...], out_strides: tuple[int, ...], "
                "shapes: list[tuple[int, ...]], strides: list[tuple[int, ...]], /) -> tuple[typing.Any, ...]"),
        "How the shape rules collapse a loop: its dimensions, first elements, class, and tiled dimension; for tests.");
}

}  // namespace interop::bindings
