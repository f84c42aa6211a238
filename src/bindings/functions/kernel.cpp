/// `interop.kernel`: kernels that users wrote, launched with any arrays.
#include <interop/c_api.h>
#include <interop/call.h>
#include <interop/cuda/driver.h>
#include <interop/cuda/kernel.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/frame.h"
#include "bindings/functions/checked_indexes.h"
#include "bindings/functions/checked_reads.h"
#include "bindings/functions/kernel_declaration.h"
#include "bindings/functions/kernel_launch.h"
#include "bindings/functions/loaded_kernel.h"
#include "bindings/functions/results.h"
#include "bindings/functions/xla_function.h"
#include "bindings/scalars.h"
#include "exchange/closing.h"
#include "exchange/python.h"

namespace interop::bindings {
namespace {

using Kind = KernelParameter::Kind;

/// A kernel, its declaration, and what was compiled of it.
struct Kernel : KernelDeclaration {
  Kernel(const std::string& label_, const std::vector<KernelParameter::Declared>& declared, nb::object load_,
         nb::tuple options, std::vector<int> checked_, bool checks_indexes)
      : KernelDeclaration(label_, declared, checks_indexes), load(std::move(load_)), checked(std::move(checked_)) {
    apply(*this, plan, options_of(options));
  }
  /// A function of a compiled module, which launches what it launches by itself.
  Kernel(const std::string& label_, const std::vector<KernelParameter::Declared>& declared, uintptr_t address,
         std::vector<int> checked_)
      : KernelDeclaration(label_, declared, false),
        checked(std::move(checked_)),
        function(reinterpret_cast<InteropFunction>(address)) {}
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  struct Compiled {
    int device;
    cuda::Kernel* kernel;
  };
  nb::object load;           // of an architecture's name: a LoadedKernel
  std::vector<int> checked;  // places of the parameters that `reads=` names, where INTEROP_CHECKED=1
  LaunchPlan plan;
  std::vector<Compiled> compiled;
  InteropFunction function = nullptr;  // of a compiled module
};

// ---- the call ----

cuda::Kernel* known_compiled(const Kernel& kernel, int device) {
  for (const Kernel::Compiled& compiled : kernel.compiled) {
    if (compiled.device == device) return compiled.kernel;
  }
  return nullptr;
}

/// Throws ValueError unless the parameters are those that the kernel was compiled with, as far as the driver says. The
/// driver may compile PTX here. Without the GIL.
void check_compiled(const KernelDeclaration& kernel, cuda::Kernel& compiled) {
  const auto bytes = cuda::parameter_bytes(compiled);
  if (!bytes) return;
  const std::string accepted = "; accepted: signature= with the parameters of the kernel itself";
  if (bytes->size() != kernel.parameters.size()) {
    throw ValueError(std::string(kernel.label) + ": " + std::to_string(kernel.parameters.size()) +
                     " parameters are declared, and the compiled kernel has " + std::to_string(bytes->size()) +
                     accepted);
  }
  for (size_t i = 0; i < bytes->size(); ++i) {
    const KernelParameter& parameter = kernel.parameters[i];
    if (parameter.bytes() == (*bytes)[i]) continue;
    throw ValueError(std::string(kernel.label) + ": " + parameter.name + " is declared with " +
                     std::to_string(parameter.bytes()) + " bytes, and is " + std::to_string((*bytes)[i]) +
                     " bytes in the compiled kernel" + accepted);
  }
}

cuda::Kernel& find_compiled(Kernel& kernel, int device) {
  if (cuda::Kernel* known = known_compiled(kernel, device)) return *known;
  const nb::object loaded = kernel.load(cuda::architecture_name(device));
  cuda::Kernel* const found = nb::cast<const LoadedKernel&>(loaded).kernel;
  {
    const nb::gil_scoped_release no_gil;
    check_compiled(kernel, *found);  // on the device of the call, which is current
  }
  // Python let other threads in, which may have loaded it too.
  if (!known_compiled(kernel, device)) kernel.compiled.push_back({device, found});
  return *found;
}

/// The values of the parameters in one launch, where the driver reads them.
class Values {
 public:
  /// `fault` is where a view that is checked notes a fault; null: it checks nothing.
  void put(const KernelParameter& parameter, const DLTensor& tensor, IndexFault* fault) {
    const int place = count_;
    unsigned char* const at = next(parameter);
    std::memcpy(at, &tensor.data, sizeof tensor.data);
    if (parameter.kind == Kind::pointer) return;
    const size_t bytes = sizeof(int64_t) * static_cast<size_t>(parameter.ndim);
    std::memcpy(at + sizeof tensor.data, tensor.shape, bytes);
    std::memcpy(at + sizeof tensor.data + bytes, tensor.strides, bytes);
    if (!parameter.checked) return;
    std::memcpy(at + sizeof tensor.data + 2 * bytes, &fault, sizeof fault);
    std::memcpy(at + sizeof tensor.data + 2 * bytes + sizeof fault, &place, sizeof place);
  }
  void put(const KernelParameter& parameter, const ScalarValue& value) {
    std::memcpy(next(parameter), value.bytes, parameter.bytes());
  }
  void** pointers() { return pointers_; }

 private:
  unsigned char* next(const KernelParameter& parameter) {
    unsigned char* const at = bytes_ + parameter.offset;
    pointers_[count_++] = at;
    return at;
  }

  alignas(16) unsigned char bytes_[kMostParameterBytes];
  void* pointers_[kMostParameters];
  int count_ = 0;
};

/// Is argument `k` of the call what the parameter takes?
void check_array(const Kernel& kernel, const KernelParameter& parameter, const Call& call, int k) {
  const bool is_view = parameter.kind == Kind::view;
  if (!kernel.function) require_gpu(kernel.label, parameter.name.c_str(), call, k, parameter.dtype);
  const int device = kernel.function ? 0 : kDLCUDA;
  call.check(k, {nullptr, parameter.dtype, is_view ? parameter.ndim : -1, device, is_view ? '\0' : 'C',
                 static_cast<uint8_t>(parameter.written)});
}

/// The view of a result that is made: it has as many sizes as its type says, and the kernel reads them all.
void check_dimensions(const Kernel& kernel, const KernelParameter& parameter, const Shape& shape) {
  if (parameter.kind != Kind::view || shape.ndim == parameter.ndim) return;
  throw ValueError(std::string(kernel.label) + ": the shape of " + parameter.name + " is " + shape_text(shape) +
                   "; accepted: " + std::to_string(parameter.ndim) + " dimensions, as it is a view of so many");
}

/// Runs a function of a compiled module, and throws what it reports.
void run_module_function(InteropFunction function, const char* label, const XlaCall& call, int count) {
  Room<const void*> numbers(count);
  for (int i = 0; i < count; ++i) numbers.data()[i] = call.tensors[i] ? nullptr : call.numbers[i].bytes;
  const InteropRun run{call.tensors, numbers.data(), call.stream, call.device};
  char message[1024] = "";
  const int32_t status = function(&run, message, sizeof message);
  if (status == 0) return;
  const std::string what =
      std::strncmp(message, label, std::strlen(label)) == 0 ? message : std::string(label) + ": " + message;
  switch (status - 1) {
    case INTEROP_TYPE_ERROR:
      throw TypeError(what);
    case INTEROP_BUFFER_ERROR:
      throw BufferError(what);
    case INTEROP_CUDA_ERROR:
      throw CudaError(what);
    default:
      throw ValueError(what);
  }
}

/// What a call of a kernel is: all that is decided before it is launched. `run` does it, `explain` says it.
class Decision {
 public:
  /// `arguments` has one for each parameter but those of `shapes`, the results that are made, by place among the
  /// parameters: see `result_shape`. `given` are the rules of those results that are not made but among `arguments`;
  /// null for none.
  Decision(Kernel& kernel, const nb::tuple& arguments, const nb::dict& shapes, const nb::dict* given,
           const LaunchOptions& options, bool only_looks)
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
    if (!kernel.function) {
      LaunchPlan plan = kernel.plan;
      apply(kernel, plan, options);
      launch_ = launch_of(kernel, plan, tensors_.data());
    }
    if (kernel.has_checked_views) indexes_.emplace(kernel, *call_);
    if (kernel.checked.empty()) return;
    checked_.emplace(kernel.label, call_->on_host() ? nullptr : &*call_)
        .add(kernel.parameters, kernel.checked, tensors_.data());
  }

  nb::object run() {
    cuda::Kernel* const compiled = kernel_.function ? nullptr : &find_compiled(kernel_, call_->device());
    if (checked_) checked_->copy();
    IndexFault* const fault = indexes_ ? indexes_->prepare() : nullptr;
    on_own_frame([&] {
      if (kernel_.function) return run_function();
      Values values;
      set(values, fault);
      call_->launch([&](cudaStream_t s) {
        cuda::launch_kernel(*compiled, launch_, kernel_.label, values.pointers(), call_->device(), s);
      });
    });
    if (indexes_) indexes_->read();
    nb::object made = call_->hand_over();
    if (indexes_) indexes_->check();
    if (checked_) checked_->compare();
    return made;
  }

  nb::object explain() const {
    auto explained = nb::borrow<nb::dict>(call_->explain());
    if (!kernel_.function) explained["algorithm"] = launch_text(launch_);
    if (indexes_) indexes_->explain(explained);
    if (checked_) checked_->explain(explained);
    return explained;
  }

 private:
  const KernelParameter& parameter(int i) const { return kernel_.parameters[static_cast<size_t>(i)]; }

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

  void import_arrays(const LaunchOptions& options, bool only_looks) {
    CallOptions call_options;
    call_options.stream = options.stream;
    call_options.execution = options.execution;
    call_options.only_looks = only_looks;
    call_options.may_overlap = true;  // as kernels do: their authors know
    const Call& call = call_.emplace(kernel_.label, arrays_.data(), array_count_, call_options);
    for (int k = 0; k < array_count_; ++k) {
      check_array(kernel_, parameter(places_[k]), call, k);
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

  void run_function() {
    call_->launch([&](cudaStream_t s) {
      run_module_function(kernel_.function, kernel_.label,
                          {tensors_.data(), scalars_.data(), nullptr, call_->device(), s}, count_);
    });
  }

  void set(Values& values, IndexFault* fault) const {
    for (int i = 0; i < count_; ++i) {
      if (parameter(i).is_array()) {
        values.put(parameter(i), *tensors_[i], fault);
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
  std::optional<CheckedIndexes> indexes_;
  std::optional<CheckedReads> checked_;
};

nb::object call_kernel(Kernel& kernel, const nb::tuple& arguments, const nb::dict& shapes, const nb::dict* given,
                       const LaunchOptions& options, bool only_looks) {
  const exchange::CallGuard guard;
  Decision decision(kernel, arguments, shapes, given, options, only_looks);
  return only_looks ? decision.explain() : decision.run();
}

nb::object call_by_name(Kernel& kernel, const nb::tuple& arguments, const nb::dict& shapes, const nb::dict* given,
                        const LaunchOptions& options, bool only_looks) {
  return exchange::as_call(kernel.label, !options.execution.is_none(),
                           [&] { return call_kernel(kernel, arguments, shapes, given, options, only_looks); });
}

nb::object call(Kernel& kernel, const nb::tuple& arguments, const nb::dict& shapes, const nb::dict& keywords) {
  const std::optional<LaunchOptions> options = options_of(keywords);
  if (!options) return nb::borrow(Py_NotImplemented);
  return call_by_name(kernel, arguments, shapes, nullptr, *options, false);
}

nb::object call_with(Kernel& kernel, const nb::tuple& arguments, const nb::dict& shapes, const nb::dict& given,
                     nb::handle launch, nb::handle stream, nb::handle execution, bool only_looks) {
  LaunchOptions options = launch.is_none() ? LaunchOptions() : options_of(launch);
  options.stream = stream;
  options.execution = execution;
  return call_by_name(kernel, arguments, shapes, &given, options, only_looks);
}

// ---- calls by XLA ----

std::vector<XlaParameter> xla_parameters(const KernelDeclaration& kernel) {
  std::vector<XlaParameter> all;
  for (const KernelParameter& p : kernel.parameters) {
    all.push_back({p.is_array() ? XlaParameter::Kind::array : XlaParameter::Kind::number, p.name, p.dtype, p.written,
                   p.kind == Kind::view ? p.ndim : -1});
  }
  return all;
}

class ModuleFunctionOfXla final : public XlaFunction {
 public:
  explicit ModuleFunctionOfXla(const Kernel& kernel)
      : XlaFunction(kernel.label, false), label_(kernel.label), function_(kernel.function) {
    parameters = xla_parameters(kernel);
  }

  void run(const XlaCall& call) const override {
    run_module_function(function_, label_, call, static_cast<int>(parameters.size()));
  }

 private:
  const char* label_;
  InteropFunction function_;
};

/// A kernel without Python but for its compiling.
class KernelOfXla final : public XlaFunction {
 public:
  explicit KernelOfXla(const Kernel& kernel)
      : XlaFunction(kernel.label, true), declaration_(kernel), load_(kernel.load) {
    parameters = xla_parameters(kernel);
  }

  void prepare() override {
    for (int device = 0; device < cuda::device_count(); ++device) {
      const std::string architecture = cuda::architecture_name(device);
      if (loaded(device, architecture)) continue;
      cuda::Kernel* made = load(architecture);
      const bool is_of_one_context = cuda::is_of_one_context(*made);
      if (is_of_one_context) {  // of the device that was current
        const cuda::DeviceGuard guard(device);
        made = load(architecture);
      }
      const std::lock_guard lock(mutex_);
      if (is_of_one_context) {
        of_one_device_[device] = made;
      } else {
        by_architecture_[architecture] = made;
      }
    }
  }

  void run(const XlaCall& call) const override {
    cuda::Kernel& compiled = on(call.device);
    Values values;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (call.tensors[i]) {
        values.put(declaration_.parameters[i], *call.tensors[i], nullptr);
      } else {
        values.put(declaration_.parameters[i], call.numbers[i]);
      }
    }
    cuda::launch_kernel(compiled, *call.launch, declaration_.label, values.pointers(), call.device, call.stream);
  }

 private:
  cuda::Kernel* load(const std::string& architecture) const {
    const nb::object made = load_(architecture);  // lets other threads in
    return nb::cast<const LoadedKernel&>(made).kernel;
  }

  cuda::Kernel* loaded(int device, const std::string& architecture) const {
    const std::lock_guard lock(mutex_);
    if (const auto own = of_one_device_.find(device); own != of_one_device_.end()) return own->second;
    const auto found = by_architecture_.find(architecture);
    return found == by_architecture_.end() ? nullptr : found->second;
  }

  /// The kernel on a device, which is current.
  cuda::Kernel& on(int device) const {
    {
      const std::lock_guard lock(mutex_);
      for (const Kernel::Compiled& compiled : by_device_) {
        if (compiled.device == device) return *compiled.kernel;
      }
    }
    cuda::Kernel* const found = loaded(device, cuda::architecture_name(device));
    if (!found) throw ValueError(label + ": the program was not prepared for device " + std::to_string(device));
    check_compiled(declaration_, *found);
    const std::lock_guard lock(mutex_);
    by_device_.push_back({device, found});
    return *found;
  }

  const KernelDeclaration declaration_;
  const nb::object load_;
  mutable std::mutex mutex_;
  std::map<std::string, cuda::Kernel*> by_architecture_;
  std::map<int, cuda::Kernel*> of_one_device_;  // that another library has loaded there
  mutable std::vector<Kernel::Compiled> by_device_;
};

/// The launch for arrays of these shapes, one for each parameter, of which those of numbers are not looked at.
nb::tuple launch_for(const Kernel& kernel, const nb::tuple& shapes, nb::handle options) {
  std::vector<Shape> sizes(kernel.parameters.size());
  std::vector<DLTensor> arrays(sizes.size());
  std::vector<const DLTensor*> tensors(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (!kernel.parameters[i].is_array()) continue;
    sizes[i].ndim = read_sizes(kernel.label, kernel.parameters[i].name.c_str(), shapes[i], sizes[i].sizes);
    arrays[i].ndim = sizes[i].ndim;
    arrays[i].shape = sizes[i].sizes;
    tensors[i] = &arrays[i];
  }
  LaunchPlan plan = kernel.plan;
  if (!options.is_none()) apply(kernel, plan, options_of(options));
  const cuda::Launch launch = launch_of(kernel, plan, tensors.data());
  const auto& [g, b, c] = std::tie(launch.grid, launch.block, launch.cluster);
  return nb::make_tuple(g[0], g[1], g[2], b[0], b[1], b[2], c[0], c[1], c[2], launch.shared_bytes,
                        static_cast<unsigned>(launch.cooperative));
}

}  // namespace

void bind_kernel(nb::module_& m) {
  nb::class_<Kernel>(m, "Kernel", "A kernel that a user wrote, its declaration, and what was compiled of it.")
      .def(nb::init<const std::string&, const std::vector<KernelParameter::Declared>&, nb::object, nb::tuple,
                    std::vector<int>, bool>(),
           nb::sig("def __init__(self, label: str, parameters: list[tuple[str, str, str, bool, int]], "
                   "load: typing.Callable[[str], LoadedKernel], options: tuple[typing.Any, ...], checked: list[int], "
                   "checks_indexes: bool, /) -> None"))
      .def(nb::init<const std::string&, const std::vector<KernelParameter::Declared>&, uintptr_t, std::vector<int>>(),
           nb::sig("def __init__(self, label: str, parameters: list[tuple[str, str, str, bool, int]], address: int, "
                   "checked: list[int], /) -> None"))
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
           "shared, cluster, cooperative where they are not those of the construction.")
      .def("launch_for", &launch_for, nb::arg(), nb::arg().none(),
           nb::sig("def launch_for(self, shapes: tuple[tuple[int, ...], ...], options: tuple[typing.Any, ...] | None, "
                   "/) -> tuple[int, ...]"),
           "Grid, block, cluster (three sizes each), bytes of shared memory, and whether it is cooperative.")
      .def(
          "keep_for_xla",
          [](const Kernel& kernel, const std::string& key) {
            if (kernel.function) return keep_for_xla(key, std::make_unique<ModuleFunctionOfXla>(kernel));
            keep_for_xla(key, std::make_unique<KernelOfXla>(kernel));
          },
          nb::arg(), nb::sig("def keep_for_xla(self, key: str, /) -> None"),
          "Keep it as long as the process runs: XLA's programs call it by this key.");
}

}  // namespace interop::bindings
