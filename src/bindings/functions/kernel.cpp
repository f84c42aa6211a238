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
#include "bindings/functions/kernel_compiled.h"
#include "bindings/functions/kernel_declaration.h"
#include "bindings/functions/kernel_launch.h"
#include "bindings/functions/kernel_of_xla.h"
#include "bindings/functions/kernel_values.h"
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

  nb::object load;           // of an architecture's name: a LoadedKernel
  std::vector<int> checked;  // places of the parameters that `reads=` names, where INTEROP_CHECKED=1
  LaunchPlan plan;
  std::vector<CompiledKernel> compiled;
  InteropFunction function = nullptr;  // of a compiled module
};

// ---- the call ----

std::optional<CompiledKernel> known_compiled(const Kernel& kernel, int device) {
  for (const CompiledKernel& compiled : kernel.compiled) {
    if (compiled.device == device) return compiled;
  }
  return std::nullopt;
}

CompiledKernel find_compiled(Kernel& kernel, int device) {
  if (const auto known = known_compiled(kernel, device)) return *known;
  const nb::object loaded = kernel.load(cuda::architecture_name(device));
  const auto& [found, mdspans] = nb::cast<const LoadedKernel&>(loaded);
  const CompiledKernel compiled{device, found, mdspans};
  {
    const nb::gil_scoped_release no_gil;
    check_compiled(kernel, compiled);  // on the device of the call, which is current
  }
  // Python let other threads in, which may have loaded it too.
  if (!known_compiled(kernel, device)) kernel.compiled.push_back(compiled);
  return compiled;
}

/// Is argument `k` of the call what the parameter takes?
void check_array(const Kernel& kernel, const KernelParameter& parameter, const Call& call, int k) {
  const bool is_mdspan = parameter.kind == Kind::mdspan, is_pointer = parameter.kind == Kind::pointer;
  const char layout = parameter.mdspan.layout;
  if (!kernel.function) require_gpu(kernel.label, parameter.name.c_str(), call, k, parameter.dtype);
  const int device = kernel.function ? 0 : kDLCUDA;
  const char order = is_pointer ? 'C' : is_mdspan && layout != 'S' ? layout : '\0';
  call.check(k, {is_mdspan ? parameter.mdspan.extents.data() : nullptr, parameter.dtype,
                 is_pointer && parameter.ndim == 0 ? -1 : parameter.ndim, device, order,
                 static_cast<uint8_t>(parameter.written)});
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
    if (kernel.first_map >= 0) {
      cuda::require_tensor_maps(call_->device(), kernel.label, parameter(kernel.first_map).name.c_str());
    }
    if (only_looks && !call_->staged() && !kernel.function) check_values();
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
    const CompiledKernel compiled = kernel_.function ? CompiledKernel{} : find_compiled(kernel_, call_->device());
    if (checked_) checked_->copy();
    IndexFault* const fault = indexes_ ? indexes_->prepare() : nullptr;
    on_own_frame([&] {
      if (kernel_.function) return run_function();
      KernelValues values(kernel_, compiled.mdspans,
                          {tensors_.data(), scalars_.data(), call_->device(), fault, launch_.is_empty()});
      call_->launch([&](cudaStream_t s) {
        cuda::launch_kernel(*compiled.kernel, launch_, kernel_.label, values.pointers(), call_->device(), s);
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
      if (parameter(i).takes_nothing()) continue;
      const nb::handle argument = arguments[next++];
      const char* const name = parameter(i).name.c_str();
      if (parameter(i).kind == Kind::scalar) {
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
      check_compact(kernel_.label, parameter(i), shape);
      tensors_[i] = &call_->output(shape, parameter(i).dtype);
    }
  }

  /// What a call that only looks makes no values of, and so says here.
  void check_values() const {
    for (int i = 0; i < count_; ++i) {
      const KernelParameter& p = parameter(i);
      if (p.kind == Kind::mdspan) check_mdspan_indices(p.mdspan, *tensors_[i], kernel_.label, p.name.c_str());
      if (p.kind != Kind::map) continue;
      const char* const name = parameter(p.map_of).name.c_str();
      cuda::check_tensor_map(p.maps->form(), *tensors_[p.map_of], kernel_.label, name);
    }
  }

  void run_function() {
    call_->launch([&](cudaStream_t s) {
      run_module_function(kernel_.function, kernel_.label,
                          {tensors_.data(), scalars_.data(), nullptr, call_->device(), s}, count_);
    });
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
                        static_cast<unsigned>(launch.cooperative), static_cast<unsigned>(launch.dependent));
}

}  // namespace

void bind_kernel(nb::module_& m) {
  nb::class_<Kernel>(m, "Kernel", "A kernel that a user wrote, its declaration, and what was compiled of it.")
      .def(nb::init<const std::string&, const std::vector<KernelParameter::Declared>&, nb::object, nb::tuple,
                    std::vector<int>, bool>(),
           nb::sig("def __init__(self, label: str, parameters: list[tuple[str, str, str, bool, int, list[int]]], "
                   "load: typing.Callable[[str], LoadedKernel], options: tuple[typing.Any, ...], checked: list[int], "
                   "checks_indexes: bool, /) -> None"))
      .def(nb::init<const std::string&, const std::vector<KernelParameter::Declared>&, uintptr_t, std::vector<int>>(),
           nb::sig("def __init__(self, label: str, parameters: list[tuple[str, str, str, bool, int, list[int]]], "
                   "address: int, "
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
           "shared, cluster, cooperative, dependent_launch where they are not those of the construction.")
      .def("launch_for", &launch_for, nb::arg(), nb::arg().none(),
           nb::sig("def launch_for(self, shapes: tuple[tuple[int, ...], ...], options: tuple[typing.Any, ...] | None, "
                   "/) -> tuple[int, ...]"),
           "Grid, block, cluster (three sizes each), bytes of shared memory, and whether it is cooperative, and "
           "dependent.")
      .def(
          "keep_for_xla",
          [](const Kernel& kernel, const std::string& key) {
            if (kernel.function) return keep_for_xla(key, module_function_of_xla(kernel, kernel.function));
            keep_for_xla(key, kernel_of_xla(kernel, kernel.load));
          },
          nb::arg(), nb::sig("def keep_for_xla(self, key: str, /) -> None"),
          "Keep it as long as the process runs: XLA's programs call it by this key.");
}

}  // namespace interop::bindings
