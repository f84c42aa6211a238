/// Expressions: from Python's arguments to a result on the host, on the GPU by a kernel compiled for it, or in JAX.
#include <interop/call.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "bindings/arguments.h"
#include "bindings/below_autograd.h"
#include "bindings/bindings.h"
#include "bindings/by_python.h"
#include "bindings/elementwise/kernel_source.h"
#include "bindings/elementwise/pass.h"
#include "bindings/explain.h"
#include "bindings/frame.h"
#include "bindings/functions/loaded_kernel.h"
#include "bindings/functions/results.h"
#include "bindings/scalars.h"
#include "exchange/closing.h"
#include "exchange/door.h"
#include "exchange/route.h"
#include "exchange/routes/numpy.h"
#include "exchange/stream.h"
#include "exchange/typestr.h"
#include "ops/elementwise.h"

namespace interop::bindings {
namespace {

using exchange::Computes;
using exchange::Lookup;
using exchange::Name;

const Lookup kFrozenset("builtins", "frozenset");
const Name kDtype("dtype");
const Name kNum("num");

/// An expression for arrays and scalars of given dtypes: `interop._expressions.typed.Typed`, as far as a call reads it.
struct Typed {
  struct Value {
    int source;
    DLDataType dtype;
  };
  struct Compiled {
    int device;
    cuda::CompiledPass pass;
  };
  std::vector<uint64_t> key;
  nb::object python;
  nb::object configuration;  // of the array library; None if the dtypes do not depend on it
  nb::object current;        // gives the configuration that the library has now
  DLDataType out_dtype;
  std::vector<Value> values;
  std::vector<Value> compared;  // with arrays of that dtype
  std::vector<Compiled> compiled;
};

/// An expression for calls in which given parameters are scalars: `interop._expressions.typed.Split`. Its sources are
/// the scalars that the arrays meet: parameters, and what is computed of scalars alone.
struct Split {
  uint32_t scalars;  // bit k: parameter k is one
  nb::object python;
  std::vector<int> places;  // of the sources among the parameters; -1: to be computed
  std::vector<std::string> labels;
  bool computes = false;
  std::vector<std::unique_ptr<Typed>> typed;
};

/// An expression, and all that its calls have found out. Entries are added and never removed or moved: one for each
/// combination of dtypes that it is called with.
///
/// Whatever calls Python lets other threads in, and `__del__` of any object, which may call the same expression: lists
/// may have grown meanwhile. So they are gone through by index, an entry is made whole before it is added, and the list
/// is looked through again before that.
struct ExpressionCalls {
  std::string function;
  std::vector<std::string> parameters;
  nb::object make_split;   // of the names of the scalars
  nb::object load_kernel;  // `interop._expressions.source.load`
  std::vector<std::unique_ptr<Split>> splits;

  ExpressionCalls(std::string function_, std::vector<std::string> parameters_, nb::object make_split_,
                  nb::object load_kernel_)
      : function(std::move(function_)),
        parameters(std::move(parameters_)),
        make_split(std::move(make_split_)),
        load_kernel(std::move(load_kernel_)) {
    if (parameters.empty() || parameters.size() > kMaxInputs) throw ValueError("interop: no such expression");
  }
  ExpressionCalls(const ExpressionCalls&) = delete;
  ExpressionCalls& operator=(const ExpressionCalls&) = delete;
};

// ---- arguments ----

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

/// The arguments of one call, before anything is decided.
struct Arguments {
  nb::handle objects[kMaxInputs];
  Argument arrays[kMaxInputs];
  int array_count = 0;
  uint32_t scalars = 0;
};

Arguments read_arguments(const ExpressionCalls& self, nb::tuple args, nb::dict named) {
  Arguments arguments;
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

/// What a call takes besides the arrays; each may be None.
struct Options {
  nb::handle out = Py_None, stream = Py_None, execution = Py_None;

  CallOptions of_call(bool only_looks, bool below_autograd) const {
    return {out, stream, execution, only_looks, true, true, below_autograd};
  }
};

Computes who_computes(const ExpressionCalls& self, const Arguments& arguments, const Options& options) {
  Argument arrays[kMaxInputs + 1];
  const int count = arguments.array_count;
  std::copy(arguments.arrays, arguments.arrays + count, arrays);
  const bool has_out = !options.out.is_none();
  if (has_out) arrays[count] = {"out", options.out};
  return exchange::who_computes(self.function.c_str(), arrays, count, count + has_out, options.execution);
}

// ---- scalars, and the dtypes of a call ----

Split* known_split(const ExpressionCalls& self, uint32_t scalars) {
  for (const auto& split : self.splits) {
    if (split->scalars == scalars) return split.get();
  }
  return nullptr;
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

/// The values of a split's sources.
struct Sources {
  nb::object computed;  // keeps them
  std::vector<nb::handle> values;
};

nb::tuple argument_tuple(const ExpressionCalls& self, const Arguments& arguments) {
  nb::list objects;
  for (int k = 0; k < parameter_count(self); ++k) objects.append(arguments.objects[k]);
  return nb::tuple(objects);
}

Sources find_sources(const ExpressionCalls& self, const Split& split, const Arguments& arguments) {
  Sources sources;
  if (split.computes) {
    sources.computed = split.python.attr("evaluate")(*argument_tuple(self, arguments));
    for (nb::handle value : sources.computed) sources.values.push_back(value);
  } else {
    for (const int place : split.places) sources.values.push_back(arguments.objects[place]);
  }
  return sources;
}

/// A call with its arrays read and its result made, as its shape and dtype rules say.
struct Plan {
  const Arguments& arguments;
  Split& split;
  const Sources sources;
  Call call;
  bool passed[kMaxInputs];  // arrays that the kernel has as a value: 0-d ones in host memory beside device arrays
  Typed* typed;
  const DLTensor* out;

  Plan(ExpressionCalls& self, const Arguments& given, const CallOptions& options);
};

/// All that dtypes and kernels depend on, but the library's configuration.
std::vector<uint64_t> key_of(const Plan& plan) {
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

Typed& find_typed(const ExpressionCalls& self, const Plan& plan, std::vector<uint64_t> key, nb::handle sides) {
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
Typed& find_typed(const ExpressionCalls& self, const Plan& plan) {
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

Plan::Plan(ExpressionCalls& self, const Arguments& given, const CallOptions& options)
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

// ---- the call ----

void on_host(const Plan& plan) {
  const Call& call = plan.call;
  nb::list arrays, scalars;
  for (int k = 0; k < plan.arguments.array_count; ++k) arrays.append(call.numpy(k));
  for (const Typed::Value& value : plan.typed->values) {
    const auto source = static_cast<size_t>(value.source);
    scalars.append(nb::make_tuple(plan.split.labels[source], plan.sources.values[source]));
  }
  compute_on_host(call, plan.typed->python, arrays, nb::none(), scalars);
}

/// The values of the kernel: scalars as the elements that they are to become, then the 0-d arrays of the host.
void set_values(Elementwise& work, const ExpressionCalls& self, const Plan& plan) {
  int count = 0;
  for (const Typed::Value& value : plan.typed->values) {
    const auto source = static_cast<size_t>(value.source);
    const nb::handle scalar = plan.sources.values[source];
    work.values[count++] =
        value_of(self.function.c_str(), plan.split.labels[source].c_str(), scalar, kind_of(scalar), value.dtype);
  }
  for (int k = 0; k < plan.arguments.array_count; ++k) {
    if (plan.passed[k]) work.values[count++] = value_by_numpy(plan.call.numpy(k), plan.call.tensor(k).dtype);
  }
}

const cuda::CompiledPass* known_kernel(const Typed& typed, int device, const cuda::PassShape& shape) {
  for (const Typed::Compiled& compiled : typed.compiled) {
    if (compiled.device == device && compiled.pass.shape == shape) return &compiled.pass;
  }
  return nullptr;
}

/// The kernel for a pass, compiled on first use.
cuda::CompiledPass find_kernel(const ExpressionCalls& self, const Plan& plan, const Elementwise& work) {
  if (cuda::is_empty(work)) return {};
  Typed& typed = *plan.typed;
  const int device = plan.call.device();
  const cuda::PassShape shape = cuda::compiled_shape(work);
  if (const cuda::CompiledPass* known = known_kernel(typed, device, shape)) return *known;
  constexpr const char* kWalks[] = {"Flat", "Rows", "Tiles"};
  nb::list passed;
  for (int k = 0; k < plan.arguments.array_count; ++k) passed.append(plan.passed[k]);
  const nb::object loaded = self.load_kernel(typed.python, passed, kWalks[static_cast<int>(shape.walk)], shape.tile,
                                             shape.vector, shape.unroll, cuda::architecture_name(device));
  const cuda::CompiledPass pass{shape, nb::cast<const LoadedKernel&>(loaded).kernel};
  if (!known_kernel(typed, device, shape)) typed.compiled.push_back({device, pass});
  return pass;
}

/// What a call of an expression is: all that is decided before anything is computed. `run` does it, `explain` says it.
class Decision {
 public:
  Decision(const ExpressionCalls& self, Plan& plan) : self_(self), plan_(plan) {
    if (plan.call.on_host()) return;
    set_values(pass_.work, self, plan);
    int count = 0;
    for (int k = 0; k < plan.arguments.array_count; ++k) {
      if (!plan.passed[k]) places_[count++] = k;
    }
    pass_.plan(plan.call, places_, count, *plan.out);
  }

  nb::object run() {
    Call& call = plan_.call;
    if (call.on_host()) {
      on_host(plan_);
    } else {
      pass_.run(call, [&](const Elementwise& work) { return find_kernel(self_, plan_, work); });
    }
    return call.hand_over();
  }

  nb::dict explain() {
    auto explained = nb::borrow<nb::dict>(plan_.call.explain());
    explained["workspace_bytes"] = pass_.workspace_bytes();
    if (plan_.call.on_host()) {
      explained["algorithm"] = "NumPy's, operation by operation, on views of the arrays";
    } else {
      explained["algorithm"] = pass_.with_copy("one kernel, compiled at run time: " + cuda::describe(pass_.work));
    }
    return explained;
  }

 private:
  const ExpressionCalls& self_;
  Plan& plan_;
  // on a GPU
  int places_[kMaxInputs];  // of the arrays that the kernel reads
  DevicePass pass_;
};

nb::object in_jax(ExpressionCalls& self, const Arguments& arguments, const Options& given) {
  const nb::handle door = enter_jax(self.function.c_str());
  nb::dict options;
  options["out"] = given.out;
  options["stream"] = stream_for_jax(self.function.c_str(), given.stream);
  options["execution"] = given.execution;
  return door(find_split(self, arguments.scalars).python, options, *argument_tuple(self, arguments));
}

nb::object in_torch(Computes who, ExpressionCalls& self, const Arguments& arguments, const Options& given) {
  nb::dict options;
  options["out"] = given.out;
  options["stream"] = given.stream;
  options["execution"] = given.execution;
  const nb::tuple operation = nb::make_tuple(nb::find(self), find_split(self, arguments.scalars).python);
  return bindings::in_torch(who, operation, options, argument_tuple(self, arguments));
}

nb::object compute(ExpressionCalls& self, const Arguments& arguments, const Options& options, bool below_autograd) {
  return exchange::as_call(self.function.c_str(), !options.execution.is_none(), [&] {
    Plan plan(self, arguments, options.of_call(false, below_autograd));
    return on_own_frame([&] { return Decision(self, plan).run(); });
  });
}

nb::object call_expression(ExpressionCalls& self, nb::tuple args, nb::dict named, nb::handle out, nb::handle stream,
                           nb::handle execution) {
  const exchange::CallGuard guard;
  const Options options{out, stream, execution};
  const Arguments arguments = read_arguments(self, args, named);
  const Computes who = who_computes(self, arguments, options);
  if (who == Computes::jax) return in_jax(self, arguments, options);
  if (is_left_to_torch(who)) return in_torch(who, self, arguments, options);
  return compute(self, arguments, options, who == Computes::interop_memory);
}

/// Takes the options from the arguments with a name.
Options take_options(nb::dict named, nb::list keeps) {
  const auto take = [&](const char* name) {
    const nb::object value = named.get(name, nb::none());
    if (named.contains(name)) nb::del(named[name]);
    keeps.append(value);
    return nb::handle(value);
  };
  const nb::handle out = take("out"), stream = take("stream"), execution = take("execution");
  return {out, stream, execution};
}

}  // namespace

nb::object expression_below_autograd(nb::handle expression, nb::tuple operands, nb::dict given) {
  const exchange::CallGuard guard;
  auto& self = nb::cast<ExpressionCalls&>(expression);
  nb::dict named;
  named.update(given);
  nb::list keeps;
  const Options options = take_options(named, keeps);
  return compute(self, read_arguments(self, operands, named), options, true);
}

nb::object explain_expression(nb::handle expression, nb::tuple args, nb::dict given) {
  const exchange::CallGuard guard;
  auto& self = nb::cast<ExpressionCalls&>(expression);
  nb::dict named;
  named.update(given);
  nb::list keeps;
  const Options options = take_options(named, keeps);
  const Arguments arguments = read_arguments(self, args, named);
  const Computes who = who_computes(self, arguments, options);
  if (who == Computes::jax) {
    stream_for_jax(self.function.c_str(), options.stream);
    return nb::make_tuple(find_split(self, arguments.scalars).python, argument_tuple(self, arguments));
  }
  Plan plan(self, arguments, options.of_call(true, who == Computes::torch_autograd));
  return on_own_frame([&] { return Decision(self, plan).explain(); });
}

void bind_expression(nb::module_& m) {
  nb::class_<ExpressionCalls>(m, "Expression", "An expression, and what its calls have found out.")
      .def(nb::init<std::string, std::vector<std::string>, nb::object, nb::object>(),
           nb::sig("def __init__(self, function: str, parameters: list[str], "
                   "make_split: typing.Callable[[frozenset[str]], typing.Any], "
                   "load_kernel: typing.Callable[..., LoadedKernel], /) -> None"))
      .def_prop_ro_static(
          "max_parameters", [](nb::handle) { return kMaxInputs; }, nb::sig("def max_parameters(cls: object, /) -> int"),
          "How many parameters an expression may have.")
      .def_prop_ro_static(
          "kernel_source", [](nb::handle) { return kKernelSource; },
          nb::sig("def kernel_source(cls: object, /) -> str"),
          "What the source of each kernel begins with: headers of src/cuda as one text.");
  // Functions rather than methods, which torch.compile would call without the object.
  m.def("call_expression", &call_expression, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(),
        nb::arg().none(),
        nb::sig("def call_expression(expression: Expression, args: tuple[typing.Any, ...], "
                "named: dict[str, typing.Any], out: typing.Any, stream: typing.Any, execution: str | None, /) -> "
                "typing.Any"),
        "Compute an expression for arguments by position and by name.");
}

}  // namespace interop::bindings
