/// Device memory that several processes use.
///
/// Caches, leaked on purpose so that no CUDA call runs while the process ends:
///   mappings       of other processes' allocations, one for each, by the process and the address that it has there;
///                  gone with the last array on it
///   opened pools   of other processes, by the process and the pool; each as long as a mapping is of it
#include <fcntl.h>
#include <interop/cuda/share.h>
#include <interop/error.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "cuda/driver/release.h"
#include "cuda/driver/streams.h"

namespace interop::cuda {

static_assert(sizeof(CUipcMemHandle) == sizeof(ShareHandle));
static_assert(sizeof(CUmemPoolPtrExportData) == sizeof(ShareHandle));

namespace {

/// CUDA's own name of a status.
std::string name_of(CUresult status) {
  const char* name = nullptr;
  driver().cuGetErrorName(status, &name);
  return name ? name : "CUDA error " + std::to_string(static_cast<int>(status));
}

template <class T>
T attribute(CUpointer_attribute which, const void* data) {
  T value{};
  const CUresult status = driver().cuPointerGetAttribute(&value, which, reinterpret_cast<CUdeviceptr>(data));
  if (status != CUDA_ERROR_INVALID_VALUE && status != CUDA_ERROR_NOT_SUPPORTED) check(status, "asking what memory is");
  return status == CUDA_SUCCESS ? value : T{};
}

constexpr const char* kRemedy = "; accepted: device memory of interop.empty, or copy=True, which shares a copy";

[[noreturn]] void refuse(const std::string& label, const std::string& what) {
  throw BufferError(label + " is " + what + kRemedy);
}

void* as_handle(int fd) { return reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)); }

}  // namespace

// ---- GPUs ----

std::string device_uuid(int device) {
  CUuuid uuid{};
  check(driver().cuDeviceGetUuid(&uuid, device), "reading a device's attributes");
  return std::string(uuid.bytes, sizeof uuid.bytes);
}

std::optional<int> find_device(const std::string& uuid) {
  const int count = device_count();
  for (int device = 0; device < count; ++device) {
    if (device_uuid(device) == uuid) return device;
  }
  return std::nullopt;
}

// ---- file descriptors ----

FileDescriptor::FileDescriptor(int fd) : fd_(fd) {
  if (fd >= 0) fcntl(fd, F_SETFD, FD_CLOEXEC);
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

// ---- giving away ----

namespace {

void share_by_ipc(SharedMemory& memory, const std::string& label) {
  CUipcMemHandle handle{};
  const CUresult status = driver().cuIpcGetMemHandle(&handle, memory.base);
  if (is_earlier_error(status)) check(status, "sharing memory");
  if (status != CUDA_SUCCESS) {
    refuse(label, "memory of cuMemAlloc, of which this system gives other processes no handle (cuIpcGetMemHandle: " +
                      name_of(status) + "; in a container, its own IPC namespace may be why)");
  }
  std::memcpy(memory.handle.data(), &handle, sizeof handle);
}

std::shared_ptr<const FileDescriptor> export_pool(const DriverApi& api, CUmemoryPool pool, CUresult& status) {
  int fd = -1;
  status = api.cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  return status == CUDA_SUCCESS ? std::make_shared<const FileDescriptor>(fd) : nullptr;
}

/// The same of interop's own pool of the current device: one for all that is shared.
std::shared_ptr<const FileDescriptor> export_own_pool(const DriverApi& api, CUmemoryPool pool, CUresult& status) {
  struct Own {
    std::mutex mutex;
    std::map<CUmemoryPool, std::shared_ptr<const FileDescriptor>> exported;
  };
  static auto* const own = new Own;
  const std::lock_guard<std::mutex> lock(own->mutex);
  std::shared_ptr<const FileDescriptor>& kept = own->exported[pool];
  if (!kept) kept = export_pool(api, pool, status);
  return kept;
}

void share_by_pool(SharedMemory& memory, CUmemoryPool pool, const std::string& label) {
  const DriverApi& api = driver();
  const bool is_own = pool == device_pool(api, current_device("sharing memory"));
  CUresult status = CUDA_SUCCESS;
  memory.fd = is_own ? export_own_pool(api, pool, status) : export_pool(api, pool, status);
  memory.pool = reinterpret_cast<std::uintptr_t>(pool);
  CUmemPoolPtrExportData data{};
  if (status == CUDA_SUCCESS) status = api.cuMemPoolExportPointer(&data, memory.base);
  if (is_earlier_error(status)) check(status, "sharing memory");
  if (status != CUDA_SUCCESS) {
    throw BufferError(label + " is memory of a pool, which this system does not share (" + name_of(status) +
                      "); accepted: memory of cuMemAlloc, as torch and CuPy have it by default");
  }
  std::memcpy(memory.handle.data(), &data, sizeof data);
}

void share_by_pages(SharedMemory& memory, const void* data, const std::string& label) {
  const DriverApi& api = driver();
  CUmemGenericAllocationHandle pages{};
  check(api.cuMemRetainAllocationHandle(&pages, const_cast<void*>(data)), "sharing memory");
  int fd = -1;
  const CUresult status = api.cuMemExportToShareableHandle(&fd, pages, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  api.cuMemRelease(pages);
  if (is_earlier_error(status)) check(status, "sharing memory");
  if (status != CUDA_SUCCESS) {
    refuse(label, "memory of cuMemCreate, which gives other processes no file descriptor (" + name_of(status) + ")");
  }
  memory.fd = std::make_shared<const FileDescriptor>(fd);
}

}  // namespace

SharedMemory share_memory(const void* data, const std::string& label) {
  const DriverApi& api = driver();
  RelaxedCapture relaxed(api);
  if (attribute<unsigned>(CU_POINTER_ATTRIBUTE_IS_MANAGED, data)) {
    refuse(label, "managed memory, which its own process alone can map");
  }
  CUdeviceptr base = 0;
  SharedMemory memory;
  check(api.cuMemGetAddressRange(&base, &memory.bytes, reinterpret_cast<CUdeviceptr>(data)), "asking what memory is");
  memory.base = base;
  const bool has_fd = attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, data) &
                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (const auto pool = attribute<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, data)) {
    if (!has_fd) {
      refuse(label,
             "memory of a pool that was not made to be shared (cudaMallocAsync, or an allocator on it), or another "
             "process's already");
    }
    memory.by = SharedBy::pool;
    share_by_pool(memory, pool, label);
  } else if (attribute<int>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, data)) {
    memory.by = SharedBy::ipc;
    share_by_ipc(memory, label);
  } else if (has_fd) {
    memory.by = SharedBy::pages;
    const auto whole = attribute<std::size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, data);
    if (whole != attribute<std::size_t>(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, data)) {
      refuse(label,
             "memory of addresses that allocations of cuMemCreate come to and go from, as torch's expandable segments "
             "are (PYTORCH_ALLOC_CONF=expandable_segments:False)");
    }
    share_by_pages(memory, data, label);
  } else {
    refuse(label, "memory of cuMemCreate that was not made to be shared, or another process's already");
  }
  return memory;
}

// ---- flags ----

SharedFlags::SharedFlags(void* memory, std::size_t bytes)
    : memory_(memory), bytes_(bytes), device_(current_device("sharing flags")) {
  const DriverApi& api = driver();
  RelaxedCapture relaxed(api);
  check(api.cuMemHostRegister(memory, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
        "sharing flags");
}

SharedFlags::~SharedFlags() {
  try {  // a driver that has shut down: the memory goes with it
    const DriverApi& api = driver();
    RelaxedCapture relaxed(api);
    const PrimaryContext current(api, device_);
    api.cuMemHostUnregister(memory_);
  } catch (const CudaError&) {
  }
}

std::uintptr_t SharedFlags::address_of(std::size_t index) const {
  CUdeviceptr address = 0;
  check(driver().cuMemHostGetDevicePointer(&address, memory_, 0), "sharing flags");
  if ((index + 1) * sizeof(cuuint32_t) > bytes_) check(CUDA_ERROR_INVALID_VALUE, "sharing flags");
  return address + index * sizeof(cuuint32_t);
}

void SharedFlags::set(std::size_t index, cudaStream_t stream) const {
  const DriverApi& api = driver();
  RelaxedCapture relaxed(api);
  check(api.cuStreamWriteValue32(stream, address_of(index), 1, CU_STREAM_WRITE_VALUE_DEFAULT), "setting a flag");
}

void SharedFlags::make_wait(std::size_t index, cudaStream_t stream) const {
  const DriverApi& api = driver();
  RelaxedCapture relaxed(api);
  check(api.cuStreamWaitValue32(stream, address_of(index), 1, CU_STREAM_WAIT_VALUE_GEQ), "waiting for a flag");
}

// ---- opening ----

struct OpenedMemory::Mapping {
  SharedBy by;
  int device;
  std::size_t bytes;
  std::uintptr_t pool;  // of the owner's, that the memory is of
  CUdeviceptr data = 0;
  int users = 0;
};

struct OpenedMemory::Pool {
  CUmemoryPool opened = nullptr;
  int users = 0;
};

struct OpenedMemory::Mappings {
  using Key = std::pair<std::string, std::uintptr_t>;  // the owner, and an address there

  std::mutex mutex;  // held while memory is mapped and unmapped, too: none is mapped twice
  std::map<Key, Mapping> all;
  std::map<Key, Pool> pools;

  CUmemoryPool open_pool(const Key& key, int fd);
  void close_pool(const Key& key);
};

OpenedMemory::Mappings& OpenedMemory::mappings() {
  static auto* const all = new Mappings;
  return *all;
}

namespace {

constexpr const char* kOpening = "opening memory of another process";

CUdeviceptr open_by_ipc(const SharedMemory& memory) {
  CUipcMemHandle handle{};
  std::memcpy(&handle, memory.handle.data(), sizeof handle);
  CUdeviceptr data = 0;
  const CUresult status = driver().cuIpcOpenMemHandle(&data, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (status != CUDA_SUCCESS && !is_earlier_error(status)) {
    throw CudaError(std::string("interop: ") + kOpening + " (cuIpcOpenMemHandle): " + name_of(status) +
                    "; where a container has its own IPC namespace, interop.share(x, copy=True) may do");
  }
  check(status, kOpening);
  return data;
}

CUmemoryPool import_pool(int fd) {
  CUmemoryPool pool = nullptr;
  check(driver().cuMemPoolImportFromShareableHandle(&pool, as_handle(fd), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        kOpening);
  return pool;
}

CUdeviceptr open_in_pool(const SharedMemory& memory, CUmemoryPool pool) {
  CUmemPoolPtrExportData handle{};
  std::memcpy(&handle, memory.handle.data(), sizeof handle);
  CUdeviceptr data = 0;
  check(driver().cuMemPoolImportPointer(&data, pool, &handle), kOpening);
  return data;
}

CUdeviceptr open_by_pages(const SharedMemory& memory, int device) {
  const DriverApi& api = driver();
  CUmemGenericAllocationHandle pages{};
  check(
      api.cuMemImportFromShareableHandle(&pages, as_handle(memory.fd->get()), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      kOpening);
  CUdeviceptr data = 0;
  CUresult status = api.cuMemAddressReserve(&data, memory.bytes, 0, 0, 0);
  if (status == CUDA_SUCCESS) status = api.cuMemMap(data, memory.bytes, 0, pages, 0);
  api.cuMemRelease(pages);  // the mapping keeps them
  if (status == CUDA_SUCCESS) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {device}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    status = api.cuMemSetAccess(data, memory.bytes, &access, 1);
    if (status != CUDA_SUCCESS) api.cuMemUnmap(data, memory.bytes);
  }
  if (status != CUDA_SUCCESS) {
    if (data) api.cuMemAddressFree(data, memory.bytes);
    check(status, kOpening);
  }
  return data;
}

}  // namespace

CUmemoryPool OpenedMemory::Mappings::open_pool(const Key& key, int fd) {
  Pool& pool = pools[key];
  if (!pool.opened) {
    try {
      pool.opened = import_pool(fd);
    } catch (...) {
      pools.erase(key);
      throw;
    }
  }
  ++pool.users;
  return pool.opened;
}

void OpenedMemory::Mappings::close_pool(const Key& key) {
  const auto found = pools.find(key);
  if (--found->second.users > 0) return;
  driver().cuMemPoolDestroy(found->second.opened);
  pools.erase(found);
}

OpenedMemory::OpenedMemory(const std::string& owner, const SharedMemory& memory, int device)
    : key_(owner, memory.base) {
  Mappings& known = mappings();
  const std::lock_guard<std::mutex> lock(known.mutex);
  if (memory.by != SharedBy::ipc && !memory.fd && known.all.count(key_) == 0) throw NeedsFile();
  const auto [found, is_new] = known.all.try_emplace(key_, Mapping{memory.by, device, memory.bytes, memory.pool});
  Mapping& mapping = found->second;
  if (is_new) {
    const DriverApi& api = driver();
    try {
      RelaxedCapture relaxed(api);
      const PrimaryContext current(api, device);
      if (memory.by == SharedBy::ipc) {
        mapping.data = open_by_ipc(memory);
      } else if (memory.by == SharedBy::pages) {
        mapping.data = open_by_pages(memory, device);
      } else {
        const CUmemoryPool pool = known.open_pool({owner, memory.pool}, memory.fd->get());
        try {
          mapping.data = open_in_pool(memory, pool);
        } catch (...) {
          known.close_pool({owner, memory.pool});
          throw;
        }
      }
    } catch (...) {
      known.all.erase(found);
      throw;
    }
  }
  ++mapping.users;
  data_ = reinterpret_cast<void*>(mapping.data);
}

OpenedMemory::~OpenedMemory() {
  Mappings& known = mappings();
  const std::lock_guard<std::mutex> lock(known.mutex);
  const auto found = known.all.find(key_);
  const Mapping& mapping = found->second;
  if (--found->second.users > 0) return;
  try {  // a driver that has shut down, or a broken context: the mapping goes with them
    const DriverApi& api = driver();
    RelaxedCapture relaxed(api);
    const PrimaryContext current(api, mapping.device);
    if (mapping.by == SharedBy::ipc) {
      api.cuIpcCloseMemHandle(mapping.data);
    } else if (mapping.by == SharedBy::pages) {
      api.cuMemUnmap(mapping.data, mapping.bytes);
      api.cuMemAddressFree(mapping.data, mapping.bytes);
    } else {
      api.cuMemFree(mapping.data);
      known.close_pool({key_.first, mapping.pool});
    }
  } catch (const CudaError&) {
  }
  known.all.erase(found);
}

}  // namespace interop::cuda
