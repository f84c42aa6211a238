/// Tuning: whether products are tuned, and what it chose.
#pragma once

#include "bindings/matmul/terms.h"

namespace interop::bindings {

/// Is this product to be tuned, by `autotune=` or inside `interop.autotune`?
bool asks_tuning(const Terms& terms);

void bind_matmul_choices(nanobind::module_& m);

}  // namespace interop::bindings
