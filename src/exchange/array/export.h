/// What `interop.Array` shows to other libraries: DLPack, `__cuda_array_interface__`, the buffer protocol.
#pragma once

#include "exchange/array/array.h"

namespace interop::exchange {

/// The `copy` keyword: true for True, false for False and None; throws TypeError for anything else.
bool read_copy(const char* function, nb::handle copy);
/// `__dlpack__`: keywords as the standard has them, None where they were not given. `to_immutable`: the consumer's
/// arrays cannot be written to, so it may have a read-only array in an unversioned capsule, which cannot say so.
nb::object export_dlpack(const Array& array, nb::handle stream, nb::handle max_version, nb::handle dl_device,
                         nb::handle copy, bool to_immutable = false);
/// An export for C, not ordered on any stream. Its deleter runs on any thread, without the GIL.
DLManagedTensorVersioned* export_managed(const Array& array);

/// `__cuda_array_interface__`, version 3: ready on `stream`, or (null) on a stream that it names itself.
nb::dict export_cai(const Array& array, cudaStream_t stream);

/// Py_bf_getbuffer and Py_bf_releasebuffer of the type. Pinned and managed memory is waited for by the host.
int get_buffer(PyObject* self, Py_buffer* view, int flags);
void release_buffer(PyObject* self, Py_buffer* view);

}  // namespace interop::exchange
