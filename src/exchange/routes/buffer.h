/// Host arrays by the buffer protocol (PEP 3118).
#pragma once

#include "exchange/route.h"

namespace interop::exchange {

/// Completes the operand from `object`'s buffer, which stays exported until the operand is released. NumPy arrays of
/// the dtypes of ml_dtypes have no buffer: that of their bits is read. Throws TypeError for a format that is no dtype
/// of ours, BufferError with the producer's words if it refuses.
void read_buffer(Operand& operand, nb::handle object);

/// The object to which a buffer that `read_buffer` got refers; null for any other release.
PyObject* buffer_owner(const Release& release);

/// A NumPy array on the operand's own memory: the caller's object where it is one already, else a view.
nb::object numpy_view(Operand& operand);

/// A NumPy array on the memory of an `interop.Array`, once the host may read it. Throws TypeError for device memory,
/// and for a dtype that neither NumPy nor ml_dtypes has.
nb::object numpy_array(nb::handle array);

}  // namespace interop::exchange
