/// The CUDA driver, opened at run time: its functions, its errors, its devices.
///
/// The table of functions is filled on the first success, and leaked on purpose: it serves until the process ends.
#include <interop/cuda/memory.h>
#include <interop/error.h>

#include <dlfcn.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "cuda/driver/counting.h"
#include "cuda/driver/driver_api.h"

#ifndef INTEROP_BUILT_ARCHITECTURES
#define INTEROP_BUILT_ARCHITECTURES "unknown"
#endif
#ifndef INTEROP_BUILT_COMPILER
#define INTEROP_BUILT_COMPILER "unknown"
#endif

namespace interop::cuda {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// ---- opening the driver ----

/// There is no driver at all, or no GPU: nothing that is broken.
struct NoGpu : CudaError {
  using CudaError::CudaError;
};

template <typename Function>
void find(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
}

template <typename Function>
void resolve(void* library, const char* symbol, Function& function) {
  find(library, symbol, function);
  if (!function) {
    throw CudaError(std::string("interop: the NVIDIA driver has no ") + symbol + ": too old for this build (CUDA " +
                    version_text(CUDA_VERSION) + "); update the driver, or build interop with an older CUDA toolkit");
  }
}

const DriverApi* open_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* const said = dlerror();
    const std::string why = said ? said : "no reason given";
    const std::string message = "interop: no NVIDIA driver: libcuda.so.1 does not load (" + why +
                                "); install the NVIDIA driver for CUDA " + version_text(CUDA_VERSION) + " or newer";
    if (why.rfind("libcuda.so.1: cannot open", 0) == 0) throw NoGpu(message);  // else it is there, and broken
    throw CudaError(message);
  }
  auto api = std::make_unique<DriverApi>();
  // These two first: the version explains better than a missing symbol.
  resolve(library, "cuInit", api->cuInit);
  resolve(library, "cuDriverGetVersion", api->cuDriverGetVersion);
  int version = 0;
  api->cuDriverGetVersion(&version);
  if (version != 0 && version / 1000 < CUDA_VERSION / 1000) {  // within one major version any driver will do
    throw CudaError("interop: the NVIDIA driver supports CUDA " + version_text(version) +
                    ", and this build needs CUDA " + version_text(CUDA_VERSION / 1000 * 1000) +
                    " or newer; update the driver, or build interop with a CUDA " + std::to_string(version / 1000) +
                    " toolkit");
  }
#define STRING_OF(name) #name
#define X(name) resolve(library, STRING_OF(name), api->name);
  INTEROP_DRIVER_FUNCTIONS(X)
#undef X
#undef STRING_OF
  resolve(library, "cuStreamGetCaptureInfo_v2", api->cuStreamGetCaptureInfo_v2);
  resolve(library, "cuMemPrefetchAsync", api->cuMemPrefetchAsync_v1);
  resolve(library, "cuMemAdvise", api->cuMemAdvise_v1);
  find(library, "cuLibraryGetKernelCount", api->cuLibraryGetKernelCount);
  find(library, "cuLibraryEnumerateKernels", api->cuLibraryEnumerateKernels);
  find(library, "cuKernelGetName", api->cuKernelGetName);
  find(library, "cuKernelGetParamInfo", api->cuKernelGetParamInfo);
  find(library, "cuFuncGetParamInfo", api->cuFuncGetParamInfo);

  const CUresult status = api->cuInit(0);
  int count = 0;
  if (status == CUDA_SUCCESS) api->cuDeviceGetCount(&count);
  if (status == CUDA_ERROR_NO_DEVICE || (status == CUDA_SUCCESS && count == 0)) {
    throw NoGpu("interop: no CUDA device: CUDA_ERROR_NO_DEVICE (no GPU, or CUDA_VISIBLE_DEVICES hides all of them)");
  }
  if (status != CUDA_SUCCESS) {
    const char* name = "unknown error";
    const char* text = "";
    api->cuGetErrorName(status, &name);
    api->cuGetErrorString(status, &text);
    throw CudaError(std::string("interop: starting the CUDA driver (cuInit): ") + name + " (" + text +
                    "); `nvidia-smi` shows whether the driver works");
  }
  return api.release();
}

/// The driver, once it is open, and whether callers get it counted. `mutex` is for both.
struct Opened {
  std::mutex mutex;
  const DriverApi* plain = nullptr;
  bool is_counted = false;
};
Opened& opened() {
  static auto* const driver = new Opened;
  return *driver;
}

std::atomic<const DriverApi*> g_driver{nullptr};  // what callers get
std::atomic<const char*> g_last_launch{nullptr};  // the name of a kernel that a user wrote

}  // namespace

// ---- shared with the rest of src/cuda ----

const DriverApi& driver() {
  const DriverApi* api = g_driver.load(std::memory_order_acquire);
  if (api) return *api;
  Opened& all = opened();
  std::lock_guard<std::mutex> lock(all.mutex);
  api = g_driver.load(std::memory_order_acquire);
  if (!api) {
    all.plain = open_driver();  // throws: the next call tries again
    api = all.is_counted ? &counting(*all.plain) : all.plain;
    g_driver.store(api, std::memory_order_release);
  }
  return *api;
}

void count_calls(bool is_counted) {
  Opened& all = opened();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.is_counted = is_counted;
  if (!all.plain) return;
  g_driver.store(is_counted ? &counting(*all.plain) : all.plain, std::memory_order_release);
}

const DriverApi* driver_or_null() noexcept { return g_driver.load(std::memory_order_acquire); }

bool has_gpu() {
  static std::atomic<bool> is_known{false};  // that there is none: looking for it takes its time
  if (is_known.load(std::memory_order_relaxed)) return false;
  try {
    driver();
    return true;
  } catch (const NoGpu&) {
    is_known.store(true, std::memory_order_relaxed);
    return false;
  }
}

int default_device() {
  int device = 0;
  return driver().cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : 0;
}

bool is_earlier_error(CUresult status) {
  switch (status) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
      return true;
    default:
      return false;
  }
}

void throw_status(CUresult status, const char* doing) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (const DriverApi* api = driver_or_null()) {
    api->cuGetErrorName(status, &name);
    api->cuGetErrorString(status, &text);
  }
  const std::string error = (name ? std::string(name) : "CUDA error " + std::to_string(static_cast<int>(status))) +
                            " (" + (text ? text : "unknown") + ")";
  if (is_earlier_error(status)) {
    const char* const last = g_last_launch.load(std::memory_order_relaxed);
    throw CudaError(std::string("interop: ") + doing + ": an earlier asynchronous error: " + error +
                    "; some kernel that was queued before has failed, and the context can run nothing more" +
                    (last ? std::string(" (the last kernel that a user wrote was ") + last + ")" : "") +
                    "; start the process again, with CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer to find it");
  }
  if (status == CUDA_ERROR_NO_BINARY_FOR_GPU) {
    throw CudaError(std::string("interop: ") + doing + ": " + error + "; this build holds kernels for " +
                    built_architectures() + ": build interop for this GPU");
  }
  throw CudaError(std::string("interop: ") + doing + ": " + error);
}

void note_launch(const char* kernel) noexcept { g_last_launch.store(kernel, std::memory_order_relaxed); }

std::uint64_t current_context_id(const char* doing) {
  unsigned long long id = 0;
  check(driver().cuCtxGetId(nullptr, &id), doing);
  return id;
}

int current_device(const char* doing) {
  int device = 0;
  check(driver().cuCtxGetDevice(&device), doing);
  return device;
}

int device_attribute(CUdevice_attribute name, int device) {
  int value = 0;
  check(driver().cuDeviceGetAttribute(&value, name, device), "reading a device's attributes");
  return value;
}

namespace {

/// Returns `read(device)`, which is never 0, and keeps it for each device.
template <typename Read>
int read_once(std::atomic<int> (&kept)[kMaxDevices], int device, Read read) {
  if (device < 0 || device >= kMaxDevices) check(CUDA_ERROR_INVALID_DEVICE, "selecting a device");
  int value = kept[device].load(std::memory_order_relaxed);
  if (value == 0) {
    value = read(device);
    kept[device].store(value, std::memory_order_relaxed);
  }
  return value;
}

}  // namespace

int multiprocessors(int device) {
  static std::atomic<int> counts[kMaxDevices];
  return read_once(counts, device,
                   [](int of) { return device_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, of); });
}

int l2_bytes(int device) {
  static std::atomic<int> bytes[kMaxDevices];
  return read_once(bytes, device, [](int of) { return device_attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, of); });
}

int compute_capability(int device) {
  static std::atomic<int> capabilities[kMaxDevices];
  return read_once(capabilities, device, [](int of) {
    return device_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, of) * 10 +
           device_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, of);
  });
}

// ---- the driver and its devices ----

int built_for() { return CUDA_VERSION; }
const char* built_architectures() { return INTEROP_BUILT_ARCHITECTURES; }
const char* built_compiler() { return INTEROP_BUILT_COMPILER; }

void require_driver() { driver(); }

void throw_status(int status, const char* doing) {
  const std::string what = std::string("interop: ") + doing + ": ";
  switch (status) {  // statuses that only the runtime has; the others have the driver's numbers
    case 9:
      throw CudaError(what + "cudaErrorInvalidConfiguration (the grid, the block or the shared memory is too large)");
    case 35:
      throw CudaError(what + "cudaErrorInsufficientDriver (the driver is older than the CUDA runtime of that code)");
    case 98:
      throw CudaError(what + "cudaErrorInvalidDeviceFunction (that code holds no such kernel for this GPU)");
    default:
      throw_status(static_cast<CUresult>(status), doing);
  }
}

int driver_version() {
  int version = 0;
  check(driver().cuDriverGetVersion(&version), "reading the driver's version");
  return version;
}

int device_count() {
  int count = 0;
  check(driver().cuDeviceGetCount(&count), "counting devices");
  return count;
}

DeviceInfo device_info(int device) {
  const DriverApi& api = driver();
  const char* const doing = "reading a device's attributes";
  CUdevice handle = 0;
  check(api.cuDeviceGet(&handle, device), "selecting a device");
  DeviceInfo info;
  char name[256] = "";
  check(api.cuDeviceGetName(name, sizeof name, handle), doing);
  info.name = name;
  check(api.cuDeviceGetAttribute(&info.compute_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle), doing);
  check(api.cuDeviceGetAttribute(&info.compute_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle), doing);
  info.multiprocessors = multiprocessors(device);
  check(api.cuDeviceTotalMem(&info.memory_bytes, handle), doing);
  return info;
}

}  // namespace interop::cuda
