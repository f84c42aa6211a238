/// The DLPack C exchange API (`__dlpack_c_exchange_api__`), as its consumer and as a producer.
#pragma once

#include "exchange/python.h"
#include "exchange/route.h"

namespace interop::exchange {

/// The table of a type, of a version that we speak; null if it has none.
const DLPackExchangeAPI* find_exchange_api(nb::handle type);
/// A new array by the library's own allocator, on its current stream.
Made allocate(const DLPackExchangeAPI& api, const Shape& shape, DLDataType dtype, DLDevice device);
/// The library's current stream on a CUDA device.
cudaStream_t current_work_stream(const DLPackExchangeAPI& api, int device);
/// The route of a type that has such a table and of which nothing else is known; null if it has none. One for each
/// type.
const Route* exchange_api_route(PyTypeObject* type);

/// The value of `interop.Array.__dlpack_c_exchange_api__`. On a GPU its consumers work on interop's own stream of the
/// thread and device, which is made to wait for each array that they ask for.
nb::object own_exchange_api();

}  // namespace interop::exchange
