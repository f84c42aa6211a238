/// The launch options of `interop.kernel`, and of the calls of what it makes.
#include "bindings/functions/kernel_launch.h"

#include <interop/error.h>
#include <nanobind/stl/string.h>

#include <algorithm>

#include "bindings/arguments.h"
#include "exchange/python.h"

namespace nb = nanobind;

namespace interop::bindings {
namespace {

using exchange::Name;

const Keyword<LaunchOptions> kOptions[] = {
    {Name("grid"), &LaunchOptions::grid},
    {Name("block"), &LaunchOptions::block},
    {Name("threads"), &LaunchOptions::threads},
    {Name("stream"), &LaunchOptions::stream},
    {Name("execution"), &LaunchOptions::execution},
    {Name("shared"), &LaunchOptions::shared},
    {Name("cluster"), &LaunchOptions::cluster},
    {Name("cooperative"), &LaunchOptions::cooperative},
    {Name("dependent_launch"), &LaunchOptions::dependent},
};

/// As Python shows it; of a tuple each part, since one may be an integer of too many digits to be shown.
std::string value_text(nb::handle x) {
  if (!PyTuple_CheckExact(x.ptr())) return exchange::shown(x);
  std::string text;
  for (const nb::handle part : nb::borrow<nb::tuple>(x)) text += (text.empty() ? "" : ", ") + value_text(part);
  return "(" + text + (nb::len(x) == 1 ? ",)" : ")");
}

[[noreturn]] void refuse(const KernelDeclaration& kernel, const char* option, nb::handle value,
                         const std::string& accepted) {
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
void to_sizes(const KernelDeclaration& kernel, const char* option, nb::handle value, int64_t least,
              unsigned (&sizes)[3]) {
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

/// True or False; nothing where it is left out.
void to_flag(const KernelDeclaration& kernel, const char* option, nb::handle value, bool& flag) {
  if (value.is_none()) return;
  if (!PyBool_Check(value.ptr())) refuse(kernel, option, value, "True or False");
  flag = value.ptr() == Py_True;
}

int place_of_array(const KernelDeclaration& kernel, nb::handle name) {
  const char* const utf8 = PyUnicode_AsUTF8(name.ptr());
  if (!utf8) PyErr_Clear();  // of half a character, which no name has
  const std::string text = utf8 ? utf8 : "";
  std::string arrays;
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    const KernelParameter& parameter = kernel.parameters[i];
    if (!parameter.is_array()) continue;
    if (parameter.name == text) return static_cast<int>(i);
    arrays += (arrays.empty() ? "" : ", ") + parameter.name;
  }
  refuse(kernel, "threads", name, "the name of an array parameter (" + arrays + "), an int, or a tuple");
}

/// The blocks along one direction for so many threads: whole clusters of them.
unsigned blocks_of(int64_t threads, const cuda::Launch& launch, int direction) {
  const int64_t block = launch.block[direction], cluster = std::max(launch.cluster[direction], 1u);
  const int64_t blocks = (threads + block - 1) / block;
  return static_cast<unsigned>((blocks + cluster - 1) / cluster * cluster);
}

std::string sizes_text(const unsigned (&sizes)[3]) {
  return "(" + std::to_string(sizes[0]) + ", " + std::to_string(sizes[1]) + ", " + std::to_string(sizes[2]) + ")";
}

}  // namespace

void apply(const KernelDeclaration& kernel, LaunchPlan& plan, const LaunchOptions& options) {
  cuda::Launch& launch = plan.launch;
  if (!options.grid.is_none() && !options.threads.is_none()) {
    throw ValueError(std::string(kernel.label) + ": grid and threads are given; accepted: one of them");
  }
  if (!options.grid.is_none()) {
    plan.extent = LaunchPlan::Extent::blocks;
    to_sizes(kernel, "grid", options.grid, 0, plan.sizes);
  } else if (nb::isinstance<nb::str>(options.threads)) {
    plan.extent = LaunchPlan::Extent::elements;
    plan.elements_of = place_of_array(kernel, options.threads);
  } else if (!options.threads.is_none()) {
    plan.extent = LaunchPlan::Extent::threads;
    to_sizes(kernel, "threads", options.threads, 0, plan.sizes);
  }
  if (!options.block.is_none()) to_sizes(kernel, "block", options.block, 1, launch.block);
  if (!options.cluster.is_none()) to_sizes(kernel, "cluster", options.cluster, 1, launch.cluster);
  if (!options.shared.is_none()) {
    const auto bytes = to_size(options.shared, 0);
    if (!bytes) refuse(kernel, "shared", options.shared, "an int, the bytes of dynamic shared memory");
    launch.shared_bytes = *bytes;
  }
  to_flag(kernel, "cooperative", options.cooperative, launch.cooperative);
  to_flag(kernel, "dependent_launch", options.dependent, launch.dependent);
}

LaunchOptions options_of(nb::handle tuple) {
  PyObject* const t = tuple.ptr();
  if (!PyTuple_Check(t) || PyTuple_GET_SIZE(t) != 7) throw TypeError("interop.kernel: the launch has seven options");
  return {PyTuple_GET_ITEM(t, 0), PyTuple_GET_ITEM(t, 1), PyTuple_GET_ITEM(t, 2), PyTuple_GET_ITEM(t, 3),
          PyTuple_GET_ITEM(t, 4), PyTuple_GET_ITEM(t, 5), PyTuple_GET_ITEM(t, 6)};
}

std::optional<LaunchOptions> options_of(const nb::dict& keywords) {
  LaunchOptions options;
  PyObject *name, *value;
  for (Py_ssize_t at = 0; PyDict_Next(keywords.ptr(), &at, &name, &value);) {
    const Keyword<LaunchOptions>* const option = find_keyword(kOptions, name);
    if (!option || PyCallable_Check(value)) return std::nullopt;
    options.*option->place = value;
  }
  return options;
}

cuda::Launch launch_of(const KernelDeclaration& kernel, const LaunchPlan& plan, const DLTensor* const* tensors) {
  cuda::Launch launch = plan.launch;
  switch (plan.extent) {
    case LaunchPlan::Extent::unknown:
      throw ValueError(std::string(kernel.label) +
                       ": neither grid nor threads is given; accepted: one of them, here or "
                       "in interop.kernel");
    case LaunchPlan::Extent::blocks:
      std::copy(plan.sizes, plan.sizes + 3, launch.grid);
      break;
    case LaunchPlan::Extent::threads:
      for (int i = 0; i < 3; ++i) launch.grid[i] = blocks_of(plan.sizes[i], launch, i);
      break;
    case LaunchPlan::Extent::elements: {
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

std::string launch_text(const cuda::Launch& launch) {
  std::string text = "grid " + sizes_text(launch.grid) + ", block " + sizes_text(launch.block);
  if (launch.cluster[0] != 0) text += ", clusters of " + sizes_text(launch.cluster);
  if (launch.shared_bytes != 0) {
    text += ", " + std::to_string(launch.shared_bytes) + " bytes of dynamic shared memory";
  }
  if (launch.cooperative) text += ", cooperative";
  if (launch.dependent) text += ", dependent";
  return text;
}

}  // namespace interop::bindings
