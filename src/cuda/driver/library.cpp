/// Loading images with kernels in them, and why the driver refuses one.
#include "cuda/driver/library.h"

#include <interop/cuda/driver.h>
#include <interop/error.h>

#include <memory>

#include "cuda/driver/kernel.h"
#include "cuda/driver/variables.h"

namespace interop::cuda {
namespace {

const char* const kOldDriver = "CUDA 12.4";  // which made kernels and their parameters known

bool is_elf(const std::string& image) { return image.compare(0, 4, "\177ELF") == 0; }

/// What the driver's compiler or linker says of the image. Where kernels are loaded on first use it says so only to one
/// who compiles the image at once, which needs a context.
std::string log_of(const Library& library) {
  std::string log(library.log.text);
  CUcontext context = nullptr;
  const DriverApi& api = driver();
  if (log.empty() && !library.image.empty() && api.cuCtxGetCurrent(&context) == CUDA_SUCCESS && context) {
    RelaxedCapture relaxed(api);
    const auto said = std::make_unique<CompilerLog>();
    CUmodule module = nullptr;
    if (api.cuModuleLoadDataEx(&module, library.image.c_str(), 2, said->names, said->values) == CUDA_SUCCESS) {
      api.cuModuleUnload(module);
    }
    log = said->text;
  }
  log.erase(log.find_last_not_of(" \n\r\t") + 1);
  return log;
}

std::string version_text() {
  const int version = driver_version();
  return "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// The architecture of the current device; that of the first one where there is no context.
std::string this_architecture() {
  int device = 0;
  if (driver().cuCtxGetDevice(&device) != CUDA_SUCCESS) device = 0;
  return architecture_name(device);
}

std::string explained(CUresult status) {
  switch (status) {
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
      return "it has no code for this GPU, " + this_architecture() + "; accepted: a cubin for " + this_architecture() +
             ", or PTX for it or for an earlier architecture";
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
      return "the PTX is newer than this driver, of " + version_text() + "; accepted: PTX by the compiler of " +
             version_text() + " or an earlier one, a cubin for " + this_architecture() + ", or a newer driver";
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_INVALID_SOURCE:
      return "it is truncated or damaged, or needs a newer driver than this one, of " + version_text() +
             "; accepted: a linked cubin, PTX or a fatbin, as nvcc writes them";
    case CUDA_ERROR_INVALID_PTX:
      return "the driver's compiler does not take the PTX; accepted: PTX without unresolved names, as nvcc -ptx "
             "writes it";
    case CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND:
    case CUDA_ERROR_NOT_FOUND:
      return "a name in it is not found; accepted: a linked image, without unresolved names";
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
      return "this driver has no compiler for PTX; accepted: a cubin for " + this_architecture();
    default:
      return "accepted: a cubin for " + this_architecture() + ", or PTX or a fatbin that this driver takes, of " +
             version_text();
  }
}

}  // namespace

void throw_image_status(CUresult status, const Library& library) {
  const std::string doing = "loading " + library.origin;
  if (is_earlier_error(status) || status == CUDA_ERROR_OUT_OF_MEMORY) throw_status(status, doing.c_str());
  const char* name = nullptr;
  driver().cuGetErrorName(status, &name);
  const std::string log = log_of(library);
  throw CudaError("interop: " + doing + ": " +
                  (name ? name : "CUDA error " + std::to_string(static_cast<int>(status))) + ": " + explained(status) +
                  (log.empty() ? "" : "; the driver says:\n" + log));
}

Library& load_library(const std::string& image, const std::string& origin, bool has_variables) {
  const DriverApi& api = driver();
  auto library = std::make_unique<Library>();
  library->origin = origin;
  if (!is_elf(image)) library->image = image;
  CompilerLog& log = library->log;
  RelaxedCapture relaxed(api);
  const CUresult status =
      api.cuLibraryLoadData(&library->handle, image.c_str(), log.names, log.values, 2, nullptr, nullptr, 0);
  if (status != CUDA_SUCCESS) throw_image_status(status, *library);
  if (has_variables) library->order = new VariableOrder;
  return *library.release();  // both for the life of the process
}

Kernel& find_kernel(Library& library, const std::string& symbol) {
  RelaxedCapture relaxed(driver());
  CUkernel handle = nullptr;
  const CUresult status = driver().cuLibraryGetKernel(&handle, library.handle, symbol.c_str());
  if (status == CUDA_ERROR_NOT_FOUND) {
    throw CudaError("interop: loading " + library.origin + ": it has no kernel " + symbol + ": CUDA_ERROR_NOT_FOUND");
  }
  if (status != CUDA_SUCCESS) throw_image_status(status, library);
  return *new Kernel(handle, &library);  // for the life of the process
}

Kernel& adopt_kernel(void* handle, bool is_function) {
  return *new Kernel(static_cast<CUkernel>(handle), nullptr, is_function);  // for the life of the process
}

bool is_of_one_context(const Kernel& kernel) { return kernel.is_function; }

std::vector<std::string> kernel_symbols(const Library& library) {
  const DriverApi& api = driver();
  if (!api.cuLibraryEnumerateKernels || !api.cuLibraryGetKernelCount || !api.cuKernelGetName) {
    throw CudaError("interop: this driver, of " + version_text() + ", cannot list the kernels of " + library.origin +
                    ", which needs " + kOldDriver + "; accepted: the symbol of a kernel, with signature=");
  }
  RelaxedCapture relaxed(api);
  unsigned count = 0;
  CUresult status = api.cuLibraryGetKernelCount(&count, library.handle);
  std::vector<CUkernel> kernels(count);
  if (status == CUDA_SUCCESS && count > 0) {
    status = api.cuLibraryEnumerateKernels(kernels.data(), count, library.handle);
  }
  std::vector<std::string> names;
  for (CUkernel kernel : kernels) {
    const char* name = nullptr;
    if (status == CUDA_SUCCESS) status = api.cuKernelGetName(&name, kernel);
    if (name) names.emplace_back(name);
  }
  if (status != CUDA_SUCCESS) throw_image_status(status, library);
  return names;
}

std::optional<std::vector<std::size_t>> parameter_bytes(Kernel& kernel) {
  const DriverApi& api = driver();
  if (!(kernel.is_function ? api.cuFuncGetParamInfo != nullptr : api.cuKernelGetParamInfo != nullptr)) {
    return std::nullopt;
  }
  ready(kernel, "asking a kernel for its parameters", "loading a kernel that was compiled at run time");
  RelaxedCapture relaxed(api);
  std::vector<std::size_t> bytes;
  while (true) {
    std::size_t offset = 0, size = 0;
    const CUkernel handle = kernel.handle.load(std::memory_order_relaxed);
    const CUresult status =
        kernel.is_function ? api.cuFuncGetParamInfo(reinterpret_cast<CUfunction>(handle), bytes.size(), &offset, &size)
                           : api.cuKernelGetParamInfo(handle, bytes.size(), &offset, &size);
    if (status == CUDA_ERROR_INVALID_VALUE) return bytes;  // there is no such parameter
    check(status, "asking a kernel for its parameters");
    bytes.push_back(size);
  }
}

}  // namespace interop::cuda
