/// `interop.load`: C functions of a shared library, called with any arrays.
#include <cxxabi.h>
#include <interop/call.h>
#include <interop/cuda/driver.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/functions/checked_reads.h"
#include "bindings/functions/registers.h"
#include "bindings/functions/results.h"
#include "bindings/functions/xla_function.h"
#include "bindings/scalars.h"
#include "exchange/closing.h"
#include "exchange/python.h"
#include "exchange/typestr.h"

namespace interop::bindings {
namespace {

// ---- declarations ----

enum class Kind { device, host, scalar, stream };

/// (kind, name, dtype, is written to): the dtype is "" for void*.
using Declared = std::tuple<std::string, std::string, std::string, bool>;

/// (type, value of success, names of values, is CUDA's): of a status that is no `cudaError_t`. A uint64 is as an int64.
using Status = std::tuple<std::string, int64_t, std::map<int64_t, std::string>, bool>;

struct Parameter {
  Kind kind;
  std::string name;
  DLDataType dtype;
  bool written;

  bool is_array() const { return kind == Kind::device || kind == Kind::host; }
};

DLDataType dtype_called(const std::string& name) {
  if (name.empty()) return {};
  const auto known = exchange::dtype_from_name(name);
  if (!known) throw TypeError("interop.load: no dtype is called " + name);
  return *known;
}

/// Where a C function queues its work on the GPU.
enum class Streams {
  given,           ///< on the stream that it is given; or it takes no device pointer
  default_stream,  ///< on the legacy default stream, the per-thread one, or blocking streams of its own
  own              ///< on others of its own; its work is done when it returns
};

/// A C function and its declaration, which interop/_load.py has parsed.
struct CFunction {
  CFunction(std::string function_label, uintptr_t address, const std::vector<Declared>& declared, std::string returned,
            bool has_own_streams, std::vector<int> checked_places, bool works_on_gpu,
            std::optional<Status> returned_status)
      : label(std::move(function_label)),
        symbol(reinterpret_cast<void*>(address)),
        result(std::move(returned)),
        checked(std::move(checked_places)),
        needs_gpu(works_on_gpu),
        status(std::move(returned_status)) {
    if (kIntegerRegisters == 0) {
      throw std::runtime_error("interop.load: C functions are called on Linux, on x86-64 and 64-bit ARM");
    }
    int integers = 0, floats = 0;
    for (const auto& [kind, name, dtype, written] : declared) {
      const Kind known = kind == "device"   ? Kind::device
                         : kind == "host"   ? Kind::host
                         : kind == "stream" ? Kind::stream
                                            : Kind::scalar;
      parameters.push_back({known, name, dtype_called(dtype), written});
      ++(known == Kind::scalar && parameters.back().dtype.code == kDLFloat ? floats : integers);
    }
    const auto has = [&](Kind kind) {
      return std::any_of(parameters.begin(), parameters.end(), [&](const Parameter& p) { return p.kind == kind; });
    };
    if (has(Kind::device) && !has(Kind::stream)) streams = has_own_streams ? Streams::own : Streams::default_stream;
    const int on_stack = std::max(0, integers - kIntegerRegisters) + std::max(0, floats - kFloatRegisters);
    if (on_stack > kStackWords) {
      throw ValueError(label + " has " + std::to_string(declared.size()) + " parameters; accepted: up to " +
                       std::to_string(kIntegerRegisters + kStackWords) + ", and 8 more of float or double");
    }
  }

  std::string label;
  void* symbol;
  std::string result;  // "", "status" (a cudaError_t), or the dtype of a scalar
  std::vector<Parameter> parameters;
  std::vector<int> checked;      // places of the parameters that `reads=` names, where INTEROP_CHECKED=1
  bool needs_gpu;                // it may end the process without one
  std::optional<Status> status;  // of an integer `result`
  Streams streams = Streams::given;
};

Word word_of(const CFunction& function, const Parameter& parameter, nb::handle value) {
  const ScalarValue scalar = c_argument(function.label.c_str(), parameter.name.c_str(), value, parameter.dtype);
  Word word = 0;
  std::memcpy(&word, scalar.bytes, sizeof word);
  return word;
}

// ---- the call ----

/// One call of the exchange, and where its arrays are among the parameters. Device and host pointers take two calls, as
/// the arrays of one call are all on a device, or all on the host.
struct Side {
  Kind kind;
  std::vector<Argument> arguments;
  std::vector<int> places;
  std::optional<Call> call;
};

void check_pointers(const CFunction& function, const Side& side) {
  for (size_t k = 0; k < side.places.size(); ++k) {
    const Parameter& parameter = function.parameters[static_cast<size_t>(side.places[k])];
    const bool for_gpu = side.kind == Kind::device;
    const int i = static_cast<int>(k);
    if (for_gpu) require_gpu(function.label.c_str(), parameter.name.c_str(), *side.call, i, parameter.dtype);
    side.call->check(
        i, {nullptr, parameter.dtype, -1, for_gpu ? kDLCUDA : kDLCPU, 'C', static_cast<uint8_t>(parameter.written)});
  }
}

// ---- streams that the function chooses itself ----

void refuse_capture(const CFunction& function, cudaStream_t stream) {
  if (function.streams == Streams::given || !cuda::is_capturing(stream)) return;
  throw ValueError(function.label + ": the call's stream is being captured into a CUDA graph, and the C function " +
                   (function.streams == Streams::own ? "has streams of its own" : "launches on the default stream") +
                   ", which cannot be captured; accepted: a call outside the capture, or a C function with a " +
                   "parameter of type cudaStream_t");
}

/// Runs the function behind all that is queued on the call's stream, which then waits for what the function has queued.
/// What is queued on the legacy stream waits for all blocking streams of the context, the per-thread one included, and
/// they for it. Without the GIL.
template <class Run>
void run_in_order(const CFunction& function, cudaStream_t stream, Run&& run) {
  if (function.streams == Streams::own) cuda::synchronize(stream);
  const bool joins = function.streams == Streams::default_stream && stream != cuda::kLegacyStream;
  if (joins) cuda::wait_stream(cuda::kLegacyStream, stream);
  run();
  if (joins) cuda::wait_stream(stream, cuda::kLegacyStream);
}

/// The same in words.
void explain_order(const CFunction& function, const Call& call, nb::dict& explained) {
  nb::list waits = nb::borrow<nb::list>(explained["waits"]);
  if (function.streams == Streams::own) {
    waits.append("the host waits for the call's stream, as the C function has streams of its own");
  } else if (function.streams == Streams::default_stream && call.stream() != cuda::kLegacyStream) {
    waits.append(
        "the legacy default stream, where the C function works, waits for the call's, which then waits for it");
  }
}

/// What a C function returns: the bits of an integer, or a number.
struct Returned {
  Word integer = 0;
  double number = 0;
};

Returned call_symbol(const CFunction& function, const Registers& registers) {
  Returned returned;
  if (function.result.empty()) {
    registers.call<void>(function.symbol);
  } else if (function.result == "float32") {
    returned.number = registers.call<float>(function.symbol);
  } else if (function.result == "float64") {
    returned.number = registers.call<double>(function.symbol);
  } else {
    returned.integer = registers.call<Word>(function.symbol);
  }
  return returned;
}

/// An integer in 64 bits: in the register, its high bits are anything.
Word extended(DLDataType dtype, Word word) {
  const int unused = 64 - dtype.bits;
  if (dtype.code == kDLInt) return static_cast<Word>(static_cast<int64_t>(word << unused) >> unused);
  return word << unused >> unused;
}

nb::object to_python(const CFunction& function, const Returned& returned) {
  if (function.result.empty() || function.result == "status" || function.status) return nb::none();
  const DLDataType dtype = dtype_called(function.result);
  if (dtype.code == kDLFloat) return nb::float_(returned.number);
  if (dtype.code == kDLBool) return nb::bool_((returned.integer & 0xff) != 0);
  const Word integer = extended(dtype, returned.integer);
  return dtype.code == kDLInt ? nb::int_(static_cast<int64_t>(integer)) : nb::int_(integer);
}

void check_status(const CFunction& function, const Returned& returned) {
  const int status = static_cast<int>(returned.integer);
  if (function.result == "status" && status != 0) cuda::throw_status(status, function.label.c_str());
  if (!function.status) return;
  const auto& [type, success, names, is_of_cuda] = *function.status;
  const DLDataType dtype = dtype_called(function.result);
  const auto value = static_cast<int64_t>(extended(dtype, returned.integer));
  if (value == success) return;
  const auto shown = [&](int64_t x) {
    return dtype.code == kDLInt ? std::to_string(x) : std::to_string(static_cast<uint64_t>(x));
  };
  const auto name = names.find(value);
  const std::string what = function.label + " returned " + shown(value) +
                           (name == names.end() ? "" : " (" + name->second + ")") + ", a " + type +
                           ", of which success is " + shown(success);
  if (is_of_cuda) throw CudaError(what);
  throw std::runtime_error(what);
}

/// The results that the calls have made, in the order of the parameters.
nb::list hand_over(const CFunction& function, Side (&sides)[2], const nb::dict& shapes) {
  nb::list of_side[2];
  for (int k = 0; k < 2; ++k) {
    if (!sides[k].call) continue;
    const nb::object made = sides[k].call->hand_over();
    if (nb::isinstance<nb::tuple>(made)) {
      of_side[k].extend(made);
    } else {
      of_side[k].append(made);
    }
  }
  nb::list all;
  size_t next[2] = {0, 0};
  for (int i = 0; i < static_cast<int>(function.parameters.size()); ++i) {
    const int k = function.parameters[static_cast<size_t>(i)].kind == Kind::host;
    if (shapes.contains(nb::int_(i))) all.append(of_side[k][next[k]++]);
  }
  return all;
}

/// What a call of a C function is: all that is decided before the function runs. `run` does it, `explain` says it.
class Decision {
 public:
  /// `arguments` has one for each parameter but the stream and those of `shapes`, the results that are made, by place
  /// among the parameters: see `result_shape`. `given_results` are the rules of those results that are not made but
  /// among `arguments`.
  Decision(const CFunction& function, nb::tuple arguments, nb::dict shapes, nb::dict given_results, nb::handle stream,
           nb::handle execution, bool only_looks)
      : function_(function), shapes_(shapes), tensors_(function.parameters.size()) {
    read(arguments);
    import_arrays(stream, execution, only_looks);
    if (nb::len(given_results) > 0) check_given(given_results);
    if (!device().call && !(stream.is_none() && execution.is_none())) {
      throw ValueError(function.label + ": stream or execution is given, but the function takes no device pointer; " +
                       "accepted: None");
    }
    for (size_t i = 0; i < given_.size(); ++i) set_register(i);
    if (function.checked.empty()) return;
    checked_.emplace(function.label.c_str(), device().call ? &*device().call : nullptr)
        .add(function.parameters, function.checked, tensors_.data());
  }

  nb::object run() {
    Returned returned;
    std::optional<cuda::DeviceGuard> guard;
    const auto run = [&] {
      std::optional<exchange::Unwaited> may_take_long;
      if (!device().call) may_take_long.emplace();  // else it is inside CUDA
      returned = call_symbol(function_, registers_);
      if (device().call) guard.emplace(device().call->device());  // it may have made another device current
    };
    if (checked_) checked_->copy();
    {
      const nb::gil_scoped_release no_gil;
      if (device().call) {
        run_in_order(function_, device().call->stream(), run);
      } else {
        run();
      }
    }
    const nb::list made = hand_over(function_, sides_, shapes_);
    check_status(function_, returned);  // whatever has been queued is in order by now
    if (checked_) checked_->compare();
    if (nb::len(shapes_) == 0) return to_python(function_, returned);
    return nb::len(made) == 1 ? nb::object(made[0]) : nb::tuple(made);
  }

  /// None for a function that takes no arrays.
  nb::object explain() {
    const std::optional<Call>& call = sides_[device().call ? 0 : 1].call;
    if (!call) return nb::none();
    auto explained = nb::borrow<nb::dict>(call->explain());
    if (device().call) explain_order(function_, *call, explained);
    if (checked_) checked_->explain(explained);
    return explained;
  }

 private:
  Side& device() { return sides_[0]; }
  Side& side_of(const Parameter& parameter) { return sides_[parameter.kind == Kind::host]; }

  void read(nb::tuple arguments) {
    int next = 0;
    for (int i = 0; i < static_cast<int>(function_.parameters.size()); ++i) {
      const Parameter& parameter = function_.parameters[static_cast<size_t>(i)];
      const bool is_made = shapes_.contains(nb::int_(i));
      given_.push_back(parameter.kind == Kind::stream || is_made ? nb::handle() : nb::handle(arguments[next++]));
      if (!parameter.is_array() || is_made) continue;
      Side& side = side_of(parameter);
      side.arguments.emplace_back(parameter.name.c_str(), given_.back(),
                                  parameter.written ? Access::update : Access::read);
      side.places.push_back(i);
    }
  }

  void import_arrays(nb::handle stream, nb::handle execution, bool only_looks) {
    for (Side& side : sides_) {
      if (side.arguments.empty()) continue;
      CallOptions options;
      options.only_looks = only_looks;
      options.may_overlap = true;  // as C functions do: their authors know
      if (side.kind == Kind::device) {
        options.stream = stream;
        options.execution = execution;
      }
      const int count = static_cast<int>(side.arguments.size());
      side.call.emplace(function_.label.c_str(), side.arguments.data(), count, options);
      check_pointers(function_, side);
      if (side.kind == Kind::device) refuse_capture(function_, side.call->stream());
      for (size_t k = 0; k < side.places.size(); ++k) {
        tensors_[static_cast<size_t>(side.places[k])] = &side.call->tensor(static_cast<int>(k));
      }
    }
  }

  void check_given(nb::dict rules) const {
    for (size_t i = 0; i < given_.size(); ++i) {
      const nb::int_ place(i);
      if (!rules.contains(place)) continue;
      const char* const name = function_.parameters[i].name.c_str();
      check_given_result(function_.label.c_str(), name, rules[place], tensors_.data(), *tensors_[i]);
    }
  }

  /// Makes the array of parameter `i`, if it is a result, and passes it to the function, as any other argument.
  void set_register(size_t i) {
    const Parameter& parameter = function_.parameters[i];
    if (parameter.is_array()) {
      if (!tensors_[i]) tensors_[i] = &make(parameter, i);
      registers_.add_integer(reinterpret_cast<Word>(tensors_[i]->data));
    } else if (parameter.kind == Kind::stream) {
      registers_.add_integer(reinterpret_cast<Word>(device().call->stream()));
    } else if (parameter.dtype.code == kDLFloat) {
      registers_.add_float(word_of(function_, parameter, given_[i]));
    } else {
      registers_.add_integer(word_of(function_, parameter, given_[i]));
    }
  }

  const DLTensor& make(const Parameter& parameter, size_t i) {
    std::optional<Call>& call = side_of(parameter).call;
    if (!call) {
      throw ValueError(function_.label + ": " + parameter.name + " is to be made, and no array argument says whose; " +
                       "accepted: an array for it");
    }
    const nb::object rule = shapes_[nb::int_(i)];
    const Shape shape = result_shape(function_.label.c_str(), parameter.name.c_str(), rule, tensors_.data());
    return call->output(shape, parameter.dtype);
  }

  const CFunction& function_;
  const nb::dict shapes_;
  Side sides_[2] = {{Kind::device, {}, {}, {}}, {Kind::host, {}, {}, {}}};
  std::vector<nb::handle> given_;         // by parameter
  std::vector<const DLTensor*> tensors_;  // by parameter; null where there is none yet
  Registers registers_;
  std::optional<CheckedReads> checked_;
};

nb::object call_c(const CFunction& function, nb::tuple arguments, nb::dict shapes, nb::dict given_results,
                  nb::handle stream, nb::handle execution, bool only_looks) {
  const exchange::CallGuard guard;
  if (function.needs_gpu) cuda::require_driver();  // which looks once
  Decision decision(function, arguments, shapes, given_results, stream, execution, only_looks);
  return only_looks ? decision.explain() : decision.run();
}

nb::object call_by_name(const CFunction& function, nb::tuple arguments, nb::dict shapes, nb::dict given_results,
                        nb::handle stream, nb::handle execution, bool only_looks) {
  return exchange::as_call(function.label.c_str(), !execution.is_none(), [&] {
    return call_c(function, arguments, shapes, given_results, stream, execution, only_looks);
  });
}

// ---- calls by XLA ----

/// A C function without Python. Its library stays loaded.
class CFunctionOfXla final : public XlaFunction {
 public:
  explicit CFunctionOfXla(const CFunction& function) : XlaFunction(function.label, false), function_(function) {
    for (const Parameter& p : function.parameters) {
      const auto kind = p.is_array()             ? XlaParameter::Kind::array
                        : p.kind == Kind::stream ? XlaParameter::Kind::stream
                                                 : XlaParameter::Kind::number;
      parameters.push_back({kind, p.name, p.dtype, p.written, -1});
      on_gpu_ = on_gpu_ || p.kind == Kind::device;
    }
  }

  void run(const XlaCall& call) const override {
    if (function_.needs_gpu) cuda::require_driver();
    const Registers registers = registers_of(call);
    Returned returned;
    if (on_gpu_) {
      refuse_capture(function_, call.stream);
      std::optional<cuda::DeviceGuard> guard;
      run_in_order(function_, call.stream, [&] {
        returned = call_symbol(function_, registers);
        guard.emplace(call.device);  // it may have made another device current
      });
    } else {
      returned = call_symbol(function_, registers);
    }
    check_status(function_, returned);
  }

 private:
  Registers registers_of(const XlaCall& call) const {
    Registers registers;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].kind == XlaParameter::Kind::array) {
        registers.add_integer(reinterpret_cast<Word>(call.tensors[i]->data));
      } else if (parameters[i].kind == XlaParameter::Kind::stream) {
        registers.add_integer(reinterpret_cast<Word>(call.stream));
      } else {
        Word word = 0;
        std::memcpy(&word, call.numbers[i].bytes, sizeof word);
        parameters[i].dtype.code == kDLFloat ? registers.add_float(word) : registers.add_integer(word);
      }
    }
    return registers;
  }

  const CFunction function_;
  bool on_gpu_ = false;
};

/// What each symbol is the name of in C++; None for a symbol that is none of C++.
nb::list demangled(const std::vector<std::string>& symbols) {
  nb::list names;
  for (const std::string& symbol : symbols) {
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> name(
        abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), &std::free);
    if (!name) {
      names.append(nb::none());
      continue;
    }
    PyObject* const text =
        PyUnicode_DecodeUTF8(name.get(), static_cast<Py_ssize_t>(std::strlen(name.get())), "replace");
    if (!text) nb::raise_python_error();
    names.append(nb::steal(text));
  }
  return names;
}

}  // namespace

void bind_load(nb::module_& m) {
  nb::class_<CFunction>(m, "CFunction", "A C function and its declaration.")
      .def(nb::init<std::string, uintptr_t, std::vector<Declared>, std::string, bool, std::vector<int>, bool,
                    std::optional<Status>>(),
           nb::arg("label"), nb::arg("address"), nb::arg("parameters"), nb::arg("result"), nb::arg("has_own_streams"),
           nb::arg("checked"), nb::arg("needs_gpu"), nb::arg("status").none())
      .def("call", &call_by_name, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg(),
           nb::sig("def call(self, arguments: tuple[typing.Any, ...], shapes: dict[int, int | tuple[int, ...]], "
                   "given: dict[int, int | tuple[int, ...]], stream: typing.Any, execution: str | None, only_looks: "
                   "bool, /) -> typing.Any"),
           "Call it: with an argument for each parameter but the stream and the results that are made.")
      .def(
          "keep_for_xla",
          [](const CFunction& f, const std::string& key) { keep_for_xla(key, std::make_unique<CFunctionOfXla>(f)); },
          nb::arg(), nb::sig("def keep_for_xla(self, key: str, /) -> None"),
          "Keep it as long as the process runs: XLA's programs call it by this key.")
      .def_static("demangled", &demangled, nb::arg(),
                  nb::sig("def demangled(symbols: collections.abc.Sequence[str], /) -> list[str | None]"),
                  "What each symbol is the name of in C++; None for a symbol that is none of C++.");
}

}  // namespace interop::bindings
