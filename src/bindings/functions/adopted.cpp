/// `interop.adopt`: functions that launch their kernels themselves, called with any arrays.
#include <interop/call.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/frame.h"
#include "bindings/functions/results.h"
#include "exchange/array/own_table.h"
#include "exchange/array/view.h"
#include "exchange/call.h"
#include "exchange/overlap.h"
#include "exchange/python.h"
#include "exchange/routes/torch_notes.h"

namespace interop {

struct CallInC {
  static const InteropCall& of(const Call& call) { return *call.call_; }
};

}  // namespace interop

namespace interop::bindings {
namespace {

const exchange::Lookup kNumpyGeneric("numpy", "generic");
const exchange::Name kArray("__array__");

/// Is it an array, or one that is refused, as its meaning would be lost, or as it has no values yet?
bool is_array(nb::handle x) {
  if (x.is_none() || PyLong_Check(x.ptr()) || PyFloat_CheckExact(x.ptr())) return false;
  if (exchange::find_route(x)) return true;
  if (PyType_Check(x.ptr()) || nb::isinstance(x, kNumpyGeneric.get())) return false;
  return exchange::attribute_or_null(x, kArray).is_valid();
}

/// A function in Python that queues work on the arrays that it is given.
struct AdoptedFunction {
  using Declared = std::tuple<std::string, bool>;  // a name, and whether it is written to

  std::string label;
  std::vector<Declared> parameters;
  nb::object function;
  bool launches;        // it launches kernels on a GPU, and is told the stream and the options of the call
  nb::object own;       // the type of arrays that it is given as they are; None for none
  bool takes_tensors;   // it is given torch's tensors as they are; one that does not launch, on torch's stream alone
  nb::object unpacked;  // what is called with a result that is neither an array nor None; None where nothing is
};

/// One call of it: what is decided before it, and what comes behind it.
class AdoptedCall {
 public:
  /// `arguments` has one for each parameter but those of `shapes`, the results that are made, by place among the
  /// parameters: see `result_shape`. `given` are the rules of those results that are among `arguments`.
  AdoptedCall(const AdoptedFunction& adopted, const nb::tuple& arguments, const nb::dict& shapes, const nb::dict& given,
              nb::handle stream, bool only_looks)
      : adopted_(adopted),
        count_(static_cast<int>(adopted.parameters.size())),
        values_(count_),
        tensors_(count_),
        arrays_(count_),
        places_(count_) {
    read(arguments, shapes);
    import_arrays(stream, only_looks);
    for (int i = 0; i < count_; ++i) {
      const nb::int_ place(i);
      if (nb::len(given) == 0 || !given.contains(place)) continue;
      if (!tensors_[i]) exchange::refuse_no_array(values_[i], label(), name(i));
      const nb::object its = rule(given, i);
      require_like(its);
      check_given_result(label(), name(i), its, tensors_.data(), *tensors_[i]);
    }
    make_results(shapes);
  }

  nb::object run(nb::handle options) {
    const int gpu = call_->on_host() ? -1 : call_->device();
    nb::object results;  // a list of what outlives the call where a view of it does
    if (made_count_ > 0) results = nb::list();
    std::vector<nb::object> views;
    views.reserve(static_cast<size_t>(count_));
    int next = 0;
    for (int i = 0; i < count_; ++i) {
      const int k = next < array_count_ && places_[next] == i ? next++ : -1;  // of a result that is made
      if (!tensors_[i] || is_own(i)) continue;
      const nb::handle owner = values_[i].is_valid() ? values_[i] : results;
      const bool read_only = k >= 0 && exchange::is_read_only(CallInC::of(*call_), k);
      views.push_back(exchange::view_within_call(*tensors_[i], gpu, read_only, owner));
      values_[i] = views.back();
    }
    std::optional<exchange::WorkingStream> working;
    if (gpu >= 0) working.emplace(gpu, call_->stream());
    nb::object returned;
    try {
      returned = taken(called(options));
    } catch (nb::python_error&) {  // what it has queued by then is work as any other
      finish(working, results);
      throw;
    }
    nb::object made = finish(working, results);
    return made_count_ > 0 ? made : returned;
  }

  nb::object explain() const { return call_->explain(); }

 private:
  const char* label() const { return adopted_.label.c_str(); }
  const char* name(int i) const { return std::get<0>(adopted_.parameters[static_cast<size_t>(i)]).c_str(); }
  /// Is argument `i` given to the function as it is? A tensor that torch has not yet negated, or conjugated, is not:
  /// the call has its values elsewhere.
  bool is_own(int i) const {
    if (!values_[i].is_valid()) return false;
    if (values_[i].type().is(adopted_.own)) return true;
    DLTensor memory;
    return passes_tensors_ && exchange::find_route(values_[i]) == &exchange::torch_route() &&
           exchange::view_memory(values_[i], &memory) && memory.data == tensors_[i]->data;
  }
  /// The array whose shape a result has by its rule; null for a shape. Throws TypeError where that is no array.
  const DLTensor* require_like(nb::handle its) const {
    if (!PyLong_Check(its.ptr())) return nullptr;
    const int like = static_cast<int>(exchange::to_int64(its));
    if (!tensors_[like]) exchange::refuse_no_array(values_[like], label(), name(like));
    return tensors_[like];
  }
  static nb::object rule(const nb::dict& rules, int i) { return nb::borrow(rules[nb::int_(i)]); }

  void read(const nb::tuple& arguments, const nb::dict& shapes) {
    const bool makes = nb::len(shapes) > 0;
    size_t next = 0;
    for (int i = 0; i < count_; ++i) {
      tensors_[i] = nullptr;
      values_[i] = nb::handle();
      if (makes && shapes.contains(nb::int_(i))) continue;
      const nb::handle argument = values_[i] = arguments[next++];
      if (!is_array(argument)) continue;
      const bool is_written = std::get<1>(adopted_.parameters[static_cast<size_t>(i)]);
      arrays_[array_count_] = {name(i), argument, is_written ? Access::update : Access::read};
      places_[array_count_++] = i;
    }
    if (array_count_ > 0) return;
    throw ValueError(adopted_.label + ": there is no array argument; accepted: at least one, whose library and " +
                     "device are the call's");
  }

  void import_arrays(nb::handle stream, bool only_looks) {
    CallOptions options;
    options.stream = stream;
    options.only_looks = only_looks;
    options.may_overlap = true;  // as kernels do: their authors know
    const Call& call = call_.emplace(label(), arrays_.data(), array_count_, options);
    const nb::handle first(arrays_[0].object);
    const bool is_led_by_torch = exchange::find_route(first) == &exchange::torch_route();
    passes_tensors_ = adopted_.takes_tensors && (adopted_.launches || (stream.is_none() && is_led_by_torch));
    for (int k = 0; k < array_count_; ++k) {
      if (adopted_.launches && call.on_host()) {
        throw TypeError(adopted_.label + ": " + name(places_[k]) + " is in host memory; accepted: an array on a " +
                        "CUDA device");
      }
      tensors_[places_[k]] = &call.tensor(k);
    }
  }

  /// A result has the dtype of the array whose shape it has; else that of the first array.
  void make_results(const nb::dict& shapes) {
    if (nb::len(shapes) == 0) return;
    const DLDataType first = tensors_[places_[0]]->dtype;
    for (int i = 0; i < count_; ++i) {
      if (values_[i].is_valid()) continue;
      const nb::object its = rule(shapes, i);
      DLDataType dtype = first;
      if (const DLTensor* const like = require_like(its)) dtype = like->dtype;
      tensors_[i] = &call_->output(result_shape(label(), name(i), its, tensors_.data()), dtype);
      ++made_count_;
    }
  }

  nb::object called(nb::handle options) const {
    Room<PyObject*> all(count_ + 2);
    int count = 0;
    nb::object stream;
    if (adopted_.launches) {
      stream = nb::int_(reinterpret_cast<uintptr_t>(call_->stream()));
      all[count++] = stream.ptr();
      all[count++] = options.ptr();
    }
    for (int i = 0; i < count_; ++i) all[count++] = values_[i].ptr();
    PyObject* const returned =
        PyObject_Vectorcall(adopted_.function.ptr(), all.data(), static_cast<size_t>(count), nullptr);
    if (!returned) nb::raise_python_error();
    return nb::steal(returned);
  }

  /// What the function has returned. A container is unpacked while the call's stream is that of the arrays in it.
  nb::object taken(nb::object returned) const {
    if (made_count_ > 0 || returned.is_none()) return returned;
    const bool is_packed = !adopted_.unpacked.is_none() && !nb::isinstance<exchange::Array>(returned);
    return as_callers(is_packed ? adopted_.unpacked(returned) : returned);
  }
  /// An argument is the caller's own object; what lies in the memory of a read-only one is read-only.
  nb::object as_callers(nb::object returned) const {
    if (PyTuple_CheckExact(returned.ptr())) {
      nb::list parts;
      for (nb::handle part : returned) parts.append(as_callers(nb::borrow(part)));
      return nb::tuple(parts);
    }
    if (!nb::isinstance<exchange::Array>(returned)) return returned;
    auto& array = nb::cast<exchange::Array&>(returned);
    for (int k = 0; k < array_count_; ++k) {
      if (is_same(array, *tensors_[places_[k]])) return nb::borrow(arrays_[k].object);
    }
    for (int k = 0; k < array_count_; ++k) {
      if (!exchange::is_read_only(CallInC::of(*call_), k)) continue;
      if (exchange::share_memory(array.tensor(), *tensors_[places_[k]])) array.read_only = true;
    }
    return returned;
  }
  static bool is_same(const exchange::Array& array, const DLTensor& tensor) {
    const auto& [shape, strides] = std::tie(array.shape, array.strides);
    return array.data && array.data == tensor.data && array.dtype.code == tensor.dtype.code &&
           array.dtype.bits == tensor.dtype.bits && array.dtype.lanes == tensor.dtype.lanes &&
           std::equal(shape.begin(), shape.end(), tensor.shape, tensor.shape + tensor.ndim) &&
           std::equal(strides.begin(), strides.end(), tensor.strides, tensor.strides + tensor.ndim);
  }

  nb::object finish(std::optional<exchange::WorkingStream>& working, nb::handle results) {
    if (working) working->finish();
    nb::object made = call_->hand_over();
    if (made_count_ > 0) nb::borrow<nb::list>(results).append(made);
    return made;
  }

  const AdoptedFunction& adopted_;
  const int count_;
  Room<nb::handle> values_;        // by parameter; invalid for a result that is made
  Room<const DLTensor*> tensors_;  // by parameter; null where it is no array
  Room<Argument> arrays_;
  Room<int> places_;  // of the arrays among the parameters
  int array_count_ = 0, made_count_ = 0;
  bool passes_tensors_ = false;
  std::optional<Call> call_;
};

nb::object call(const AdoptedFunction& adopted, const nb::tuple& arguments, const nb::dict& shapes,
                const nb::dict& given, nb::handle options, nb::handle stream, bool only_looks) {
  AdoptedCall call(adopted, arguments, shapes, given, stream, only_looks);
  return only_looks ? call.explain() : call.run(options);
}

}  // namespace

void bind_adopted(nb::module_& m) {
  nb::class_<AdoptedFunction>(m, "AdoptedFunction", "A function that queues work on the arrays that it is given.")
      .def(
          "__init__",
          [](AdoptedFunction* self, const std::string& label, const std::vector<AdoptedFunction::Declared>& parameters,
             nb::object function, bool launches, nb::object own, bool takes_tensors, nb::object unpacked) {
            new (self) AdoptedFunction{label,          parameters,    std::move(function), launches,
                                       std::move(own), takes_tensors, std::move(unpacked)};
          },
          nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg().none(),
          nb::sig("def __init__(self, label: str, parameters: list[tuple[str, bool]], function: "
                  "typing.Callable[..., typing.Any], launches: bool, own: type | None, takes_tensors: bool, "
                  "unpacked: typing.Callable[[typing.Any], typing.Any] | None, /) -> None"),
          "`parameters`: their names, and which are written to. `function` gets arrays as `interop.Array`, but those "
          "of the type `own` and, if it `takes_tensors`, torch's; where it `launches`, behind the stream and the "
          "options of the call, and on a GPU alone. `unpacked` is called with a result that is neither an array nor "
          "None.")
      .def("call", &call, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg(),
           nb::sig("def call(self, arguments: tuple[typing.Any, ...], shapes: dict[int, int | tuple[int, ...]], "
                   "given: dict[int, int | tuple[int, ...]], options: typing.Any, stream: typing.Any, only_looks: "
                   "bool, /) -> typing.Any"),
           "Call it with an argument for each parameter but the results that are made. Returns these, or what it "
           "returns.");
  m.def(
      "address_of", [](const exchange::Array& array) { return reinterpret_cast<uintptr_t>(array.data); }, nb::arg(),
      nb::sig("def address_of(array: Array, /) -> int"), "Where its first element is, ordered with nothing.");
}

}  // namespace interop::bindings
