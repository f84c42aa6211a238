/// Kernels of users, and functions of compiled modules, as XLA calls them; and how the latter are run.
#pragma once

#include <interop/c_api.h>
#include <nanobind/nanobind.h>

#include <memory>

#include "bindings/functions/kernel_declaration.h"
#include "bindings/functions/xla_function.h"

namespace interop::bindings {

/// `load` returns a LoadedKernel for an architecture's name.
std::unique_ptr<XlaFunction> kernel_of_xla(const KernelDeclaration& kernel, nanobind::object load);
std::unique_ptr<XlaFunction> module_function_of_xla(const KernelDeclaration& kernel, InteropFunction function);

/// Runs a function of a compiled module with `count` parameters, and throws what it reports.
void run_module_function(InteropFunction function, const char* label, const XlaCall& call, int count);

}  // namespace interop::bindings
