/// Images that were compiled at run time, or elsewhere, as the driver has loaded them. Private to src/cuda.
#pragma once

#include <interop/cuda/kernel.h>

#include <cstdint>
#include <string>

#include "cuda/driver/driver_api.h"

namespace interop::cuda {

class VariableOrder;

/// The options by which the driver's compiler writes what it has to say, and where: it may do so as long as the library
/// lives, as it compiles on first use.
struct CompilerLog {
  static constexpr unsigned kBytes = 8 << 10;

  CUjit_option names[2] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[2] = {text, reinterpret_cast<void*>(std::uintptr_t{kBytes - 1})};
  char text[kBytes] = {};
};

struct Library {
  CUlibrary handle = nullptr;
  std::string origin;              // what messages call it
  std::string image;               // PTX and fatbins alone: what the driver compiles again to say what is wrong
  VariableOrder* order = nullptr;  // of an image that has variables, or may have some
  CompilerLog log;
};

/// Throws the CudaError of an image, or a kernel in it, that the driver refused: what it is, and what is accepted. For
/// an error of what ran before it throws what `check` does.
[[noreturn]] void throw_image_status(CUresult status, const Library& library);

}  // namespace interop::cuda
