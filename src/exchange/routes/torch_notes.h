/// What torch notes of a tensor beside its memory, and of the thread: what a call asks of each argument.
///
/// Python's way to each answer takes 30 to 120 ns, and `is_neg` gives up the GIL. So where this torch was tested
/// (torch_symbols.h), the C++ functions behind them are called; else Python's. `INTEROP_TORCH_NOTES` chooses.
#pragma once

#include <interop/tensor.h>

#include "exchange/python.h"

namespace interop::exchange {

// Of a tensor of torch's exact type, or one under it that overrides nothing.

bool requires_grad(nb::handle tensor);
/// Do its elements stand for their negatives; or for their conjugates?
bool is_negated(nb::handle tensor);
bool is_conjugated(nb::handle tensor);
/// Was it made in inference mode? Then torch counts no writes to it.
bool is_inference(nb::handle tensor);
/// Counts a write as torch's own functions do: a backward pass that has saved the old values then raises an error.
void count_write_to(nb::handle tensor);

/// Its memory, as `dltensor_from_py_object_no_sync` of the C exchange API says it. False where that is to be asked: it
/// may not be known here, and it says why a tensor has none.
bool view_memory(nb::handle tensor, DLTensor* view);

// Of this thread.

/// Is a dispatch mode active (FakeTensorMode, FlopCounterMode)?
bool in_dispatch_mode();
/// Does `torch.jit.trace` record?
bool in_jit_trace();
/// Is a transform of torch.func active (vmap, grad, jvp)?
bool in_transform();

}  // namespace interop::exchange
