/// The errors that interop raises, one C++ type for each Python exception. Knows neither Python nor CUDA.
#pragma once

#include <stdexcept>
#include <string>

namespace interop {

/// Not an array, a dtype that is not served, a read-only `out`, host and device arrays mixed. Python: `TypeError`.
struct TypeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Shapes or devices that do not fit, a bad stream or backend name, streams of two captures. Python: `ValueError`.
struct ValueError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The producer of an array refuses, or hands over something malformed. Python: `BufferError`.
struct BufferError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// CUDA or cuBLAS fails, or no driver, GPU or library is there. Python: `interop.CudaError`, a `RuntimeError`.
struct CudaError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The message of a CudaError with the name of the call that failed: "interop: no GPU" becomes "interop.add: no GPU".
/// With `has_execution`, it also says that `execution` asked for the GPU. A message that names a function already stays
/// as it is.
inline std::string of_call(const char* function, bool has_execution, const std::string& words) {
  const std::string of_none = "interop: ";
  if (words.compare(0, of_none.size(), of_none) != 0) return words;
  return std::string(function) + ": " + (has_execution ? "execution='cuda': " : "") + words.substr(of_none.size());
}

}  // namespace interop
