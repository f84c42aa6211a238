/// cuBLASLt, opened at run time, and its handles. Private to src/cuda.
#pragma once

#include <string>

#include "cuda/matmul/cublas/cublaslt_api.h"

namespace interop::cuda::cublas {

// What the files of this folder know of the library. backends.h says what others do.

struct Library {
  lt::Api api{};
  bool installed = false;
  std::string version;  // "13.1.0"
  std::string path;
  std::string why_not;
};

/// The library, opened on the first call.
const Library& library();

[[noreturn]] void throw_lt(lt::Status status, const char* doing);
inline void check_lt(lt::Status status, const char* doing) {
  if (status != lt::kSuccess) throw_lt(status, doing);
}

inline constexpr const char* kPlanning = "planning a product with cuBLASLt";

/// The handle of a device. It holds neither stream nor workspace, so one handle serves every thread.
lt::Handle handle_of(int device);

}  // namespace interop::cuda::cublas
