/// One function for each Python-visible area of `interop._core`.
#pragma once

#include <nanobind/nanobind.h>

namespace interop::bindings {

/// The seconds that one launch of `a + b` into `out` takes on the host, with everything before it done.
double time_launch_of_add(nanobind::handle a, nanobind::handle b, nanobind::handle out);

/// What errors of a copy call it, and its two arrays.
struct CopyNames {
  const char* function = "interop.copyto";
  const char* dst = "dst";
  const char* src = "src";
  bool to_any_kind = false;  ///< all that a kernel converts, as signed to unsigned; else NumPy's rule "same_kind"
};
/// As `interop.copyto`: the elements of `src`, an array or a scalar, into `dst`.
void copy_into(const CopyNames& names, nanobind::handle dst, nanobind::handle src);
/// A NumPy array of an Array's values: on its own memory where the host reads that, else of a copy.
nanobind::object host_values(nanobind::handle array);

/// What reads the values of an Array, or computes with them; and its views. They add to the type.
void add_operators(nanobind::object type);
void add_resize(nanobind::object type);
void add_values(nanobind::object type);
void add_views(nanobind::object type);

void bind_adopted(nanobind::module_& m);
void bind_arange(nanobind::module_& m);
void bind_arguments(nanobind::module_& m);
void bind_array(nanobind::module_& m);
void bind_by_operation(nanobind::module_& m);
void bind_convert(nanobind::module_& m);
void bind_copyto(nanobind::module_& m);
void bind_elementwise(nanobind::module_& m);
void bind_expression(nanobind::module_& m);
void bind_graph(nanobind::module_& m);
void bind_info(nanobind::module_& m);
void bind_kernel(nanobind::module_& m);
void bind_load(nanobind::module_& m);
void bind_loaded_kernel(nanobind::module_& m);
void bind_matmul(nanobind::module_& m);
void bind_memory(nanobind::module_& m);
void bind_operator_gradient(nanobind::module_& m);
void bind_operators(nanobind::module_& m);
void bind_profile(nanobind::module_& m);
void bind_register(nanobind::module_& m);
void bind_share(nanobind::module_& m);
void bind_timing(nanobind::module_& m);
void bind_variables(nanobind::module_& m);
void bind_xla_function(nanobind::module_& m);

}  // namespace interop::bindings
