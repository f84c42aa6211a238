/// Device memory: what a pointer points to, allocation, copies.
///
/// A cache, leaked on purpose so that no CUDA call runs while the process ends:
///   memory pools          one per device
#include <interop/cuda/graph.h>
#include <interop/cuda/memory.h>
#include <interop/error.h>

#include <atomic>
#include <mutex>

#include "cuda/driver/release.h"
#include "cuda/driver/streams.h"

namespace interop::cuda {

// ---- pointers ----

std::optional<int> pointer_device(const void* pointer) {
  int device = -1;
  const CUresult status = driver().cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                                         reinterpret_cast<CUdeviceptr>(pointer));
  if (status == CUDA_ERROR_INVALID_VALUE) return std::nullopt;
  check(status, "asking which device a pointer belongs to");
  if (device < 0) return std::nullopt;
  return device;
}

bool is_managed(const void* pointer) {
  unsigned int managed = 0;  // what this attribute writes
  const CUresult status =
      driver().cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, reinterpret_cast<CUdeviceptr>(pointer));
  if (status == CUDA_ERROR_INVALID_VALUE) return false;
  check(status, "asking whether memory is managed");
  return managed != 0;
}

// ---- the pool of a device ----

namespace {

std::atomic<CUmemoryPool> g_pools[kMaxDevices];

CUmemoryPool create_pool(const DriverApi& api, int device) {
  RelaxedCapture relaxed(api);
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;  // so that another process can be given memory
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  CUmemoryPool pool = nullptr;
  if (api.cuMemPoolCreate(&pool, &properties) != CUDA_SUCCESS) {  // not every system shares
    properties.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
    check(api.cuMemPoolCreate(&pool, &properties), "making a memory pool");
  }
  // Memory is kept, as other libraries' pools keep it: mapping it anew costs more than all else of an allocation.
  cuuint64_t all = ~cuuint64_t{0};
  check(api.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all), "making a memory pool");
  return pool;
}

}  // namespace

CUmemoryPool device_pool(const DriverApi& api, int device) {
  if (device < 0 || device >= kMaxDevices) check(CUDA_ERROR_INVALID_DEVICE, "selecting a device");
  const CUmemoryPool pool = g_pools[device].load(std::memory_order_acquire);
  if (pool) return pool;
  static std::mutex* const mutex = new std::mutex;
  const std::lock_guard<std::mutex> lock(*mutex);
  if (const CUmemoryPool made = g_pools[device].load(std::memory_order_acquire)) return made;
  const CUmemoryPool made = create_pool(api, device);
  g_pools[device].store(made, std::memory_order_release);
  return made;
}

// ---- memory ----

void* allocate(std::size_t bytes, cudaStream_t stream) {
  const DriverApi& api = driver();
  const int device = current_device("allocating device memory");
  release_pending(api, device);
  const CUmemoryPool pool = device_pool(api, device);
  RelaxedCapture relaxed(api);
  // Memory allocated inside a capture would exist only while the graph runs, so it is allocated on our own stream.
  const bool capturing = is_capturing(stream);
  if (capturing) stream = lasting_stream();
  CUdeviceptr pointer = 0;
  const CUresult status = api.cuMemAllocFromPoolAsync(&pointer, bytes, pool, stream);
  if (status == CUDA_ERROR_OUT_OF_MEMORY) {
    throw CudaError("interop: allocating " + std::to_string(bytes) +
                    " bytes of device memory: CUDA_ERROR_OUT_OF_MEMORY");
  }
  check(status, "allocating device memory");
  if (capturing) check(api.cuStreamSynchronize(stream), "allocating device memory");
  return reinterpret_cast<void*>(pointer);
}

void copy_to_device(void* device, const void* host, std::size_t bytes, cudaStream_t stream) {
  const DriverApi& api = driver();
  RelaxedCapture relaxed(api);
  check(api.cuMemcpyHtoDAsync(reinterpret_cast<CUdeviceptr>(device), host, bytes, stream), "copying to the device");
}

void copy_to_host(void* host, const void* device, std::size_t bytes, cudaStream_t stream) {
  const DriverApi& api = driver();
  RelaxedCapture relaxed(api);
  check(api.cuMemcpyDtoHAsync(host, reinterpret_cast<CUdeviceptr>(device), bytes, stream), "copying to the host");
}

void copy_on_device(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  check(
      driver().cuMemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes, stream),
      "copying on the device");
}

void copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  const DriverApi& api = driver();
  RelaxedCapture relaxed(api);
  check(api.cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes, stream),
        "copying memory");
}

void copy_between(void* to, int to_device, const void* from, int from_device, std::size_t bytes, cudaStream_t stream) {
  const DriverApi& api = driver();
  RelaxedCapture relaxed(api);
  check(api.cuMemcpyPeerAsync(reinterpret_cast<CUdeviceptr>(to), primary_context(api, to_device),
                              reinterpret_cast<CUdeviceptr>(from), primary_context(api, from_device), bytes, stream),
        "copying between devices");
}

void copy_rows(const Rows& to, const Rows& from, std::size_t row_bytes, std::size_t rows, std::size_t planes,
               cudaStream_t stream) {
  const DriverApi& api = driver();
  RelaxedCapture relaxed(api);
  const auto type = [](const Rows& side) { return side.on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE; };
  if (planes == 1) {
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = type(from);
    copy.srcHost = from.data;
    copy.srcDevice = reinterpret_cast<CUdeviceptr>(from.data);
    copy.srcPitch = from.pitch;
    copy.dstMemoryType = type(to);
    copy.dstHost = to.data;
    copy.dstDevice = reinterpret_cast<CUdeviceptr>(to.data);
    copy.dstPitch = to.pitch;
    copy.WidthInBytes = row_bytes;
    copy.Height = rows;
    return check(api.cuMemcpy2DAsync(&copy, stream), "copying rows of memory");
  }
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = type(from);
  copy.srcHost = from.data;
  copy.srcDevice = reinterpret_cast<CUdeviceptr>(from.data);
  copy.srcPitch = from.pitch;
  copy.srcHeight = from.plane / from.pitch;
  copy.dstMemoryType = type(to);
  copy.dstHost = to.data;
  copy.dstDevice = reinterpret_cast<CUdeviceptr>(to.data);
  copy.dstPitch = to.pitch;
  copy.dstHeight = to.plane / to.pitch;
  copy.WidthInBytes = row_bytes;
  copy.Height = rows;
  copy.Depth = planes;
  check(api.cuMemcpy3DAsync(&copy, stream), "copying planes of memory");
}

}  // namespace interop::cuda
