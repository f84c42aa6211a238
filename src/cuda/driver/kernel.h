/// One kernel, made ready in each context that launches it. Private to src/cuda.
#pragma once

#include <interop/cuda/kernel.h>

#include <atomic>
#include <cstdint>

#include "cuda/driver/driver_api.h"

namespace interop::cuda {

/// A kernel of this package, or one compiled at run time. Its handle serves every device; each context loads it on
/// first use.
struct Kernel {
  const void* symbol;    // null if it was compiled at run time, and its handle is known
  int shared_bytes = 0;  // of dynamic shared memory, where it is more than the 48 KB that every kernel may have; else 0
  std::atomic<int> own_shared_bytes{0};  // that it declares, where it was compiled at run time
  std::atomic<CUkernel> handle{nullptr};
  std::atomic<std::uint64_t> loaded_in{0};  // the id of the last context that it was made ready in
  Library* library = nullptr;               // that it is in, if it was compiled at run time
  bool is_function = false;                 // the handle is a CUfunction, of another library

  explicit Kernel(const void* symbol_, int shared_bytes_ = 0) : symbol(symbol_), shared_bytes(shared_bytes_) {}
  Kernel(CUkernel compiled, Library* library_, bool is_function_ = false)
      : symbol(nullptr), handle(compiled), library(library_), is_function(is_function_) {}
};

/// The kernel's handle, ready to run in the current context. What CUDA loads on first use is loaded here, since a
/// launch that is being captured could not load it. `launching` and `loading` say in an error what was being done.
CUfunction ready(Kernel& kernel, const char* launching, const char* loading);

/// Is the device of compute capability 8.0 or later, and has this build code for it that is not the empty kernel of
/// earlier ones?
bool has_sm80_code(int device);

/// The same for the code for sm_90a, which no other device runs.
bool has_sm90a_code(int device);
bool is_built_for_sm90a();

/// x / y, rounded up.
inline std::int64_t ceil_div(std::int64_t x, std::int64_t y) { return (x + y - 1) / y; }

}  // namespace interop::cuda
