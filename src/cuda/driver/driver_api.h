/// The CUDA driver as this layer calls it: opened at run time, every status checked. Private to src/cuda.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace interop::cuda {

/// The functions of libcuda that we use. cuda.h maps most names to a versioned symbol; so do these members.
struct DriverApi {
  // clang-format off
#define INTEROP_DRIVER_FUNCTIONS(X)                                                                              \
  X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetErrorString)                                          \
  X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetName) X(cuDeviceGetAttribute) X(cuDeviceTotalMem)              \
  X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease)                                                       \
  X(cuCtxGetCurrent) X(cuCtxGetDevice) X(cuCtxGetId) X(cuCtxPushCurrent) X(cuCtxPopCurrent)                       \
  X(cuPointerGetAttribute)                                                                                       \
  X(cuStreamCreate) X(cuStreamQuery) X(cuStreamSynchronize) X(cuStreamWaitEvent)                                 \
  X(cuThreadExchangeStreamCaptureMode) X(cuStreamGetId)                                                          \
  X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize)                      \
  X(cuEventElapsedTime) X(cuMemsetD8Async)                                                                       \
  X(cuMemAllocAsync) X(cuMemFreeAsync) X(cuMemHostAlloc) X(cuMemFreeHost)                                        \
  X(cuMemPoolCreate) X(cuMemPoolSetAttribute) X(cuMemPoolGetAttribute) X(cuMemPoolTrimTo)                        \
  X(cuMemAllocFromPoolAsync) X(cuMemAllocManaged) X(cuMemFree)                                                   \
  X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync) X(cuMemcpyDtoDAsync) X(cuMemcpyAsync)                                \
  X(cuMemcpyPeerAsync) X(cuMemcpy2DAsync) X(cuMemcpy3DAsync)                                                     \
  X(cuUserObjectCreate) X(cuUserObjectRelease) X(cuGraphRetainUserObject)                                        \
  X(cuLibraryLoadData) X(cuLibraryGetKernel) X(cuLibraryGetGlobal) X(cuLibraryGetManaged)                         \
  X(cuModuleLoadDataEx) X(cuModuleUnload)                                                                        \
  X(cuKernelGetFunction) X(cuFuncGetAttribute) X(cuFuncSetAttribute) X(cuLaunchKernel) X(cuLaunchKernelEx)       \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor) X(cuOccupancyMaxActiveClusters)                                 \
  X(cuTensorMapEncodeTiled)                                                                                      \
  X(cuDeviceGetUuid) X(cuMemGetAddressRange) X(cuMemHostGetDevicePointer) X(cuStreamWriteValue32) X(cuStreamWaitValue32)                                                                     \
  X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle) X(cuIpcCloseMemHandle) X(cuMemHostRegister) X(cuMemHostUnregister) \
  X(cuMemPoolDestroy) X(cuMemPoolExportToShareableHandle)                                  \
  X(cuMemPoolImportFromShareableHandle) X(cuMemPoolExportPointer) X(cuMemPoolImportPointer)                      \
  X(cuMemRetainAllocationHandle) X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle)               \
  X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemRelease)
// clang-format on
#define X(name) decltype(&::name) name;
  INTEROP_DRIVER_FUNCTIONS(X)
#undef X
  // Version 2 by name, since every driver that we accept has it and version 3 (CUDA 12.3) adds nothing we read.
  CUresult (*cuStreamGetCaptureInfo_v2)(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*, const CUgraphNode**,
                                        std::size_t*);
  // Version 1 by name, since CUDA 13 has no other name for it; version 2 adds the nodes of the host's memory.
  CUresult (*cuMemPrefetchAsync_v1)(CUdeviceptr, std::size_t, CUdevice, CUstream);
  CUresult (*cuMemAdvise_v1)(CUdeviceptr, std::size_t, CUmem_advise, CUdevice);
  // Null in a driver before CUDA 12.4. By name, since the headers may be older, too.
  CUresult (*cuLibraryGetKernelCount)(unsigned*, CUlibrary);
  CUresult (*cuLibraryEnumerateKernels)(CUkernel*, unsigned, CUlibrary);
  CUresult (*cuKernelGetName)(const char**, CUkernel);
  CUresult (*cuKernelGetParamInfo)(CUkernel, std::size_t, std::size_t*, std::size_t*);
  CUresult (*cuFuncGetParamInfo)(CUfunction, std::size_t, std::size_t*, std::size_t*);
};

/// The driver, opened and initialised. Throws CudaError as `require_driver` does; after the first success it costs
/// one load and one branch.
const DriverApi& driver();
/// The same, or null. Never throws.
const DriverApi* driver_or_null() noexcept;

/// Can a call report this status only because a kernel queued before has failed?
bool is_earlier_error(CUresult status);
/// Throws CudaError: "interop: <doing>: CUDA_ERROR_NAME (CUDA's text)". A status that can only come from a kernel that
/// ran before is named an earlier asynchronous error.
[[noreturn]] void throw_status(CUresult status, const char* doing);
inline void check(CUresult status, const char* doing) {
  if (status != CUDA_SUCCESS) throw_status(status, doing);
}

/// From here on, such an error names this kernel as the last one that a user launched. The text lives as long as the
/// process.
void note_launch(const char* kernel) noexcept;

inline constexpr int kMaxDevices = 256;  // for arrays with an entry for each device

/// The id of the current context: never used twice in a process.
std::uint64_t current_context_id(const char* doing);
int current_device(const char* doing);
int multiprocessors(int device);
int l2_bytes(int device);
int device_attribute(CUdevice_attribute name, int device);
/// 90 for compute capability 9.0.
int compute_capability(int device);

/// While it lives, this thread may do what CUDA forbids beside a stream capture (allocate, load a module, query an
/// event): none of it is part of the captured work.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const DriverApi& api) : api_(api) { api_.cuThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { api_.cuThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const DriverApi& api_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace interop::cuda
