/// `interop.kernel`: kernels that users wrote, launched with any arrays.
#include <interop/call.h>
#include <interop/cuda/driver.h>
#include <interop/cuda/kernel.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "bindings/frame.h"
#include "bindings/functions/loaded_kernel.h"
#include "bindings/functions/results.h"
#include "bindings/scalars.h"
#include "exchange/closing.h"
#include "exchange/python.h"
#include "exchange/typestr.h"

namespace interop::bindings {
namespace {

using exchange::Name;

constexpr size_t kMostBytes = 4096;  // of a kernel's parameters, on every device
constexpr int kMostParameters = 128;

// ---- declarations ----

enum class Kind { pointer, view, scalar };

/// (kind, name, dtype, is written to, dimensions): the dtype is "" for void*; the last is that of a view.
using Declared = std::tuple<std::string, std::string, std::string, bool, int>;

struct Parameter {
  Kind kind;
  std::string name;
  DLDataType dtype;
  bool written;
  int ndim;
  size_t offset;  // of its value among those of a launch

  bool is_array() const { return kind != Kind::scalar; }
  size_t bytes() const {
    if (kind == Kind::pointer) return sizeof(void*);
    if (kind == Kind::view) return sizeof(void*) + 2 * sizeof(int64_t) * static_cast<size_t>(ndim);
    return static_cast<size_t>(item_bytes(dtype));
  }
};

/// A text that lives as long as the process, for errors that show themselves late.
const char* kept(const std::string& text) {
  static auto* const all = new std::set<std::string>;
  return all->insert(text).first->c_str();
}

// ---- how it is launched ----

/// The launch options that the caller gave, at construction or in the call; None for those left out.
struct Options {
  nb::handle grid = Py_None, threads = Py_None, block = Py_None, shared = Py_None, cluster = Py_None,
             cooperative = Py_None;
  nb::handle stream = Py_None, execution = Py_None;  // of a call alone
};
const Keyword<Options> kOptions[] = {
    {Name("grid"), &Options::grid},           {Name("block"), &Options::block},
    {Name("threads"), &Options::threads},     {Name("stream"), &Options::stream},
    {Name("execution"), &Options::execution}, {Name("shared"), &Options::shared},
    {Name("cluster"), &Options::cluster},     {Name("cooperative"), &Options::cooperative},
};

/// The launch as far as it is known without the arrays.
struct Plan {
  enum class Extent { unknown, blocks, threads, elements } extent = Extent::unknown;
  unsigned sizes[3] = {1, 1, 1};  // the grid, or threads in all
  int elements_of = -1;           // one thread for each element of this parameter's array
  cuda::Launch launch;
};

/// A kernel, its declaration, and what was compiled of it.
struct Kernel {
  Kernel(const std::string& label_, const std::vector<Declared>& declared, nb::object load_, nb::tuple options);
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  struct Compiled {
    int device;
    cuda::Kernel* kernel;
  };
  const char* label;
  std::vector<Parameter> parameters;
  nb::object load;  // of an architecture's name: a LoadedKernel
  Plan plan;
  std::vector<Compiled> compiled;
};

/// As Python shows it; of a tuple each part, since one may be an integer of too many digits to be shown.
std::string value_text(nb::handle x) {
  if (!PyTuple_CheckExact(x.ptr())) return exchange::shown(x);
  std::string text;
  for (const nb::handle part : nb::borrow<nb::tuple>(x)) text += (text.empty() ? "" : ", ") + value_text(part);
  return "(" + text + (nb::len(x) == 1 ? ",)" : ")");
}

[[noreturn]] void refuse(const Kernel& kernel, const char* option, nb::handle value, const std::string& accepted) {
  throw ValueError(std::string(kernel.label) + ": " + option + " is " + value_text(value) + "; accepted: " + accepted);
}

/// An int of at least `least`, or a ValueError for another one; no such value for what is no int.
std::optional<unsigned> to_size(nb::handle value, int64_t least) {
  if (!PyIndex_Check(value.ptr())) return std::nullopt;
  int overflow = 0;
  const nb::object number = nb::steal(PyNumber_Index(value.ptr()));
  if (!number.is_valid()) nb::raise_python_error();
  const long long wide = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow || wide < least || wide > INT32_MAX) return std::nullopt;
  return static_cast<unsigned>(wide);
}

/// Sizes along x, y, z: an int, or a tuple of up to three.
void to_sizes(const Kernel& kernel, const char* option, nb::handle value, int64_t least, unsigned (&sizes)[3]) {
  std::fill(sizes, sizes + 3, 1u);
  const bool is_tuple = PyTuple_Check(value.ptr());
  const Py_ssize_t count = is_tuple ? PyTuple_GET_SIZE(value.ptr()) : 1;
  bool fits = count >= 1 && count <= 3;
  for (Py_ssize_t i = 0; fits && i < count; ++i) {
    const auto size = to_size(is_tuple ? PyTuple_GET_ITEM(value.ptr(), i) : value.ptr(), least);
    fits = size.has_value();
    if (fits) sizes[i] = *size;
  }
  if (!fits) {
    refuse(kernel, option, value,
           "an int of at least " + std::to_string(least) +
               " (below 2**31), or a tuple of one to three of them, along x, y, z");
  }
}

int place_of_array(const Kernel& kernel, nb::handle name) {
  const std::string text = nb::cast<std::string>(name);
  std::string arrays;
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    const Parameter& parameter = kernel.parameters[i];
    if (!parameter.is_array()) continue;
    if (parameter.name == text) return static_cast<int>(i);
    arrays += (arrays.empty() ? "" : ", ") + parameter.name;
  }
  refuse(kernel, "threads", name, "the name of an array parameter (" + arrays + "), an int, or a tuple");
}

/// `plan`, changed by these options.
void apply(const Kernel& kernel, Plan& plan, const Options& options) {
  cuda::Launch& launch = plan.launch;
  if (!options.grid.is_none() && !options.threads.is_none()) {
    throw ValueError(std::string(kernel.label) + ": grid and threads are given; accepted: one of them");
  }
  if (!options.grid.is_none()) {
    plan.extent = Plan::Extent::blocks;
    to_sizes(kernel, "grid", options.grid, 0, plan.sizes);
  } else if (nb::isinstance<nb::str>(options.threads)) {
    plan.extent = Plan::Extent::elements;
    plan.elements_of = place_of_array(kernel, options.threads);
  } else if (!options.threads.is_none()) {
    plan.extent = Plan::Extent::threads;
    to_sizes(kernel, "threads", options.threads, 0, plan.sizes);
  }
  if (!options.block.is_none()) to_sizes(kernel, "block", options.block, 1, launch.block);
  if (!options.cluster.is_none()) to_sizes(kernel, "cluster", options.cluster, 1, launch.cluster);
  if (!options.shared.is_none()) {
    const auto bytes = to_size(options.shared, 0);
    if (!bytes) refuse(kernel, "shared", options.shared, "an int, the bytes of dynamic shared memory");
    launch.shared_bytes = *bytes;
  }
  if (!options.cooperative.is_none()) {
    if (!PyBool_Check(options.cooperative.ptr())) refuse(kernel, "cooperative", options.cooperative, "True or False");
    launch.cooperative = options.cooperative.ptr() == Py_True;
  }
}

Options options_of(nb::handle tuple) {
  PyObject* const t = tuple.ptr();
  if (!PyTuple_Check(t) || PyTuple_GET_SIZE(t) != 6) throw TypeError("interop.kernel: the launch has six options");
  return {PyTuple_GET_ITEM(t, 0), PyTuple_GET_ITEM(t, 1), PyTuple_GET_ITEM(t, 2),
          PyTuple_GET_ITEM(t, 3), PyTuple_GET_ITEM(t, 4), PyTuple_GET_ITEM(t, 5)};
}

/// The options of a call, by their names; none if there is another name, or an option is a function of the arguments.
std::optional<Options> options_of(const nb::dict& keywords) {
  Options options;
  PyObject *name, *value;
  for (Py_ssize_t at = 0; PyDict_Next(keywords.ptr(), &at, &name, &value);) {
    const Keyword<Options>* const option = find_keyword(kOptions, name);
    if (!option || PyCallable_Check(value)) return std::nullopt;
    options.*option->place = value;
  }
  return options;
}

Kernel::Kernel(const std::string& label_, const std::vector<Declared>& declared, nb::object load_, nb::tuple options)
    : label(kept(label_)), load(std::move(load_)) {
  size_t end = 0;
  for (const auto& [kind, name, dtype, written, ndim] : declared) {
    const Kind known = kind == "pointer" ? Kind::pointer : kind == "view" ? Kind::view : Kind::scalar;
    const auto type = dtype.empty() ? DLDataType{} : exchange::dtype_from_name(dtype);
    if (!type) throw TypeError("interop.kernel: no dtype is called " + dtype);
    Parameter parameter{known, name, *type, written, ndim, end};
    end += (parameter.bytes() + 15) / 16 * 16;
    parameters.push_back(std::move(parameter));
  }
  if (parameters.size() > kMostParameters || end > kMostBytes) {
    throw ValueError(label_ + " has " + std::to_string(parameters.size()) + " parameters of " + std::to_string(end) +
                     " bytes; accepted: up to " + std::to_string(kMostParameters) + ", and " +
                     std::to_string(kMostBytes) + " bytes, each rounded up to 16");
  }
  apply(*this, plan, options_of(options));
}

/// The blocks along one direction for so many threads: whole clusters of them.
unsigned blocks_of(int64_t threads, const cuda::Launch& launch, int direction) {
  const int64_t block = launch.block[direction], cluster = std::max(launch.cluster[direction], 1u);
  const int64_t blocks = (threads + block - 1) / block;
  return static_cast<unsigned>((blocks + cluster - 1) / cluster * cluster);
}

/// The launch of one call.
cuda::Launch launch_of(const Kernel& kernel, const Plan& plan, const DLTensor* const* tensors) {
  cuda::Launch launch = plan.launch;
  switch (plan.extent) {
    case Plan::Extent::unknown:
      throw ValueError(std::string(kernel.label) +
                       ": neither grid nor threads is given; accepted: one of them, here or "
                       "in interop.kernel");
    case Plan::Extent::blocks:
      std::copy(plan.sizes, plan.sizes + 3, launch.grid);
      break;
    case Plan::Extent::threads:
      for (int i = 0; i < 3; ++i) launch.grid[i] = blocks_of(plan.sizes[i], launch, i);
      break;
    case Plan::Extent::elements: {
      const int64_t count = element_count(*tensors[plan.elements_of]);
      const int64_t most = int64_t{INT32_MAX} * launch.block[0];
      if (count > most) {
        throw ValueError(std::string(kernel.label) + ": " +
                         kernel.parameters[static_cast<size_t>(plan.elements_of)].name + " has " +
                         std::to_string(count) + " elements, and threads= gives each a thread; accepted: up to " +
                         std::to_string(most) + ", or grid=");
      }
      for (int i = 0; i < 3; ++i) launch.grid[i] = blocks_of(i == 0 ? count : 1, launch, i);
    }
  }
  return launch;
}

// ---- the call ----

cuda::Kernel* known_compiled(const Kernel& kernel, int device) {
  for (const Kernel::Compiled& compiled : kernel.compiled) {
    if (compiled.device == device) return compiled.kernel;
  }
  return nullptr;
}

cuda::Kernel& find_compiled(Kernel& kernel, int device) {
  if (cuda::Kernel* known = known_compiled(kernel, device)) return *known;
  const nb::object loaded = kernel.load(cuda::architecture_name(device));
  cuda::Kernel* const found = nb::cast<const LoadedKernel&>(loaded).kernel;
  // Python let other threads in, which may have loaded it too.
  if (!known_compiled(kernel, device)) kernel.compiled.push_back({device, found});
  return *found;
}

/// The values of the parameters in one launch, where the driver reads them.
class Values {
 public:
  void put(const Parameter& parameter, const DLTensor& tensor) {
    unsigned char* const at = next(parameter);
    std::memcpy(at, &tensor.data, sizeof tensor.data);
    if (parameter.kind == Kind::pointer) return;
    const size_t bytes = sizeof(int64_t) * static_cast<size_t>(parameter.ndim);
    std::memcpy(at + sizeof tensor.data, tensor.shape, bytes);
    std::memcpy(at + sizeof tensor.data + bytes, tensor.strides, bytes);
  }
  void put(const Parameter& parameter, const ScalarValue& value) {
    std::memcpy(next(parameter), value.bytes, parameter.bytes());
  }
  void** pointers() { return pointers_; }

 private:
  unsigned char* next(const Parameter& parameter) {
    unsigned char* const at = bytes_ + parameter.offset;
    pointers_[count_++] = at;
    return at;
  }

  alignas(16) unsigned char bytes_[kMostBytes];
  void* pointers_[kMostParameters];
  int count_ = 0;
};

/// Is argument `k` of the call what the parameter takes?
void check_array(const char* label, const Parameter& parameter, const Call& call, int k) {
  const bool is_view = parameter.kind == Kind::view;
  require_gpu(label, parameter.name.c_str(), call, k, parameter.dtype);
  call.check(k, {nullptr, parameter.dtype, is_view ? parameter.ndim : -1, kDLCUDA, is_view ? '\0' : 'C',
                 static_cast<uint8_t>(parameter.written)});
}

/// The view of a result that is made: it has as many sizes as its type says, and the kernel reads them all.
void check_dimensions(const Kernel& kernel, const Parameter& parameter, const Shape& shape) {
  if (parameter.kind != Kind::view || shape.ndim == parameter.ndim) return;
  throw ValueError(std::string(kernel.label) + ": the shape of " + parameter.name + " is " + shape_text(shape) +
                   "; accepted: " + std::to_string(parameter.ndim) + " dimensions, as it is a view of so many");
}

std::string sizes_text(const unsigned (&sizes)[3]) {
  return "(" + std::to_string(sizes[0]) + ", " + std::to_string(sizes[1]) + ", " + std::to_string(sizes[2]) + ")";
}

/// What a call of a kernel is: all that is decided before it is launched. `run` does it, `explain` says it.
class Decision {
 public:
  /// `arguments` has one for each parameter but those of `shapes`, the results that are made, by place among the
  /// parameters: see `result_shape`. `given` are the rules of those results that are not made but among `arguments`;
  /// null for none.
  Decision(Kernel& kernel, const nb::tuple& arguments, const nb::dict& shapes, const nb::dict* given,
           const Options& options, bool only_looks)
      : kernel_(kernel),
        count_(static_cast<int>(kernel.parameters.size())),
        tensors_(count_),
        scalars_(count_),
        arrays_(count_),
        places_(count_) {
    read(arguments, shapes);
    import_arrays(options, only_looks);
    if (given && nb::len(*given) > 0) check_given(*given);
    make_results(shapes);
    Plan plan = kernel.plan;
    apply(kernel, plan, options);
    launch_ = launch_of(kernel, plan, tensors_.data());
  }

  nb::object run() {
    cuda::Kernel& compiled = find_compiled(kernel_, call_->device());
    on_own_frame([&] {
      Values values;
      set(values);
      call_->launch([&](cudaStream_t s) {
        cuda::launch_kernel(compiled, launch_, kernel_.label, values.pointers(), call_->device(), s);
      });
    });
    return call_->hand_over();
  }

  nb::object explain() const {
    auto explained = nb::borrow<nb::dict>(call_->explain());
    std::string text = "grid " + sizes_text(launch_.grid) + ", block " + sizes_text(launch_.block);
    if (launch_.cluster[0] != 0) text += ", clusters of " + sizes_text(launch_.cluster);
    if (launch_.shared_bytes != 0) {
      text += ", " + std::to_string(launch_.shared_bytes) + " bytes of dynamic shared memory";
    }
    if (launch_.cooperative) text += ", cooperative";
    explained["algorithm"] = text;
    return explained;
  }

 private:
  const Parameter& parameter(int i) const { return kernel_.parameters[static_cast<size_t>(i)]; }

  void read(const nb::tuple& arguments, const nb::dict& shapes) {
    const bool makes = nb::len(shapes) > 0;
    size_t next = 0;
    for (int i = 0; i < count_; ++i) {
      tensors_[i] = nullptr;
      if (makes && shapes.contains(nb::int_(i))) continue;
      const nb::handle argument = arguments[next++];
      const char* const name = parameter(i).name.c_str();
      if (!parameter(i).is_array()) {
        scalars_[i] = c_argument(kernel_.label, name, argument, parameter(i).dtype);
        continue;
      }
      arrays_[array_count_] = {name, argument, parameter(i).written ? Access::update : Access::read};
      places_[array_count_++] = i;
    }
    if (array_count_ > 0) return;
    throw ValueError(std::string(kernel_.label) +
                     ": all its arrays are to be made, and no array argument says whose; " +
                     "accepted: an array for one of them");
  }

  void import_arrays(const Options& options, bool only_looks) {
    CallOptions call_options;
    call_options.stream = options.stream;
    call_options.execution = options.execution;
    call_options.only_looks = only_looks;
    call_options.may_overlap = true;  // as kernels do: their authors know
    const Call& call = call_.emplace(kernel_.label, arrays_.data(), array_count_, call_options);
    for (int k = 0; k < array_count_; ++k) {
      check_array(kernel_.label, parameter(places_[k]), call, k);
      tensors_[places_[k]] = &call.tensor(k);
    }
  }

  void check_given(const nb::dict& rules) const {
    for (int i = 0; i < count_; ++i) {
      const nb::int_ place(i);
      if (!rules.contains(place)) continue;
      check_given_result(kernel_.label, parameter(i).name.c_str(), rules[place], tensors_.data(), *tensors_[i]);
    }
  }

  void make_results(const nb::dict& shapes) {
    for (int i = 0; i < count_; ++i) {
      if (tensors_[i] || !parameter(i).is_array()) continue;
      const char* const name = parameter(i).name.c_str();
      const Shape shape = result_shape(kernel_.label, name, shapes[nb::int_(i)], tensors_.data());
      check_dimensions(kernel_, parameter(i), shape);
      tensors_[i] = &call_->output(shape, parameter(i).dtype);
    }
  }

  void set(Values& values) const {
    for (int i = 0; i < count_; ++i) {
      if (parameter(i).is_array()) {
        values.put(parameter(i), *tensors_[i]);
      } else {
        values.put(parameter(i), scalars_[i]);
      }
    }
  }

  Kernel& kernel_;
  const int count_;
  Room<const DLTensor*> tensors_;  // by parameter; null where there is none yet
  Room<ScalarValue> scalars_;      // by parameter
  Room<Argument> arrays_;
  Room<int> places_;  // of the arrays among the parameters
  int array_count_ = 0;
  std::optional<Call> call_;
  cuda::Launch launch_;
};

nb::object call_kernel(Kernel& kernel, const nb::tuple& arguments, const nb::dict& shapes, const nb::dict* given,
                       const Options& options, bool only_looks) {
  const exchange::CallGuard guard;
  Decision decision(kernel, arguments, shapes, given, options, only_looks);
  return only_looks ? decision.explain() : decision.run();
}

nb::object call_by_name(Kernel& kernel, const nb::tuple& arguments, const nb::dict& shapes, const nb::dict* given,
                        const Options& options, bool only_looks) {
  return exchange::as_call(kernel.label, !options.execution.is_none(),
                           [&] { return call_kernel(kernel, arguments, shapes, given, options, only_looks); });
}

nb::object call(Kernel& kernel, const nb::tuple& arguments, const nb::dict& shapes, const nb::dict& keywords) {
  const std::optional<Options> options = options_of(keywords);
  if (!options) return nb::borrow(Py_NotImplemented);
  return call_by_name(kernel, arguments, shapes, nullptr, *options, false);
}

nb::object call_with(Kernel& kernel, const nb::tuple& arguments, const nb::dict& shapes, const nb::dict& given,
                     nb::handle launch, nb::handle stream, nb::handle execution, bool only_looks) {
  Options options = launch.is_none() ? Options() : options_of(launch);
  options.stream = stream;
  options.execution = execution;
  return call_by_name(kernel, arguments, shapes, &given, options, only_looks);
}

}  // namespace

void bind_kernel(nb::module_& m) {
  nb::class_<Kernel>(m, "Kernel", "A kernel that a user wrote, its declaration, and what was compiled of it.")
      .def(nb::init<const std::string&, const std::vector<Declared>&, nb::object, nb::tuple>(),
           nb::sig("def __init__(self, label: str, parameters: list[tuple[str, str, str, bool, int]], "
                   "load: typing.Callable[[str], LoadedKernel], options: tuple[typing.Any, ...], /) -> None"))
      .def("call", &call, nb::arg(), nb::arg(), nb::arg(),
           nb::sig("def call(self, arguments: tuple[typing.Any, ...], shapes: dict[int, int | tuple[int, ...]], "
                   "keywords: dict[str, typing.Any], /) -> typing.Any"),
           "Launch it, as call_with, where no result is given and all keywords are those of the launch, the stream and "
           "the execution; NotImplemented for others, and for functions of the arguments.")
      .def("call_with", &call_with, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(),
           nb::arg().none(), nb::arg(),
           nb::sig("def call_with(self, arguments: tuple[typing.Any, ...], shapes: dict[int, int | tuple[int, ...]], "
                   "given: dict[int, int | tuple[int, ...]], options: tuple[typing.Any, ...] | None, stream: "
                   "typing.Any, execution: str | None, "
                   "only_looks: bool, /) -> typing.Any"),
           "Launch it: with an argument for each parameter but the results that are made, and grid, threads, block, "
           "shared, cluster, cooperative where they are not those of the construction.");
}

}  // namespace interop::bindings
