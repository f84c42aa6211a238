/// Images that were compiled at run time, or elsewhere, as the driver has loaded them. Private to src/cuda.
#pragma once

#include <interop/cuda/kernel.h>

#include <memory>
#include <string>

#include "cuda/driver/driver_api.h"

namespace interop::cuda {

class VariableOrder;

struct Library {
  static constexpr unsigned kLogBytes = 8 << 10;

  CUlibrary handle = nullptr;
  std::string origin;              // what messages call it
  std::string image;               // PTX and fatbins alone: what the driver compiles again to say what is wrong
  VariableOrder* order = nullptr;  // of an image that has variables, or may have some
  std::unique_ptr<char[]> log{new char[kLogBytes]()};  // that the driver may write to as long as the library lives
};

/// Throws the CudaError of an image, or a kernel in it, that the driver refused: what it is, and what is accepted. For
/// an error of what ran before it throws what `check` does.
[[noreturn]] void throw_image_status(CUresult status, const Library& library);

}  // namespace interop::cuda
