/// What the functions that make arrays are given.
#pragma once

#include <interop/tensor.h>

#include "exchange/array/array.h"
#include "exchange/python.h"

namespace interop::bindings {

/// A dtype by its name, or of NumPy's or torch's. Throws TypeError for what is none.
DLDataType read_dtype(const char* function, nb::handle dtype);
/// An int, or a sequence of ints. Throws TypeError for anything else, and ValueError for negative sizes, and for more
/// elements than any memory has.
Shape read_shape(const char* function, nb::handle shape, DLDataType dtype);
/// A new array; with `shared`, in memory that other processes can be given. Throws MemoryError where the host has no
/// memory for it, and CudaError where CUDA has none.
exchange::Array make_array(const char* function, const Shape& shape, DLDataType dtype, DLDevice device,
                           cudaStream_t stream, bool shared = false);

}  // namespace interop::bindings
