/// What the functions that make arrays are given.
#pragma once

#include <interop/tensor.h>

#include "exchange/python.h"

namespace interop::bindings {

/// A dtype by its name, or of NumPy's or torch's. Throws TypeError for what is none.
DLDataType read_dtype(const char* function, nb::handle dtype);
/// An int, or a sequence of ints. Throws TypeError for anything else, and ValueError for negative sizes, and for more
/// elements than any memory has.
Shape read_shape(const char* function, nb::handle shape, DLDataType dtype);

}  // namespace interop::bindings
