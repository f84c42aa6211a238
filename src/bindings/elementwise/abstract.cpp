/// The table of operations, and what is known of elementwise operations on arrays without memory.
#include "bindings/elementwise/abstract.h"

#include <interop/elementwise.h>
#include <interop/error.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bindings/functions/results.h"
#include "exchange/routes/numpy.h"
#include "exchange/typestr.h"
#include "ops/elementwise.h"

namespace interop::bindings {
namespace {

DLDataType named_dtype(const std::string& name) {
  const auto known = exchange::dtype_from_name(name);
  if (!known) throw TypeError("interop: no dtype is called " + name);
  return *known;
}

const Operation& operation_called(const std::string& name) {
  if (const Operation* const operation = find_operation(name)) return *operation;
  throw ValueError("interop: no operation is called " + name);
}

/// The dtype of the result of an operation computed in `dtype`, or the error that says it has none.
std::string result_dtype(const std::string& name, const std::string& dtype) {
  const Operation& operation = operation_called(name);
  const std::string function = "interop." + name;
  const char* const said = is_function(operation) ? function.c_str() : nullptr;
  const auto known = exchange::dtype_from_name(dtype);
  if (!known) {  // of less than a byte, as JAX has them
    throw TypeError(function + ": the operands are " + dtype + "; accepted: " + ops::kServedDtypes);
  }
  return dtype_name(ops::result_dtype(said, operation, *known));
}

/// Throws TypeError, naming the argument, for a dtype that no operation reads, ValueError for too many dimensions.
void check_operand(const std::string& function, const std::string& name, const std::string& dtype, int ndim) {
  const auto known = exchange::dtype_from_name(dtype);
  if (!known || !is_served(*known)) {
    throw TypeError(function + ": " + name + " is " + dtype + "; accepted: " + ops::kServedDtypes);
  }
  check_ndim(function.c_str(), name.c_str(), static_cast<size_t>(ndim));
}

std::string comparison_dtype(const std::string& a, const std::string& b) {
  return dtype_name(ops::comparison_dtype(named_dtype(a), named_dtype(b)));
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

nb::object broadcast_shapes(const std::string& function, const std::vector<std::string>& names, nb::list shapes) {
  int64_t sizes[kMaxInputs][kMaxDims];
  DLTensor tensors[kMaxInputs];
  ops::NamedTensor inputs[kMaxInputs];
  const int count = static_cast<int>(std::min<size_t>(names.size(), kMaxInputs));
  for (int k = 0; k < count; ++k) {
    const char* name = names[static_cast<size_t>(k)].c_str();
    const int ndim = read_sizes(function.c_str(), name, shapes[static_cast<size_t>(k)], sizes[k]);
    tensors[k] = DLTensor{nullptr, {kDLCPU, 0}, ndim, {kDLUInt, 8, 1}, sizes[k], nullptr, 0};
    inputs[k] = {name, &tensors[k]};
  }
  return exchange::shape_tuple(ops::broadcast_shape(function.c_str(), inputs, count));
}

/// Shape and dtype of an operation computed in `dtype`, of operands' (shape, dtype), or the error of such a call.
nb::tuple abstract_elementwise(const std::string& name, const std::string& dtype, nb::list operands) {
  const Operation& operation = operation_called(name);
  const std::string function = "interop." + name;
  const std::vector<std::string> names = parameters_of(operation);
  nb::list shapes;
  for (size_t k = 0; k < names.size(); ++k) {
    const nb::object shape = operands[k][0];
    check_operand(function, names[k], nb::cast<std::string>(operands[k][1]), static_cast<int>(nb::len(shape)));
    shapes.append(shape);
  }
  const std::string result = result_dtype(name, dtype);
  return nb::make_tuple(broadcast_shapes(function, names, shapes), result);
}

}  // namespace

void bind_abstract_elementwise(nb::module_& m) {
  m.def("operations", &operations, nb::sig("def operations() -> list[dict[str, typing.Any]]"),
        "The table of operations on elements: see operations.h.");
  m.def("abstract_elementwise", &abstract_elementwise,
        nb::sig("def abstract_elementwise(operation: str, dtype: str, operands: list[tuple[tuple[int, ...], str]], /) "
                "-> tuple[tuple[int, ...], str]"),
        "Shape and dtype of what an operation gives, computed in a dtype, of operands of these (shape, dtype), or the "
        "error that the function raises.");
  m.def("result_dtype", &result_dtype, nb::sig("def result_dtype(operation: str, dtype: str, /) -> str"),
        "The dtype of the result of an operation computed in a dtype, or the error that there is none.");
  m.def("comparison_dtype", &comparison_dtype, nb::sig("def comparison_dtype(a: str, b: str, /) -> str"),
        "The dtype in which integers or bools of two dtypes are compared exactly; in uint64 signed ones keep their "
        "sign.");
  m.def("check_operand", &check_operand,
        nb::sig("def check_operand(function: str, name: str, dtype: str, ndim: int, /) -> None"),
        "The error, naming the argument, of an array that no elementwise operation reads.");
  m.def("elementwise_layout", &plan_layout,
        nb::sig("def elementwise_layout(out_shape: tuple[int, ...], out_strides: tuple[int, ...], "
                "shapes: list[tuple[int, ...]], strides: list[tuple[int, ...]], /) -> tuple[typing.Any, ...]"),
        "How the shape rules collapse a loop: its dimensions, first elements, class, and tiled dimension; for tests.");
  m.def("broadcast_shapes", &broadcast_shapes,
        nb::sig("def broadcast_shapes(function: str, names: list[str], shapes: list[tuple[int, ...]], /) -> "
                "tuple[int, ...]"),
        "The shape of arrays broadcast against each other, or the error that they do not fit.");
}

}  // namespace interop::bindings
