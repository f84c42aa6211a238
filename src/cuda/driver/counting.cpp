/// The driver's functions, counted for profiles. Callers have them in place of the plain ones only while a profile
/// runs: otherwise they cost nothing.
#include "cuda/driver/counting.h"

#include <interop/profile.h>

namespace interop::cuda {
namespace {

using profile::What;

const DriverApi* g_plain = nullptr;  // written before any of these can be called

/// Calls a function of the driver, and notes that if it succeeds.
template <class... Parameters, class... Arguments>
CUresult counted(What what, const char* kind, std::size_t bytes, CUresult (*function)(Parameters...),
                 Arguments... arguments) {
  const profile::Stopwatch watch;
  const CUresult status = function(arguments...);
  if (status == CUDA_SUCCESS) watch.note(what, kind, bytes);
  return status;
}

// ---- allocations ----

CUresult CUDAAPI allocate_from_pool(CUdeviceptr* pointer, std::size_t bytes, CUmemoryPool pool, CUstream stream) {
  return counted(What::allocation, "device", bytes, g_plain->cuMemAllocFromPoolAsync, pointer, bytes, pool, stream);
}

CUresult CUDAAPI allocate_async(CUdeviceptr* pointer, std::size_t bytes, CUstream stream) {
  return counted(What::allocation, "device", bytes, g_plain->cuMemAllocAsync, pointer, bytes, stream);
}

CUresult CUDAAPI allocate_managed(CUdeviceptr* pointer, std::size_t bytes, unsigned int flags) {
  return counted(What::allocation, "managed", bytes, g_plain->cuMemAllocManaged, pointer, bytes, flags);
}

CUresult CUDAAPI allocate_pinned(void** pointer, std::size_t bytes, unsigned int flags) {
  return counted(What::allocation, "pinned", bytes, g_plain->cuMemHostAlloc, pointer, bytes, flags);
}

// ---- transfers ----

/// Managed memory is a device's, of no particular one.
struct Side {
  bool on_host;
  int device;  // -1: none, or none in particular
};

Side side_of(CUdeviceptr pointer) {
  unsigned int managed = 0, type = 0;
  int device = -1;
  const auto ask = [&](void* answer, CUpointer_attribute what) {
    return g_plain->cuPointerGetAttribute(answer, what, pointer) == CUDA_SUCCESS;
  };
  if (ask(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED) && managed) return {false, -1};
  if (!ask(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) || type == CU_MEMORYTYPE_HOST) return {true, -1};
  ask(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
  return {false, device};
}

const char* direction(const Side& to, const Side& from) {
  if (to.device >= 0 && from.device >= 0 && to.device != from.device) return profile::kPeer;
  return profile::kind_of_transfer(from.on_host, to.on_host);
}

/// Of CUDA_MEMCPY2D or CUDA_MEMCPY3D.
template <class Copy>
const char* direction_of(const Copy& copy) {
  const auto side = [](CUmemorytype type, CUdeviceptr pointer) {
    return type == CU_MEMORYTYPE_HOST ? Side{true, -1} : side_of(pointer);
  };
  return direction(side(copy.dstMemoryType, copy.dstDevice), side(copy.srcMemoryType, copy.srcDevice));
}

CUresult CUDAAPI copy_to_device(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
  return counted(What::transfer, profile::kHostToDevice, bytes, g_plain->cuMemcpyHtoDAsync, to, from, bytes, stream);
}

CUresult CUDAAPI copy_to_host(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return counted(What::transfer, profile::kDeviceToHost, bytes, g_plain->cuMemcpyDtoHAsync, to, from, bytes, stream);
}

CUresult CUDAAPI copy_on_device(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return counted(What::transfer, profile::kDeviceToDevice, bytes, g_plain->cuMemcpyDtoDAsync, to, from, bytes, stream);
}

CUresult CUDAAPI copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  const char* const kind = direction(side_of(to), side_of(from));
  return counted(What::transfer, kind, bytes, g_plain->cuMemcpyAsync, to, from, bytes, stream);
}

CUresult CUDAAPI copy_between(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                              std::size_t bytes, CUstream stream) {
  return counted(What::transfer, profile::kPeer, bytes, g_plain->cuMemcpyPeerAsync, to, to_context, from, from_context,
                 bytes, stream);
}

CUresult CUDAAPI copy_2d(const CUDA_MEMCPY2D* copy, CUstream stream) {
  const std::size_t bytes = copy->WidthInBytes * copy->Height;
  return counted(What::transfer, direction_of(*copy), bytes, g_plain->cuMemcpy2DAsync, copy, stream);
}

CUresult CUDAAPI copy_3d(const CUDA_MEMCPY3D* copy, CUstream stream) {
  const std::size_t bytes = copy->WidthInBytes * copy->Height * copy->Depth;
  return counted(What::transfer, direction_of(*copy), bytes, g_plain->cuMemcpy3DAsync, copy, stream);
}

CUresult CUDAAPI prefetch(CUdeviceptr pointer, std::size_t bytes, CUdevice device, CUstream stream) {
  return counted(What::transfer, "prefetch", bytes, g_plain->cuMemPrefetchAsync_v1, pointer, bytes, device, stream);
}

// ---- waits ----

const char* by_thread(const char* users) { return profile::is_background() ? "interop's own thread for event" : users; }

CUresult CUDAAPI synchronize_stream(CUstream stream) {
  return counted(What::wait, by_thread("host for stream"), 0, g_plain->cuStreamSynchronize, stream);
}

CUresult CUDAAPI synchronize_event(CUevent event) {
  return counted(What::wait, by_thread("host for event"), 0, g_plain->cuEventSynchronize, event);
}

CUresult CUDAAPI wait_event(CUstream stream, CUevent event, unsigned int flags) {
  return counted(What::wait, "stream for event", 0, g_plain->cuStreamWaitEvent, stream, event, flags);
}

constexpr const char* kFree = "host for device, to free memory";

CUresult CUDAAPI free_managed(CUdeviceptr pointer) {
  return counted(What::wait, by_thread(kFree), 0, g_plain->cuMemFree, pointer);
}

CUresult CUDAAPI free_pinned(void* pointer) {
  return counted(What::wait, by_thread(kFree), 0, g_plain->cuMemFreeHost, pointer);
}

// ---- launches ----

constexpr const char* kKernel = "kernel";

CUresult CUDAAPI launch(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                        CUstream stream, void** parameters, void** extra) {
  return counted(What::launch, kKernel, 0, g_plain->cuLaunchKernel, function, grid_x, grid_y, grid_z, block_x, block_y,
                 block_z, shared_bytes, stream, parameters, extra);
}

CUresult CUDAAPI launch_with_attributes(const CUlaunchConfig* config, CUfunction function, void** parameters,
                                        void** extra) {
  return counted(What::launch, kKernel, 0, g_plain->cuLaunchKernelEx, config, function, parameters, extra);
}

DriverApi replaced(DriverApi api) {
  api.cuMemAllocFromPoolAsync = &allocate_from_pool;
  api.cuMemAllocAsync = &allocate_async;
  api.cuMemAllocManaged = &allocate_managed;
  api.cuMemHostAlloc = &allocate_pinned;
  api.cuMemcpyHtoDAsync = &copy_to_device;
  api.cuMemcpyDtoHAsync = &copy_to_host;
  api.cuMemcpyDtoDAsync = &copy_on_device;
  api.cuMemcpyAsync = &copy;
  api.cuMemcpyPeerAsync = &copy_between;
  api.cuMemcpy2DAsync = &copy_2d;
  api.cuMemcpy3DAsync = &copy_3d;
  api.cuMemPrefetchAsync_v1 = &prefetch;
  api.cuStreamSynchronize = &synchronize_stream;
  api.cuEventSynchronize = &synchronize_event;
  api.cuStreamWaitEvent = &wait_event;
  api.cuMemFree = &free_managed;
  api.cuMemFreeHost = &free_pinned;
  api.cuLaunchKernel = &launch;
  api.cuLaunchKernelEx = &launch_with_attributes;
  return api;
}

}  // namespace

const DriverApi& counting(const DriverApi& plain) {
  g_plain = &plain;
  static const DriverApi* const api = new DriverApi(replaced(plain));
  return *api;
}

}  // namespace interop::cuda
