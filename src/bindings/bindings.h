/// One function for each Python-visible area of `interop._core`.
#pragma once

#include <nanobind/nanobind.h>

namespace interop::bindings {

/// The seconds that one launch of `a + b` into `out` takes on the host, with everything before it done.
double time_launch_of_add(nanobind::handle a, nanobind::handle b, nanobind::handle out);

void bind_arguments(nanobind::module_& m);
void bind_array(nanobind::module_& m);
void bind_by_operation(nanobind::module_& m);
void bind_convert(nanobind::module_& m);
void bind_elementwise(nanobind::module_& m);
void bind_expression(nanobind::module_& m);
void bind_info(nanobind::module_& m);
void bind_kernel(nanobind::module_& m);
void bind_load(nanobind::module_& m);
void bind_loaded_kernel(nanobind::module_& m);
void bind_matmul(nanobind::module_& m);
void bind_operator_gradient(nanobind::module_& m);
void bind_operators(nanobind::module_& m);
void bind_register(nanobind::module_& m);
void bind_timing(nanobind::module_& m);
void bind_variables(nanobind::module_& m);
void bind_xla_function(nanobind::module_& m);

}  // namespace interop::bindings
