/// Calls of expressions, from Python's arguments to the shape and dtype of a result.
#include "bindings/elementwise/expression_plan.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>

#include "bindings/arguments.h"
#include "bindings/elementwise/pass.h"
#include "bindings/scalars.h"
#include "exchange/python.h"
#include "exchange/route.h"
#include "exchange/typestr.h"
#include "ops/elementwise.h"

namespace interop::bindings {
namespace {

using exchange::Lookup;
using exchange::Name;

const Lookup kFrozenset("builtins", "frozenset");
const Name kDtype("dtype");
const Name kNum("num");

int parameter_count(const ExpressionCalls& self) { return static_cast<int>(self.parameters.size()); }

[[noreturn]] void refuse_arguments(const ExpressionCalls& self, const std::string& found) {
  std::string names;
  for (const std::string& name : self.parameters) names += (names.empty() ? "" : ", ") + name;
  throw TypeError(self.function + ": " + found + "; accepted: " + names);
}

[[noreturn]] void refuse_keyword(const ExpressionCalls& self, nb::handle name) {
  nb::list accepted;
  for (const std::string& parameter : self.parameters) accepted.append(parameter);
  for (const char* option : {"out", "stream", "execution"}) accepted.append(option);
  bindings::refuse_keyword(self.function.c_str(), name, accepted);
}

/// The arguments in the order of the parameters.
void bind(const ExpressionCalls& self, nb::tuple args, nb::dict named, nb::handle* objects) {
  const int count = parameter_count(self), given = static_cast<int>(args.size());
  if (given > count) {
    refuse_arguments(self, std::to_string(given) + " arguments by position, of " + std::to_string(count));
  }
  for (int k = 0; k < given; ++k) objects[k] = args[static_cast<size_t>(k)];
  for (auto [name, object] : named) {
    const std::string text = exchange::text_of(name);
    const auto found = std::find(self.parameters.begin(), self.parameters.end(), text);
    if (found == self.parameters.end()) refuse_keyword(self, name);
    nb::handle& place = objects[found - self.parameters.begin()];
    if (place.is_valid()) refuse_arguments(self, text + " is given twice");
    place = object;
  }
  for (int k = 0; k < count; ++k) {
    if (!objects[k].is_valid()) refuse_arguments(self, self.parameters[static_cast<size_t>(k)] + " is missing");
  }
}

Split* known_split(const ExpressionCalls& self, uint32_t scalars) {
  for (const auto& split : self.splits) {
    if (split->scalars == scalars) return split.get();
  }
  return nullptr;
}

}  // namespace

ExpressionCalls::ExpressionCalls(std::string function_, std::vector<std::string> parameters_, nb::object make_split_,
                                 nb::object load_kernel_)
    : function(std::move(function_)),
      parameters(std::move(parameters_)),
      make_split(std::move(make_split_)),
      load_kernel(std::move(load_kernel_)) {
  if (parameters.empty() || parameters.size() > kMaxInputs) throw ValueError("interop: no such expression");
}

ExpressionArguments read_arguments(const ExpressionCalls& self, nb::tuple args, nb::dict named) {
  ExpressionArguments arguments;
  bind(self, args, named, arguments.objects);
  for (int k = 0; k < parameter_count(self); ++k) {
    if (kind_of(arguments.objects[k]) != Kind::array) {
      arguments.scalars |= uint32_t{1} << k;
    } else {
      arguments.arrays[arguments.array_count++] = {self.parameters[static_cast<size_t>(k)].c_str(),
                                                   arguments.objects[k]};
    }
  }
  if (arguments.array_count == 0) {  // which says so
    exchange::route_of(arguments.objects[0], self.function.c_str(), self.parameters[0].c_str());
  }
  return arguments;
}

nb::tuple argument_tuple(const ExpressionCalls& self, const ExpressionArguments& arguments) {
  nb::list objects;
  for (int k = 0; k < parameter_count(self); ++k) objects.append(arguments.objects[k]);
  return nb::tuple(objects);
}

Split& find_split(ExpressionCalls& self, uint32_t scalars) {
  if (Split* known = known_split(self, scalars)) return *known;
  nb::list names;
  for (int k = 0; k < parameter_count(self); ++k) {
    if (scalars >> k & 1) names.append(self.parameters[static_cast<size_t>(k)]);
  }
  auto split = std::make_unique<Split>();
  split->scalars = scalars;
  split->python = self.make_split(kFrozenset.get()(names));
  split->places = nb::cast<std::vector<int>>(split->python.attr("places"));
  split->labels = nb::cast<std::vector<std::string>>(split->python.attr("labels"));
  split->computes = std::find(split->places.begin(), split->places.end(), -1) != split->places.end();
  if (Split* known = known_split(self, scalars)) return *known;
  return *self.splits.emplace_back(std::move(split));
}

namespace {

ExpressionPlan::Sources find_sources(const ExpressionCalls& self, const Split& split,
                                     const ExpressionArguments& arguments) {
  ExpressionPlan::Sources sources;
  if (split.computes) {
    sources.computed = split.python.attr("evaluate")(*argument_tuple(self, arguments));
    for (nb::handle value : sources.computed) sources.values.push_back(value);
  } else {
    for (const int place : split.places) sources.values.push_back(arguments.objects[place]);
  }
  return sources;
}

/// All that dtypes and kernels depend on, but the library's configuration.
std::vector<uint64_t> key_of(const ExpressionPlan& plan) {
  const Call& call = plan.call;
  std::vector<uint64_t> key;
  key.reserve(static_cast<size_t>(plan.arguments.array_count) + plan.sources.values.size() + 1);
  key.push_back(reinterpret_cast<uintptr_t>(call.library()));
  for (int k = 0; k < plan.arguments.array_count; ++k) {
    const DLTensor& tensor = call.tensor(k);
    key.push_back(uint64_t{tensor.dtype.code} | uint64_t{tensor.dtype.bits} << 8 | uint64_t{tensor.dtype.lanes} << 16 |
                  uint64_t{tensor.ndim == 0} << 32 | uint64_t{plan.passed[k]} << 33);
  }
  for (nb::handle value : plan.sources.values) {
    const Kind kind = kind_of(value);
    uint64_t number = 0;
    if (kind == Kind::numpy_scalar) {
      number = static_cast<uint64_t>(exchange::to_int64(exchange::attribute(exchange::attribute(value, kDtype), kNum)));
    }
    key.push_back(static_cast<uint64_t>(kind) | number << 8);
  }
  return key;
}

DLDataType named_dtype(const ExpressionCalls& self, nb::handle name) {
  const auto dtype = exchange::dtype_from_name(nb::cast<std::string>(name));
  if (!dtype)
    throw TypeError(self.function + ": the operands promote to " + exchange::text_of(name) + kAcceptedPromotions);
  return *dtype;
}

std::vector<Typed::Value> values_of(const ExpressionCalls& self, nb::handle pairs) {
  std::vector<Typed::Value> values;
  for (nb::handle pair : pairs) values.push_back({nb::cast<int>(pair[0]), named_dtype(self, pair[1])});
  return values;
}

Typed* known_typed(const Split& split, const std::vector<uint64_t>& key) {
  for (size_t i = 0; i < split.typed.size(); ++i) {  // by index: comparing configurations calls Python
    Typed* const typed = split.typed[i].get();
    if (typed->key != key) continue;
    if (typed->configuration.is_none() || typed->configuration.equal(typed->current())) return typed;
  }
  return nullptr;
}

Typed& find_typed(const ExpressionCalls& self, const ExpressionPlan& plan, std::vector<uint64_t> key,
                  nb::handle sides) {
  const Call& call = plan.call;
  if (Typed* known = known_typed(plan.split, key)) return *known;
  nb::list arrays, scalars;
  for (int k = 0; k < plan.arguments.array_count; ++k) {
    const DLTensor& tensor = call.tensor(k);
    arrays.append(nb::make_tuple(dtype_name(tensor.dtype), tensor.ndim == 0));
  }
  for (nb::handle value : plan.sources.values) scalars.append(value);
  auto typed = std::make_unique<Typed>();
  typed->python = plan.split.python.attr("type")(call.library(), arrays, scalars, sides);
  typed->configuration = typed->python.attr("configuration");
  typed->current = typed->python.attr("current_configuration");
  typed->out_dtype = named_dtype(self, typed->python.attr("out_dtype"));
  typed->values = values_of(self, typed->python.attr("values"));
  typed->compared = values_of(self, typed->python.attr("compared"));
  if (typed->values.size() + static_cast<size_t>(plan.arguments.array_count) > kMaxValues) {
    throw ValueError(self.function + ": the arrays meet " + std::to_string(typed->values.size()) +
                     " scalars; accepted: " + std::to_string(kMaxValues) + " scalars and arrays");
  }
  if (Typed* known = known_typed(plan.split, key)) return *known;
  typed->key = std::move(key);
  return *plan.split.typed.emplace_back(std::move(typed));
}

/// The dtypes of a call, and the comparisons that answer for its scalars, also for those that no element can be.
Typed& find_typed(const ExpressionCalls& self, const ExpressionPlan& plan) {
  std::vector<uint64_t> key = key_of(plan);
  Typed& typed = find_typed(self, plan, key, nb::make_tuple());
  const auto scalar_of = [&](const Typed::Value& x) { return plan.sources.values[static_cast<size_t>(x.source)]; };
  bool fit = true;
  for (const Typed::Value& x : typed.compared) fit &= fits(scalar_of(x), kind_of(scalar_of(x)), x.dtype);
  if (fit) return typed;
  fit = true;
  nb::list scalars;
  for (nb::handle value : plan.sources.values) scalars.append(value);
  const nb::object sides = typed.python.attr("sides")(scalars);
  for (nb::handle given : sides) {
    const int side = nb::cast<int>(given);
    fit &= side == 0;
    key.push_back(static_cast<uint64_t>(side));
  }
  return fit ? typed : find_typed(self, plan, std::move(key), sides);
}

}  // namespace

ExpressionPlan::ExpressionPlan(ExpressionCalls& self, const ExpressionArguments& given, const CallOptions& options)
    : arguments(given),
      split(find_split(self, given.scalars)),
      sources(find_sources(self, split, given)),
      call(self.function.c_str(), given.arrays, given.array_count, options) {
  ops::NamedTensor inputs[kMaxInputs];
  for (int k = 0; k < arguments.array_count; ++k) {
    passed[k] = is_value(call, k);
    inputs[k] = {arguments.arrays[k].name, &call.tensor(k)};
  }
  typed = &find_typed(self, *this);
  out = &call.output(ops::broadcast_shape(self.function.c_str(), inputs, arguments.array_count), typed->out_dtype);
}

}  // namespace interop::bindings
