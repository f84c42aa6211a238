/// The elementwise operations: from Python's arguments to a result on the host, on the GPU, or in JAX.
#include <interop/call.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <iterator>

#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "bindings/by_operation.h"
#include "bindings/by_python.h"
#include "bindings/elementwise/abstract.h"
#include "bindings/elementwise/host_plan.h"
#include "bindings/elementwise/pass.h"
#include "bindings/elementwise/shared_dtype.h"
#include "bindings/frame.h"
#include "bindings/functions/results.h"
#include "bindings/jax_plans.h"
#include "bindings/promotion.h"
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
using exchange::Name;

/// A function of the package.
struct Function {
  const char* name;  // "interop.add"
  Name short_name;   // "add"
  ElementwiseOp op;

  const Operation& operation() const { return kFunctions[static_cast<int>(op)]; }
  bool is_unary() const { return operation().arity == 1; }
  const char* parameter(int k) const { return is_unary() ? "x" : k == 0 ? "a" : "b"; }
};

const Function kFunctionsByName[] = {
#define INTEROP_FUNCTION(name, ...) {"interop." #name, Name(#name), ElementwiseOp::name},
    INTEROP_FUNCTIONS(INTEROP_FUNCTION)
#undef INTEROP_FUNCTION
};

const Function& function_named(nb::handle name) {
  for (const Function& function : kFunctionsByName) {
    if (function.short_name.get() == name.ptr()) return function;  // as the functions of Python have it
  }
  const Operation* const found = find_operation(exchange::text_of(name));
  if (found && is_function(*found)) return kFunctionsByName[found - kFunctions];
  throw ValueError("interop: no elementwise function is called " + exchange::text_of(name));
}

// ---- the arguments ----

/// The arguments with a name, each None where it is left out.
struct Options {
  nb::handle out = Py_None, stream = Py_None, where_zero = Py_None, execution = Py_None;

  bool has_only_out() const { return stream.is_none() && where_zero.is_none() && execution.is_none(); }
};
const Keyword<Options> kOptions[] = {
    {Name("out"), &Options::out},
    {Name("stream"), &Options::stream},
    {Name("execution"), &Options::execution},
    {Name("where_zero"), &Options::where_zero},
};

const Keyword<Options>* find_option(const Function& function, PyObject* name) {
  const Keyword<Options>* const found = find_keyword(kOptions, name);
  return found && found->place == &Options::where_zero && function.op != ElementwiseOp::divide ? nullptr : found;
}

Options read_options(const Function& function, nb::handle a, nb::handle b, nb::dict given) {
  Options options;
  if (function.is_unary()) b = nb::handle();
  if (is_missing(a) || is_missing(b)) refuse_call(function.name, a, b, given);
  PyObject *name, *value;
  for (Py_ssize_t at = 0; PyDict_Next(given.ptr(), &at, &name, &value);) {
    const Keyword<Options>* option = find_option(function, name);
    if (!option) refuse_call(function.name, a, b, given);
    options.*option->place = value;
  }
  return options;
}

// ---- operands ----

/// The operands of one call, before anything is decided.
struct Operands {
  int count = 0;
  nb::handle objects[2];
  Kind kinds[2];
  int place[2];  // among the arrays of the call; -1 for a scalar
  Argument arrays[2];
  int array_count = 0;
};

Operands read_operands(const Function& function, nb::handle a, nb::handle b) {
  Operands operands;
  operands.count = function.is_unary() ? 1 : 2;
  operands.objects[0] = a;
  operands.objects[1] = b;
  for (int k = 0; k < operands.count; ++k) {
    operands.kinds[k] = kind_of(operands.objects[k]);
    operands.place[k] = operands.kinds[k] == Kind::array ? operands.array_count : -1;
    if (operands.place[k] >= 0) operands.arrays[operands.array_count++] = {function.parameter(k), operands.objects[k]};
  }
  if (operands.array_count == 0) {
    const std::string first = std::string(function.name) + ": " + function.parameter(0);
    if (operands.count == 1)
      throw TypeError(first + " is a scalar, " + exchange::type_text(a) + "; accepted: an array");
    throw TypeError(first + " and b are scalars, " + exchange::type_text(a) + " and " + exchange::type_text(b) +
                    "; accepted: an array, and an array or a scalar beside it");
  }
  return operands;
}

void check_where_zero(const Function& function, nb::handle where_zero) {
  if (where_zero.is_none() || kind_of(where_zero) != Kind::array) return;
  throw TypeError(std::string(function.name) + ": where_zero is " + exchange::type_text(where_zero) +
                  "; accepted: None, or a scalar");
}

Computes who_computes(const Function& function, const Operands& operands, const Options& options) {
  Argument arrays[3];
  int count = 0;
  while (count < operands.array_count) {
    arrays[count] = operands.arrays[count];
    ++count;
  }
  if (!options.out.is_none()) arrays[count++] = {"out", options.out};
  return exchange::who_computes(function.name, arrays, operands.array_count, count, options.execution);
}

// ---- dtypes ----

/// What an operand is to promotion: (dtype, is 0-d) of an array, a scalar itself.
nb::object promoted_of(const Call& call, const Operands& operands, int k) {
  if (operands.place[k] < 0) return nb::borrow(operands.objects[k]);
  const DLTensor& tensor = call.tensor(operands.place[k]);
  return nb::make_tuple(dtype_name(tensor.dtype), tensor.ndim == 0);
}

/// The dtype in which an operation is computed: the operands' own if they have one, else what the array library says.
DLDataType common_dtype(const Function& function, const Operands& operands, const Call& call) {
  PromotedOperand promoted[2];
  for (int k = 0; k < operands.count; ++k) {
    if (operands.place[k] >= 0) {
      promoted[k].dtype = call.tensor(operands.place[k]).dtype;
    } else {
      promoted[k] = {operands.kinds[k], std::nullopt, operands.objects[k]};
    }
  }
  const auto shared = shared_dtype(function.operation(), promoted, operands.count);
  if (shared) return *shared;
  for (int k = 0; k < operands.array_count; ++k) {  // what is promoted might be served, and the operand not
    if (is_served(call.tensor(k).dtype)) continue;
    throw TypeError(std::string(function.name) + ": " + operands.arrays[k].name + " is " +
                    dtype_name(call.tensor(k).dtype) + "; accepted: " + ops::kServedDtypes);
  }
  if (operands.array_count == 2) {
    const auto array = [&](int k) { return promotion::PromotedArray{call.tensor(k).dtype, call.tensor(k).ndim == 0}; };
    const auto found =
        promotion::promote_arrays(function.name, call.library(), function.operation().in_float, array(0), array(1));
    if (found) return *found;
  }
  nb::object other = nb::none();
  if (operands.count == 2) other = promoted_of(call, operands, 1);
  const nb::object name = promotion::promote(function.name, call.library(), function.operation().in_float,
                                             promoted_of(call, operands, 0), other);
  const auto found = exchange::dtype_from_name(nb::cast<std::string>(name));
  if (!found)
    throw TypeError(std::string(function.name) + ": the operands promote to " + exchange::text_of(name) +
                    kAcceptedPromotions);
  return *found;
}

// ---- the call ----

nb::object in_jax(const Function& function, const Operands& operands, nb::handle a, nb::handle b, nb::handle out,
                  nb::handle stream, nb::handle execution, nb::handle where_zero) {
  const nb::handle door = enter_jax(function.name);
  const nb::handle name = function.short_name.get();
  if (out.is_none() && stream.is_none() && execution.is_none() && where_zero.is_none()) {
    nb::object result;
    if (operands.array_count == operands.count) result = compute_planned(name, operands.objects, operands.count);
    if (result.is_valid()) return result;
    return operands.count == 1 ? door(name, nb::none(), a) : door(name, nb::none(), a, b);
  }
  nb::dict options;
  options["out"] = out;
  options["stream"] = stream_for_jax(function.name, stream);
  options["execution"] = execution;
  options["where_zero"] = where_zero;
  return door(name, options, a, b);
}

nb::object host_operand(const Call& call, const Operands& operands, int k) {
  return operands.place[k] < 0 ? nb::borrow(operands.objects[k]) : call.numpy(operands.place[k]);
}

void on_host(const Function& function, const Operands& operands, const Call& call, DLDataType dtype,
             nb::handle where_zero) {
  nb::object b = nb::none();
  if (operands.count == 2) b = host_operand(call, operands, 1);
  const nb::tuple both = nb::make_tuple(host_operand(call, operands, 0), b);
  compute_on_host(call, function.short_name.get(), both, exchange::numpy_dtype(dtype), where_zero);
}

/// A call with its arrays read and its result made, as its shape and dtype rules say.
struct Plan {
  const Operands& operands;
  nb::handle where_zero;
  Call call;
  DLDataType dtype;
  const DLTensor* out;

  Plan(const Function& function, const Operands& given, const Options& options, bool only_looks, bool below_autograd)
      : operands(given),
        where_zero(options.where_zero),
        call(function.name, operands.arrays, operands.array_count,
             {options.out, options.stream, options.execution, only_looks, true, true, below_autograd}),
        dtype(common_dtype(function, operands, call)) {
    const DLDataType out_dtype = ops::result_dtype(function.name, function.operation(), dtype);
    ops::NamedTensor inputs[2];
    for (int k = 0; k < operands.array_count; ++k) inputs[k] = {operands.arrays[k].name, &call.tensor(k)};
    out = &call.output(ops::broadcast_shape(function.name, inputs, operands.array_count), out_dtype);
  }
};

/// Operand `k`, a scalar, as an element. `op` becomes the comparison that answers for it if the dtype cannot hold it.
ScalarValue scalar_of(ElementwiseOp& op, const Function& function, const Plan& plan, int k, nb::handle x, Kind kind) {
  const char* parameter = function.parameter(k);
  if (!is_comparison(op) || fits(x, kind, plan.dtype)) {
    return value_of(function.name, parameter, x, kind, plan.dtype);
  }
  nb::object comparison = nb::borrow(function.short_name.get());
  const ScalarValue value = promotion::compared_of(function.name, comparison, parameter, x, plan.dtype, k == 0);
  op = function_named(comparison).op;
  return value;
}

/// What is computed, as far as it is known without reading an array. Throws what computing would of the scalars.
ElementwiseStep step_of(ScalarValue* values, const Function& function, const Plan& plan) {
  const Operands& operands = plan.operands;
  const nb::handle where_zero = plan.where_zero;
  ElementwiseStep step{function.op, plan.dtype, !where_zero.is_none()};
  for (int k = 0; k < operands.count; ++k) {
    if (operands.place[k] >= 0) continue;
    values[0] = scalar_of(step.op, function, plan, k, operands.objects[k], operands.kinds[k]);
  }
  if (step.replaces_zero) {
    values[kWhereZero] = value_of(function.name, "where_zero", where_zero, kind_of(where_zero), plan.dtype);
  }
  return step;
}

/// Reads a 0-d host array beside device arrays, which the kernel has as a value.
void read_value(ElementwiseStep& step, ScalarValue& value, const Function& function, const Plan& plan, int k) {
  const Call& call = plan.call;
  const int place = plan.operands.place[k];
  const DLTensor& array = call.tensor(place);
  if (!is_comparison(function.op) || array.dtype == plan.dtype) {
    const std::optional<ScalarValue> found = value_in(array, plan.dtype);
    value = found ? *found : value_by_numpy(call.numpy(place), plan.dtype);
    return;
  }
  const nb::object number = call.numpy(place)[nb::make_tuple()];  // which the common dtype need not hold
  value = scalar_of(step.op, function, plan, k, number, Kind::numpy_scalar);
}

/// What a call of a function is: all that is decided before anything is computed. `run` does it, `explain` says it.
class Decision {
 public:
  Decision(const Function& function, Plan& plan) : function_(function), plan_(plan) {
    const Call& call = plan.call;
    if (call.on_host()) return;
    step_ = step_of(pass_.work.values, function, plan);
    const Operands& operands = plan.operands;
    for (int k = 0; k < operands.count; ++k) {
      places_[k] = operands.place[k];
      if (places_[k] < 0 || !is_value(call, places_[k])) continue;
      read_value(step_, pass_.work.values[0], function, plan, k);
      places_[k] = -1;
    }
    pass_.plan(call, places_, operands.count, *plan.out);
  }

  nb::object run() {
    Call& call = plan_.call;
    if (call.on_host()) {
      on_host(function_, plan_.operands, call, plan_.dtype, plan_.where_zero);
    } else {
      pass_.run(call, [&](const Elementwise&) { return step_; });
    }
    return call.hand_over();
  }

  nb::dict explain() {
    auto explained = nb::borrow<nb::dict>(plan_.call.explain());
    explained["workspace_bytes"] = pass_.workspace_bytes();
    if (plan_.call.on_host()) {
      step_of(pass_.work.values, function_, plan_);  // what NumPy's way finds out as it computes
      explained["algorithm"] = "NumPy's " + std::string(function_.operation().name) + ", on views of the arrays, in " +
                               dtype_name(plan_.dtype);
    } else {
      explained["algorithm"] = pass_.with_copy(cuda::describe(step_, pass_.work));
    }
    return explained;
  }

  /// The seconds that one launch takes on the host, with everything before it done.
  double time_launch() const {
    if (plan_.call.on_host()) throw ValueError("interop: time_launch is for device arrays");
    const auto start = std::chrono::steady_clock::now();
    cuda::launch_elementwise(step_, pass_.work, plan_.call.stream());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  const Function& function_;
  Plan& plan_;
  // on a GPU
  ElementwiseStep step_;
  int places_[2];  // of the operands among the arrays; -1: a value
  DevicePass pass_;
};

// ---- what is kept for NumPy's own arrays ----

HostPlans& host_plans(const Function& function) {
  static HostPlans* const plans = new HostPlans[std::size(kFunctionsByName)];  // never freed, as Python may be gone
  return plans[static_cast<int>(function.op)];
}

void keep(const HostKey& key, const Function& function, const Plan& plan) {
  if (host_plans(function).find(key)) return;  // which does not hold for the scalars of this call
  nb::list dtypes;
  for (int k = 0; k < plan.operands.count; ++k) {
    const int place = plan.operands.place[k];
    dtypes.append(place < 0 ? nb::handle(Py_None) : exchange::numpy_dtype(plan.call.tensor(place).dtype));
  }
  host_plans(function).keep(
      key, kept_on_host(function.short_name.get(), dtypes, plan.call.has_out(), exchange::numpy_dtype(plan.dtype),
                        exchange::numpy_dtype(plan.out->dtype)));
}

nb::object compute(const Function& function, nb::handle a, nb::handle b, nb::dict given, const Options& options) {
  HostKey key;
  const nb::handle objects[] = {a, b};
  const bool may_be_kept = options.has_only_out() && key.read(objects, function.operation().arity, options.out);
  if (may_be_kept) {
    const HostPlan* const kept = host_plans(function).find(key);
    if (kept && kept->computes(objects)) {
      return kept->run(function.name, objects, function.operation().arity, objects, options.out, key.is_plain());
    }
  }
  const Operands operands = read_operands(function, a, b);
  check_where_zero(function, options.where_zero);
  const Computes who = who_computes(function, operands, options);
  if (who == Computes::jax) {
    return in_jax(function, operands, a, b, options.out, options.stream, options.execution, options.where_zero);
  }
  if (is_left_to_torch(who)) return in_torch(who, function.short_name.get(), given, nb::make_tuple(a, b));
  Plan plan(function, operands, options, false, who == Computes::interop_memory);
  nb::object result = on_own_frame([&] { return Decision(function, plan).run(); });
  if (may_be_kept) keep(key, function, plan);
  return result;
}

nb::object elementwise(nb::handle name, nb::handle a, nb::handle b, nb::dict given) {
  const exchange::CallGuard guard;
  const Function& function = function_named(name);
  const Options options = read_options(function, a, b, given);
  return exchange::as_call(function.name, !options.execution.is_none(),
                           [&] { return compute(function, a, b, given, options); });
}

}  // namespace

nb::object elementwise_below_autograd(nb::handle name, nb::handle a, nb::handle b, nb::dict given) {
  const exchange::CallGuard guard;
  const Function& function = function_named(name);
  const Options options = read_options(function, a, b, given);
  return exchange::as_call(function.name, !options.execution.is_none(), [&] {
    const Operands operands = read_operands(function, a, b);
    check_where_zero(function, options.where_zero);
    Plan plan(function, operands, options, false, true);
    return on_own_frame([&] { return Decision(function, plan).run(); });
  });
}

nb::object explain_elementwise(nb::handle name, nb::handle a, nb::handle b, nb::dict given) {
  const exchange::CallGuard guard;
  const Function& function = function_named(name);
  const Options options = read_options(function, a, b, given);
  const Operands operands = read_operands(function, a, b);
  check_where_zero(function, options.where_zero);
  const Computes who = who_computes(function, operands, options);
  if (who == Computes::jax) {
    stream_for_jax(function.name, options.stream);
    return nb::none();
  }
  Plan plan(function, operands, options, true, who == Computes::torch_autograd);
  return on_own_frame([&] { return Decision(function, plan).explain(); });
}

double time_launch_of_add(nb::handle a, nb::handle b, nb::handle out) {
  const Function& function = function_named(nb::str("add"));
  const Operands operands = read_operands(function, a, b);
  Plan plan(function, operands, {out, Py_None, Py_None, Py_None}, false, false);
  return on_own_frame([&] { return Decision(function, plan).time_launch(); });
}

void bind_elementwise(nb::module_& m) {
  bind_abstract_elementwise(m);
  m.def("elementwise", &elementwise, nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg(),
        nb::sig("def elementwise(function: str, a: typing.Any, b: typing.Any, options: dict[str, typing.Any], /) -> "
                "typing.Any"),
        "The elementwise function of that name, with the arguments that have a name in a dict.");
}

}  // namespace interop::bindings
