/// `interop.Array` on the memory of other libraries' arrays.
#pragma once

#include "exchange/array/array.h"
#include "exchange/reaper.h"
#include "exchange/route.h"

namespace interop::exchange {

/// All that keeps an operand's memory alive: `owner`, which its route names, and the objects that were read on the way.
/// Takes over the operand's `release`.
std::vector<Held> owners_of(Operand& operand, nb::handle owner);

/// A view of a complete operand's memory. The view keeps the owner alive, and takes it over from the operand, `release`
/// included. Any thread may release the owner, with or without the GIL. If a GPU may use the memory, that happens once
/// all that its context has queued by then is done.
Array take_view(Operand& operand);
/// An `interop.Array` on the memory of an operand that stays in use: the same object each time. It keeps the memory,
/// and the producer's release with it, past the end of the call. Host memory only.
nb::object view_of(Operand& operand);

/// The memory of an argument or a result of a call as an `interop.Array`, for a function that the call runs: ready on
/// the call's stream, and used on it alone. `gpu` is the call's device, -1 for the host. It keeps `owner`, and notes no
/// work.
nb::object view_within_call(const DLTensor& tensor, int gpu, bool read_only, nb::handle owner);

/// `interop.asarray` for messages of `function`: the array itself, or a view of it, never a copy. Device memory is
/// ready on `stream`, or (null) on the producer's own. `name` is the argument's, and outlives the call.
nb::object asarray(nb::handle x, const char* function, cudaStream_t stream, const char* name = "x");

/// tp_traverse, tp_finalize and tp_clear of `interop.Array`: a cycle through the owners of a view's memory is collected
/// once there is no export of it.
int visit_owners(PyObject* self, visitproc visit, void* arg);
void finish_reading(PyObject* self);
int let_owners_go(PyObject* self);

/// For work on the memory by another library, which is told nothing of it. Before: throws TypeError for an array that
/// nobody may write to, where `function` may write to its argument `name`; `accepted` is what the message recommends.
void check_foreign_write(const Array& array, const char* function, const char* name, const char* accepted);
/// After it was queued on `stream` (null: it was the host's, and is done): the array's next user waits for it, and so
/// does its producer's stream. Memory whose producer has none is held until the work is done; and with `is_given` that
/// of the others, too, which do not wait. `is_written` counts as a write, where the producer counts those.
void note_foreign_use(Array& array, cudaStream_t stream, bool is_given, bool is_written);

/// The CUDA device whose kernels can read the array where it is; none for memory of the host alone.
std::optional<int> readable_by_gpu(const Array& array);

}  // namespace interop::exchange
