/// How a kernel of a user is launched: the options that are given, and what follows from them.
#pragma once

#include <interop/cuda/kernel.h>
#include <interop/tensor.h>
#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "bindings/functions/kernel_declaration.h"

namespace interop::bindings {

/// The launch options that the caller gave, at construction or in the call; None for those left out.
struct LaunchOptions {
  nanobind::handle grid = Py_None, threads = Py_None, block = Py_None, shared = Py_None, cluster = Py_None,
                   cooperative = Py_None, dependent = Py_None;
  nanobind::handle stream = Py_None, execution = Py_None;  // of a call alone
};
/// In a tuple: grid, threads, block, shared, cluster, cooperative, dependent_launch.
LaunchOptions options_of(nanobind::handle tuple);
/// The options of a call, by their names; none if there is another name, or an option is a function of the arguments.
std::optional<LaunchOptions> options_of(const nanobind::dict& keywords);

/// The launch as far as it is known without the arrays.
struct LaunchPlan {
  enum class Extent { unknown, blocks, threads, elements } extent = Extent::unknown;
  unsigned sizes[3] = {1, 1, 1};  // the grid, or threads in all
  int elements_of = -1;           // one thread for each element of this parameter's array
  cuda::Launch launch;
};
/// `plan`, changed by these options.
void apply(const KernelDeclaration& kernel, LaunchPlan& plan, const LaunchOptions& options);
/// The launch of one call, whose arrays are `tensors`, by parameter.
cuda::Launch launch_of(const KernelDeclaration& kernel, const LaunchPlan& plan, const DLTensor* const* tensors);
/// The launch in words, for `explain`.
std::string launch_text(const cuda::Launch& launch);

}  // namespace interop::bindings
