/// The DLPack C exchange API of `interop.Array`.
#pragma once

#include "exchange/python.h"

namespace interop::exchange {

/// The value of `interop.Array.__dlpack_c_exchange_api__`. On a GPU its consumers work on interop's own stream of the
/// thread and device, which is made to wait for each array that they ask for.
nb::object own_exchange_api();

}  // namespace interop::exchange
