/// Kernels and C functions of users as XLA calls them: found by a key of what they are made of, called without Python.
#pragma once

#include <interop/cuda/kernel.h>
#include <interop/tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace interop::bindings {

/// One call by XLA.
struct XlaCall {
  const DLTensor* const* tensors;  // by parameter; null where it is no array
  const ScalarValue* numbers;      // by parameter
  const cuda::Launch* launch;      // of a kernel
  int device;                      // of the GPU's, as is the stream
  cudaStream_t stream;
};

struct XlaParameter {
  enum class Kind { array, number, stream, none };  // none: what is made of another parameter's array

  Kind kind;
  std::string name;
  DLDataType dtype;  // of no bits: any
  bool written;      // then it is a result of the call, else an operand
  int ndim;          // -1: any
};

class XlaFunction {
 public:
  XlaFunction(std::string label_, bool is_kernel_) : label(std::move(label_)), is_kernel(is_kernel_) {}
  virtual ~XlaFunction() = default;
  XlaFunction(const XlaFunction&) = delete;
  XlaFunction& operator=(const XlaFunction&) = delete;

  /// Compiles what is compiled at run time, for the devices of this machine. With the GIL, and without any context.
  virtual void prepare() {}
  /// Runs it, or queues it on the call's stream. Any thread, without the GIL, with the device's context current.
  virtual void run(const XlaCall& call) const = 0;

  const std::string label;
  const bool is_kernel;
  std::vector<XlaParameter> parameters;
};

/// Keeps a function as long as the process runs, as compiled programs may call it. The first one of a key stays.
void keep_for_xla(const std::string& key, std::unique_ptr<XlaFunction> function);
/// The function of a key; where there is none, Python is asked for it. Throws ValueError if this process has made none.
/// Without the GIL.
const XlaFunction& function_of_xla(std::string_view key);
/// The same, and has it compiled.
void prepare_for_xla(std::string_view key);

}  // namespace interop::bindings
