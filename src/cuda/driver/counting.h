/// The driver's functions, counted for profiles. Private to src/cuda/driver.
#pragma once

#include "cuda/driver/driver_api.h"

namespace interop::cuda {

/// The functions of `plain`, of which those that allocate, copy, wait or launch note that in all profiles that run. It
/// lives as long as the process, as `plain` does, which is the same one in every call.
const DriverApi& counting(const DriverApi& plain);

}  // namespace interop::cuda
