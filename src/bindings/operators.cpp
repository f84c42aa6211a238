/// The eager call of an operator: what follows from the types and shapes of its inputs is found by Python once, and
/// kept.
#include <interop/call.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/frame.h"
#include "exchange/door.h"
#include "exchange/python.h"
#include "exchange/route.h"

namespace interop::bindings {
namespace {

using exchange::attribute;
using exchange::Computes;
using exchange::Lookup;
using exchange::Name;

const Name kShape("shape"), kDtype("dtype");
constexpr size_t kMostPlans = 8;
constexpr const char* kRecorded = "torch_autograd";

/// What Python says of inputs of these types and shapes.
struct Plan {
  std::vector<nb::object> types;   // of all inputs
  std::vector<nb::object> shapes;  // of the arrays
  std::vector<nb::object> dtypes;  // of the arrays; none where what is called checks them
  DLDeviceType device = kDLCPU;    // where the call runs; the same for all where one function serves everywhere
  nb::object target;
  std::vector<int> places;         // of each argument among the inputs; -1 for one of `values`
  std::vector<nb::object> values;  // beside the places
  nb::object tail;                 // None: the arguments by position; else they are a tuple, and these follow it
  nb::object expected;             // None, or a tuple of the results' shapes and dtypes
  nb::tuple told;                  // the arrays' shapes and dtypes, for a gradient's check
  nb::object discrete;             // a tuple of the places of the results without a gradient
  std::vector<nb::object> made;    // the results' dtypes, once they have been checked
};

/// The inputs that are arrays, and what they say of themselves.
struct Facts {
  std::vector<nb::object> shapes, dtypes;
  DLDeviceType device = kDLCPU;
};

bool equal(const nb::object& a, const nb::object& b) {
  if (a.is(b)) return true;
  const int answer = PyObject_RichCompareBool(a.ptr(), b.ptr(), Py_EQ);
  if (answer < 0) nb::raise_python_error();
  return answer == 1;
}

/// What JAX calls a number: an array of no dimension, or what stands for one as it traces.
exchange::Tracing tracing_of_number(nb::handle x) {
  const bool is_plain = PyFloat_CheckExact(x.ptr()) || PyLong_CheckExact(x.ptr()) || PyBool_Check(x.ptr());
  const exchange::Route* const route = is_plain ? nullptr : exchange::find_route(x);
  return route ? route->tracing() : exchange::Tracing::none;
}

class OperatorCalls {
 public:
  OperatorCalls(std::string label, std::vector<std::string> names, std::vector<int> arrays, bool asks_dtypes,
                bool asks_device, nb::object prepare, nb::object check)
      : label_(std::move(label)),
        names_(std::move(names)),
        arrays_(std::move(arrays)),
        asks_dtypes_(asks_dtypes),
        asks_device_(asks_device),
        prepare_(std::move(prepare)),
        check_(std::move(check)) {}

  /// "torch" or "jax" where a transform or a mode of these needs the call; "torch_autograd" where only a record does,
  /// of tensors that are memory; "unknown" where an input is of no array type that is known; "" where the call is run
  /// at once.
  const char* door(const nb::tuple& inputs) const {
    Room<Argument> arguments(static_cast<int>(arrays_.size()));
    int count = 0;
    bool is_of_jax = false;
    for (const int place : arrays_) {
      const nb::handle x = inputs[static_cast<size_t>(place)];
      const exchange::Route* const route = exchange::find_route(x);
      if (!route) return "unknown";
      if (count == 0) is_of_jax = route->tracing() == exchange::Tracing::concrete;
      if (route->tracing() == exchange::Tracing::tracer) return "jax";
      arguments[count++] = {names_[static_cast<size_t>(place)].c_str(), x};
    }
    for (size_t place = 0, k = 0; arrays_.size() < names_.size() && place < names_.size(); ++place) {
      if (k < arrays_.size() && static_cast<size_t>(arrays_[k]) == place) {
        ++k;
        continue;
      }
      const exchange::Tracing tracing = tracing_of_number(inputs[place]);
      if (tracing == exchange::Tracing::tracer || (is_of_jax && tracing == exchange::Tracing::concrete)) return "jax";
    }
    const Computes who = exchange::who_computes(label_.c_str(), arguments.data(), count, count, nb::none());
    if (who == Computes::torch_autograd) return kRecorded;
    return who == Computes::torch ? "torch" : "";
  }

  /// Is it an array of a type that is known, which may be asked for no more than its type?
  static bool is_known(nb::handle x) { return exchange::find_route(x) != nullptr; }

  /// Has `call` call record(known, *inputs) where a record of torch's needs the call, and all arrays are its own.
  void set_record(nb::object record, nb::object known) {
    record_ = std::move(record);
    known_ = std::move(known);
  }

  /// NotImplemented where the call is not one to be run at once, or Python must see to it.
  nb::object call(const nb::tuple& inputs) {
    if (nb::len(inputs) != names_.size()) return nb::borrow(Py_NotImplemented);
    if (const char* const where = door(inputs); *where) {
      return where == kRecorded ? record(inputs) : nb::borrow(Py_NotImplemented);
    }
    return run(inputs);
  }

  /// The same for arrays that are memory and nothing else: nothing is asked of their libraries' records and modes.
  nb::object run(const nb::tuple& inputs) {
    const std::shared_ptr<Plan> plan = plan_of(inputs);
    return plan ? checked(*plan, run_plan(*plan, inputs)) : nb::borrow(Py_NotImplemented);
  }

  /// The same, with a tuple of the arrays' shapes and dtypes, the inputs that are no arrays, and the places of the
  /// results that are no floats. TypeError where `call` has written to an array, as far as its library counts that.
  nb::object run_and_tell(const nb::tuple& inputs) {
    const std::shared_ptr<Plan> plan = plan_of(inputs);
    if (!plan) return nb::borrow(Py_NotImplemented);
    std::vector<int64_t> writes;  // to each array, as far as its library counts them
    if (asks_dtypes_) {           // a Python function may do what a kernel that only reads does not
      for (const int place : arrays_) writes.push_back(write_count(inputs[static_cast<size_t>(place)]));
    }
    nb::object made = checked(*plan, run_plan(*plan, inputs));
    for (size_t k = 0; k < writes.size(); ++k) {
      if (write_count(inputs[static_cast<size_t>(arrays_[k])]) != writes[k]) refuse_written(k);
    }
    const size_t count = names_.size() - arrays_.size();
    nb::object numbers = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
    if (!numbers.is_valid()) nb::raise_python_error();
    for (size_t i = 0, k = 0; i < names_.size(); ++i) {
      if (k < arrays_.size() && static_cast<size_t>(arrays_[k]) == i) {
        ++k;
      } else {
        const nb::handle x = inputs[i];
        PyTuple_SET_ITEM(numbers.ptr(), static_cast<Py_ssize_t>(i - k), x.inc_ref().ptr());
      }
    }
    return nb::make_tuple(std::move(made), plan->told, std::move(numbers), plan->discrete);
  }

 private:
  std::shared_ptr<Plan> plan_of(const nb::tuple& inputs) {
    Facts facts;
    if (!read(inputs, facts)) return nullptr;
    std::shared_ptr<Plan> plan = find(inputs, facts);
    return plan ? plan : make(inputs, facts);
  }

  int64_t write_count(nb::handle x) const { return exchange::route_of(x, label_.c_str(), "").write_count(x); }

  [[noreturn]] void refuse_written(size_t k) const {
    throw TypeError(label_ + ": call has written to " + names_[static_cast<size_t>(arrays_[k])] +
                    "; accepted: a function that only reads its inputs, such as one that writes to a copy");
  }

  nb::object checked(Plan& plan, nb::object made) const {
    return plan.expected.is_none() || is_as_expected(plan, made) ? std::move(made) : check(plan, made);
  }

  nb::object record(const nb::tuple& inputs) const {
    if (!record_.is_valid()) return nb::borrow(Py_NotImplemented);
    for (const int place : arrays_) {
      if (!exchange::route_of(inputs[static_cast<size_t>(place)], label_.c_str(), "").is_torch()) {
        return nb::borrow(Py_NotImplemented);
      }
    }
    const nb::object record = record_, known = known_;  // which may be set again meanwhile
    const size_t count = nb::len(inputs);
    Room<PyObject*> passed(static_cast<int>(count) + 1);
    passed[0] = known.ptr();
    for (size_t i = 0; i < count; ++i) passed[static_cast<int>(i) + 1] = PyTuple_GET_ITEM(inputs.ptr(), i);
    PyObject* const made = PyObject_Vectorcall(record.ptr(), passed.data(), count + 1, nullptr);
    if (!made) nb::raise_python_error();
    return nb::steal(made);
  }

  /// False where an array does not say its shape, or its dtype.
  bool read(const nb::tuple& inputs, Facts& facts) const {
    facts.shapes.reserve(arrays_.size());
    for (const int place : arrays_) {
      const nb::handle x = inputs[static_cast<size_t>(place)];
      nb::object shape = exchange::attribute_or_null(x, kShape);
      if (!shape.is_valid()) return false;
      facts.shapes.push_back(std::move(shape));
      if (!asks_dtypes_) continue;
      nb::object dtype = exchange::attribute_or_null(x, kDtype);
      if (!dtype.is_valid()) return false;
      facts.dtypes.push_back(std::move(dtype));
    }
    if (asks_device_) facts.device = device_of(inputs);
    return true;
  }

  DLDeviceType device_of(const nb::tuple& inputs) const {
    const int count = static_cast<int>(arrays_.size());
    Room<Argument> arguments(count);
    for (int k = 0; k < count; ++k) {
      const auto place = static_cast<size_t>(arrays_[static_cast<size_t>(k)]);
      arguments[k] = {names_[place].c_str(), inputs[place]};
    }
    return exchange::device_of(label_.c_str(), arguments.data(), count).device_type;
  }

  bool fits(const Plan& plan, const nb::tuple& inputs, const Facts& facts) const {
    if (plan.device != facts.device) return false;
    for (size_t i = 0; i < plan.types.size(); ++i) {
      if (!nb::handle(inputs[i]).type().is(plan.types[i])) return false;
    }
    for (size_t k = 0; k < facts.shapes.size(); ++k) {
      if (!equal(facts.shapes[k], plan.shapes[k])) return false;
    }
    for (size_t k = 0; k < facts.dtypes.size(); ++k) {
      if (!facts.dtypes[k].is(plan.dtypes[k])) return false;
    }
    return true;
  }

  std::shared_ptr<Plan> find(const nb::tuple& inputs, const Facts& facts) const {
    const size_t count = plans_.size();
    for (size_t i = 0; i < count && i < plans_.size(); ++i) {
      const std::shared_ptr<Plan> plan = plans_[i];  // a comparison may run Python, and so another call of this
      if (fits(*plan, inputs, facts)) return plan;
    }
    return nullptr;
  }

  std::shared_ptr<Plan> make(const nb::tuple& inputs, const Facts& facts) {
    const nb::object prepared = prepare_(inputs);
    if (prepared.is_none()) return nullptr;
    const auto parts = nb::borrow<nb::tuple>(prepared);
    auto plan = std::make_shared<Plan>();
    for (const nb::handle x : inputs) plan->types.push_back(nb::borrow(x.type()));
    plan->shapes = facts.shapes;
    plan->dtypes = facts.dtypes;
    plan->device = facts.device;
    plan->target = parts[0];
    for (const nb::handle place : nb::borrow<nb::tuple>(parts[1])) plan->places.push_back(nb::cast<int>(place));
    for (const nb::handle value : nb::borrow<nb::tuple>(parts[2])) plan->values.push_back(nb::borrow(value));
    plan->tail = parts[3];
    plan->expected = parts[4];
    plan->discrete = parts[5];
    nb::list told;
    for (size_t k = 0; k < arrays_.size(); ++k) {
      told.append(nb::make_tuple(facts.shapes[k], attribute(inputs[static_cast<size_t>(arrays_[k])], kDtype)));
    }
    plan->told = nb::tuple(told);
    if (plans_.size() < kMostPlans) {
      plans_.push_back(plan);
    } else {
      plans_[next_++ % kMostPlans] = plan;
    }
    return plan;
  }

  static nb::object run_plan(const Plan& plan, const nb::tuple& inputs) {
    const size_t count = plan.places.size();
    const auto argument = [&](size_t i) {
      const int place = plan.places[i];
      return place < 0 ? plan.values[i].ptr() : nb::handle(inputs[static_cast<size_t>(place)]).ptr();
    };
    Room<PyObject*> passed(static_cast<int>(count) + 8);
    nb::object arguments;
    size_t passes = 0;
    if (plan.tail.is_none()) {
      for (; passes < count; ++passes) passed[static_cast<int>(passes)] = argument(passes);
    } else {
      arguments = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
      if (!arguments.is_valid()) nb::raise_python_error();
      for (size_t i = 0; i < count; ++i) {
        PyObject* const x = argument(i);
        Py_INCREF(x);
        PyTuple_SET_ITEM(arguments.ptr(), static_cast<Py_ssize_t>(i), x);
      }
      passed[static_cast<int>(passes++)] = arguments.ptr();
      for (const nb::handle x : nb::borrow<nb::tuple>(plan.tail)) passed[static_cast<int>(passes++)] = x.ptr();
    }
    PyObject* const made = PyObject_Vectorcall(plan.target.ptr(), passed.data(), passes, nullptr);
    if (!made) nb::raise_python_error();
    return nb::steal(made);
  }

  static bool is_as_expected(const Plan& plan, const nb::object& made) {
    if (plan.made.empty()) return false;
    const auto expected = nb::borrow<nb::tuple>(plan.expected);
    const size_t count = nb::len(expected);
    if (count > 1 && !(PyTuple_CheckExact(made.ptr()) && nb::len(made) == count)) return false;
    for (size_t i = 0; i < count; ++i) {
      const nb::object x = count > 1 ? nb::borrow(made[i]) : made;
      const nb::object shape = exchange::attribute_or_null(x, kShape);
      if (!shape.is_valid() || !equal(shape, nb::borrow(expected[i][0]))) return false;
      const nb::object dtype = exchange::attribute_or_null(x, kDtype);
      if (!dtype.is(plan.made[i])) return false;
    }
    return true;
  }

  /// What Python's check makes of the results, which raises for those that are not as the signature says.
  nb::object check(Plan& plan, const nb::object& made) const {
    nb::object checked = check_(made, plan.expected);
    std::vector<nb::object> dtypes;
    const size_t count = nb::len(plan.expected);
    for (size_t i = 0; i < count; ++i) {
      const nb::object x = count > 1 ? nb::borrow(checked[i]) : checked;
      dtypes.push_back(attribute(x, kDtype));
    }
    plan.made = std::move(dtypes);
    return checked;
  }

  const std::string label_;
  const std::vector<std::string> names_;
  const std::vector<int> arrays_;
  const bool asks_dtypes_, asks_device_;
  const nb::object prepare_, check_;
  nb::object record_, known_;
  std::vector<std::shared_ptr<Plan>> plans_;
  size_t next_ = 0;
};

std::string device_of(const char* function, const std::vector<std::string>& names, const nb::tuple& arrays) {
  const int count = static_cast<int>(names.size());
  Room<Argument> arguments(count);
  for (int k = 0; k < count; ++k) {
    const auto place = static_cast<size_t>(k);
    arguments[k] = {names[place].c_str(), arrays[place]};
  }
  const DLDevice found = exchange::device_of(function, arguments.data(), count);
  return found.device_type == kDLCUDA ? "cuda" : device_text(found);
}

}  // namespace

void bind_operators(nb::module_& m) {
  m.def("device_of", &device_of, nb::arg("function"), nb::arg("names"), nb::arg("arrays"),
        nb::sig("def device_of(function: str, names: collections.abc.Sequence[str], arrays: tuple[typing.Any, ...]) -> "
                "str"),
        "\"cpu\" or \"cuda\", where a call of these arrays runs; else the device of the first that is on another.");
  nb::class_<OperatorCalls>(m, "OperatorCalls", "The calls of an operator that are run at once.")
      .def(nb::init<std::string, std::vector<std::string>, std::vector<int>, bool, bool, nb::object, nb::object>(),
           nb::arg("label"), nb::arg("names"), nb::arg("arrays"), nb::arg("asks_dtypes"), nb::arg("asks_device"),
           nb::arg("prepare"), nb::arg("check"),
           nb::sig("def __init__(self, label: str, names: collections.abc.Sequence[str], arrays: "
                   "collections.abc.Sequence[int], asks_dtypes: bool, asks_device: bool, prepare: "
                   "collections.abc.Callable[[tuple[typing.Any, ...]], tuple[typing.Any, ...] | None], check: "
                   "collections.abc.Callable[[typing.Any, tuple[typing.Any, ...]], typing.Any]) -> None"))
      .def("call", &OperatorCalls::call, nb::arg(),
           nb::sig("def call(self, inputs: tuple[typing.Any, ...], /) -> typing.Any"),
           "Run the call; NotImplemented where it is not to be run at once, or cannot be kept.")
      .def("door", &OperatorCalls::door, nb::arg(), nb::sig("def door(self, inputs: tuple[typing.Any, ...], /) -> str"),
           "\"torch\" or \"jax\" where a transform or a mode of theirs needs the call, \"torch_autograd\" where only a "
           "record does, of tensors that are memory, \"unknown\" where an input is of no array type that is known, "
           "else \"\".")
      .def("run", &OperatorCalls::run, nb::arg(),
           nb::sig("def run(self, inputs: tuple[typing.Any, ...], /) -> typing.Any"),
           "The same for arrays that are memory, whatever their libraries note of them.")
      .def_static("is_known", &OperatorCalls::is_known, nb::arg().none(), "Is it of an array type that is known?")
      .def("run_and_tell", &OperatorCalls::run_and_tell, nb::arg(),
           nb::sig("def run_and_tell(self, inputs: tuple[typing.Any, ...], /) -> typing.Any"),
           "What `run` returns, and tuples of the arrays' shapes and dtypes, of the other inputs, and of the places of "
           "the results that have no gradient.")
      .def("record_by", &OperatorCalls::set_record, nb::arg(), nb::arg(),
           nb::sig("def record_by(self, record: collections.abc.Callable[..., typing.Any], known: typing.Any, /) -> "
                   "None"),
           "Have `call` return record(known, *inputs) where a record of torch's needs the call, nothing else "
           "does, and all arrays are its tensors.");
}

}  // namespace interop::bindings
