/// Calls of expressions: what they give, on the host, on the GPU by a kernel compiled for it, in JAX or in torch.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings/bindings.h"
#include "bindings/by_operation.h"
#include "bindings/by_python.h"
#include "bindings/elementwise/expression_plan.h"
#include "bindings/elementwise/kernel_source.h"
#include "bindings/elementwise/pass.h"
#include "bindings/frame.h"
#include "bindings/functions/loaded_kernel.h"
#include "bindings/jax_plans.h"
#include "bindings/scalars.h"
#include "exchange/closing.h"
#include "exchange/door.h"
#include "exchange/stream.h"

namespace interop::bindings {
namespace {

using exchange::Computes;

/// What a call takes besides the arrays; each may be None.
struct Options {
  nb::handle out = Py_None, stream = Py_None, execution = Py_None;

  bool has_only_out() const { return stream.is_none() && execution.is_none(); }

  CallOptions of_call(bool only_looks, bool below_autograd) const {
    return {out, stream, execution, only_looks, true, true, below_autograd};
  }
};

Computes who_computes(const ExpressionCalls& self, const ExpressionArguments& arguments, const Options& options) {
  Argument arrays[kMaxInputs + 1];
  const int count = arguments.array_count;
  std::copy(arguments.arrays, arguments.arrays + count, arrays);
  const bool has_out = !options.out.is_none();
  if (has_out) arrays[count] = {"out", options.out};
  return exchange::who_computes(self.function.c_str(), arrays, count, count + has_out, options.execution);
}

void on_host(const ExpressionPlan& plan) {
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
void set_values(Elementwise& work, const ExpressionCalls& self, const ExpressionPlan& plan) {
  int count = 0;
  for (const Typed::Value& value : plan.typed->values) {
    const auto source = static_cast<size_t>(value.source);
    const nb::handle scalar = plan.sources.values[source];
    work.values[count++] =
        value_of(self.function.c_str(), plan.split.labels[source].c_str(), scalar, kind_of(scalar), value.dtype);
  }
  for (int k = 0; k < plan.arguments.array_count; ++k) {
    if (plan.passed[k]) work.values[count++] = *value_in(plan.call.tensor(k), plan.call.tensor(k).dtype);
  }
}

const cuda::CompiledPass* known_kernel(const Typed& typed, int device, const cuda::PassShape& shape) {
  for (const Typed::Compiled& compiled : typed.compiled) {
    if (compiled.device == device && compiled.pass.shape == shape) return &compiled.pass;
  }
  return nullptr;
}

/// The kernel for a pass, compiled on first use.
cuda::CompiledPass find_kernel(const ExpressionCalls& self, const ExpressionPlan& plan, const Elementwise& work) {
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
  Decision(const ExpressionCalls& self, ExpressionPlan& plan) : self_(self), plan_(plan) {
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
  ExpressionPlan& plan_;
  // on a GPU
  int places_[kMaxInputs];  // of the arrays that the kernel reads
  DevicePass pass_;
};

nb::object in_jax(ExpressionCalls& self, const ExpressionArguments& arguments, const Options& given) {
  const nb::handle door = enter_jax(self.function.c_str());
  const nb::handle split = find_split(self, arguments.scalars).python;
  if (given.out.is_none() && given.stream.is_none() && given.execution.is_none()) {
    nb::object result;
    if (arguments.scalars == 0) result = compute_planned(split, arguments.objects, arguments.array_count);
    return result.is_valid() ? result : door(split, nb::none(), *argument_tuple(self, arguments));
  }
  nb::dict options;
  options["out"] = given.out;
  options["stream"] = stream_for_jax(self.function.c_str(), given.stream);
  options["execution"] = given.execution;
  return door(split, options, *argument_tuple(self, arguments));
}

nb::object in_torch(Computes who, ExpressionCalls& self, const ExpressionArguments& arguments, const Options& given) {
  nb::dict options;
  options["out"] = given.out;
  options["stream"] = given.stream;
  options["execution"] = given.execution;
  const nb::tuple operation = nb::make_tuple(nb::find(self), find_split(self, arguments.scalars).python);
  return bindings::in_torch(who, operation, options, argument_tuple(self, arguments));
}

/// A call as what is kept for NumPy's own arrays sees it: the arrays, then the scalars that they meet.
struct HostOperands {
  nb::handle all[kMaxInputs];
  int array_count;
  HostKey key;
  bool may_be_kept;

  HostOperands(const Split& split, const ExpressionArguments& arguments, const Options& options)
      : array_count(arguments.array_count) {
    int count = 0;
    for (; count < array_count; ++count) all[count] = arguments.arrays[count].object;
    may_be_kept = options.has_only_out() && !split.computes;
    if (!may_be_kept) return;
    for (const int place : split.places) all[count++] = arguments.objects[place];
    may_be_kept = key.read(all, count, options.out);
  }
  const nb::handle* scalars() const { return all + array_count; }
};

void keep(const HostOperands& operands, const ExpressionPlan& plan) {
  HostPlans& plans = plan.split.host_plans;
  if (plans.find(operands.key)) return;                 // which does not hold for the scalars of this call
  for (const Typed::Value& x : plan.typed->compared) {  // else these steps are for this scalar alone
    const nb::handle scalar = operands.scalars()[x.source];
    if (!fits(scalar, kind_of(scalar), x.dtype)) return;
  }
  plans.keep(operands.key, kept_on_host(plan.typed->python, nb::cast(plan.split.labels), plan.call.has_out(),
                                        nb::none(), nb::none()));
}

nb::object compute(ExpressionCalls& self, const ExpressionArguments& arguments, const Options& options,
                   bool below_autograd) {
  return exchange::as_call(self.function.c_str(), !options.execution.is_none(), [&] {
    const Split& split = find_split(self, arguments.scalars);
    const HostOperands operands(split, arguments, options);
    if (operands.may_be_kept) {
      const HostPlan* const kept = split.host_plans.find(operands.key);
      if (kept && kept->computes(operands.scalars())) {
        return kept->run(self.function.c_str(), operands.all, operands.array_count, operands.scalars(), options.out,
                         operands.key.is_plain());
      }
    }
    ExpressionPlan plan(self, arguments, options.of_call(false, below_autograd));
    nb::object result = on_own_frame([&] { return Decision(self, plan).run(); });
    if (operands.may_be_kept) keep(operands, plan);
    return result;
  });
}

nb::object call_expression(ExpressionCalls& self, nb::tuple args, nb::dict named, nb::handle out, nb::handle stream,
                           nb::handle execution) {
  const exchange::CallGuard guard;
  const Options options{out, stream, execution};
  const ExpressionArguments arguments = read_arguments(self, args, named);
  const Computes who = who_computes(self, arguments, options);
  if (who == Computes::jax) return in_jax(self, arguments, options);
  if (is_left_to_torch(who)) return in_torch(who, self, arguments, options);
  return compute(self, arguments, options, who == Computes::interop_memory);
}

nb::object compute_below_autograd(ExpressionCalls& self, const ExpressionArguments& arguments, const Options& options) {
  return compute(self, arguments, options, true);
}

nb::object explain(ExpressionCalls& self, const ExpressionArguments& arguments, const Options& options) {
  const Computes who = who_computes(self, arguments, options);
  if (who == Computes::jax) {
    stream_for_jax(self.function.c_str(), options.stream);
    return nb::make_tuple(find_split(self, arguments.scalars).python, argument_tuple(self, arguments));
  }
  ExpressionPlan plan(self, arguments, options.of_call(true, who == Computes::torch_autograd));
  return on_own_frame([&] { return Decision(self, plan).explain(); });
}

/// Reads a call whose options are among the arguments with a name, and gives what `function` makes of it.
nb::object with_named_options(nb::object (*function)(ExpressionCalls&, const ExpressionArguments&, const Options&),
                              nb::handle expression, nb::tuple args, nb::dict given) {
  const exchange::CallGuard guard;
  auto& self = nb::cast<ExpressionCalls&>(expression);
  nb::dict named;
  named.update(given);
  const auto take = [&](const char* name) {
    nb::object value = named.get(name, nb::none());
    if (named.contains(name)) nb::del(named[name]);
    return value;
  };
  const nb::object out = take("out"), stream = take("stream"), execution = take("execution");
  return function(self, read_arguments(self, args, named), {out, stream, execution});
}

}  // namespace

nb::object expression_below_autograd(nb::handle expression, nb::tuple operands, nb::dict given) {
  return with_named_options(&compute_below_autograd, expression, operands, given);
}

nb::object explain_expression(nb::handle expression, nb::tuple operands, nb::dict given) {
  return with_named_options(&explain, expression, operands, given);
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
