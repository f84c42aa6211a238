/// Opens cuBLASLt. The library and one handle for each device are kept for good.
#include "cuda/matmul/cublas/library.h"

#include <interop/error.h>

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "cuda/driver/driver_api.h"
#include "cuda/matmul/backends.h"

namespace interop::cuda {
namespace cublas {
namespace {

constexpr const char* kSonames[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};

std::vector<std::string>& search_paths() {
  static auto* const paths = new std::vector<std::string>;
  return *paths;
}

template <typename Function>
bool resolve(void* handle, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, symbol));
  return function != nullptr;
}

bool resolve_all(void* handle, lt::Api& api) {
#define RESOLVE(name) resolve(handle, #name, api.name)
  return RESOLVE(cublasLtGetVersion) && RESOLVE(cublasLtGetStatusName) && RESOLVE(cublasLtCreate) &&
         RESOLVE(cublasLtMatmulDescCreate) && RESOLVE(cublasLtMatmulDescDestroy) &&
         RESOLVE(cublasLtMatmulDescSetAttribute) && RESOLVE(cublasLtMatrixLayoutCreate) &&
         RESOLVE(cublasLtMatrixLayoutDestroy) && RESOLVE(cublasLtMatrixLayoutSetAttribute) &&
         RESOLVE(cublasLtMatmulPreferenceCreate) && RESOLVE(cublasLtMatmulPreferenceDestroy) &&
         RESOLVE(cublasLtMatmulPreferenceSetAttribute) && RESOLVE(cublasLtMatmulAlgoGetHeuristic) &&
         RESOLVE(cublasLtMatmulAlgoCheck) && RESOLVE(cublasLtMatmulAlgoConfigGetAttribute) && RESOLVE(cublasLtMatmul);
#undef RESOLVE
}

/// Tries to open the library by one name; if that fails, `library.why_not` says why.
bool try_open(const std::string& name, Library& library) {
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* why = dlerror();
    library.why_not += std::string(library.why_not.empty() ? "" : "; ") + (why ? why : name.c_str());
    return false;
  }
  if (!resolve_all(handle, library.api)) {
    library.why_not += (library.why_not.empty() ? "" : "; ") + name + " lacks functions that interop needs (too old)";
    dlclose(handle);
    return false;
  }
  const std::size_t version = library.api.cublasLtGetVersion();
  library.version = std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "." +
                    std::to_string(version % 100);
  link_map* map = nullptr;
  library.path = dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name[0] ? map->l_name : name;
  library.installed = true;
  library.why_not.clear();
  return true;
}

}  // namespace

const Library& library() {
  static const Library* const opened = [] {
    auto* fresh = new Library;
    for (const std::string& path : search_paths()) {
      if (try_open(path, *fresh)) return fresh;
    }
    for (const char* soname : kSonames) {
      if (try_open(soname, *fresh)) return fresh;
    }
    return fresh;
  }();
  return *opened;
}

[[noreturn]] void throw_lt(lt::Status status, const char* doing) {
  throw CudaError(std::string("interop: ") + doing + ": " + library().api.cublasLtGetStatusName(status) +
                  " (cuBLASLt " + library().version + ")");
}

lt::Handle handle_of(int device) {
  static std::atomic<lt::Handle> handles[kMaxDevices];
  if (device < 0 || device >= kMaxDevices) check(CUDA_ERROR_INVALID_DEVICE, "selecting a device");
  lt::Handle handle = handles[device].load(std::memory_order_acquire);
  if (handle) return handle;
  static auto* const mutex = new std::mutex;
  std::lock_guard<std::mutex> lock(*mutex);
  handle = handles[device].load(std::memory_order_acquire);
  if (!handle) {
    RelaxedCapture relaxed(driver());
    check_lt(library().api.cublasLtCreate(&handle), "creating a cuBLASLt handle");
    handles[device].store(handle, std::memory_order_release);
  }
  return handle;
}

bool installed() { return library().installed; }

std::string why_not_installed() { return library().why_not; }

}  // namespace cublas

std::string cublas_version() {
  try {
    return cublas::library().version;
  } catch (...) {
    return "";
  }
}

std::string cublas_status() {
  try {
    const cublas::Library& opened = cublas::library();
    if (!opened.installed) return "not found: " + opened.why_not;
    const std::size_t slash = opened.path.rfind('/');
    return opened.path.substr(slash == std::string::npos ? 0 : slash + 1) + ", version " + opened.version + ", " +
           opened.path;
  } catch (...) {
    return "not found: out of memory";
  }
}

void set_cublas_paths(const char* const* paths, int count) {
  if (count > 0) cublas::search_paths().assign(paths, paths + count);
}

}  // namespace interop::cuda
