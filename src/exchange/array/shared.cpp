/// Memory of the host that several processes map.
///
/// A cache, leaked on purpose, as memory may be given back while the process ends:
///   all pages             that this process has mapped, by their address
#include "exchange/array/shared.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <iterator>
#include <map>
#include <mutex>
#include <new>

namespace interop::exchange {

#ifdef __linux__
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;  // so that no process can take pages from another

struct AllPages {
  std::mutex mutex;
  std::map<uintptr_t, HostPages> by_address;
};
AllPages* all_pages = new AllPages;
// A forked child has the mappings, too; another thread may have held the lock.
const int registered = pthread_atfork(nullptr, nullptr, [] { new (&all_pages->mutex) std::mutex; });

void unmap(void* begin) {
  const std::lock_guard<std::mutex> lock(all_pages->mutex);
  const auto found = all_pages->by_address.find(reinterpret_cast<uintptr_t>(begin));
  munmap(begin, found->second.bytes);
  close(found->second.fd);
  all_pages->by_address.erase(found);
}

/// Maps the file, or closes it.
std::shared_ptr<void> map(int fd, size_t bytes, int protection) {
  const std::lock_guard<std::mutex> lock(all_pages->mutex);
  void* const begin = mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (begin == MAP_FAILED) {
    close(fd);
    throw std::bad_alloc();
  }
  const auto address = reinterpret_cast<uintptr_t>(begin);
  all_pages->by_address[address] = {fd, address, bytes};
  return std::shared_ptr<void>(begin, &unmap);
}

}  // namespace

std::shared_ptr<void> shared_host_memory(size_t bytes) {
  const profile::Stopwatch watch;
  const int fd = memfd_create("interop", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) throw std::bad_alloc();
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0 || fcntl(fd, F_ADD_SEALS, kSeals) != 0) {
    close(fd);
    throw std::bad_alloc();
  }
  std::shared_ptr<void> memory = map(fd, bytes, PROT_READ | PROT_WRITE);
  watch.note(profile::What::allocation, "host", bytes);
  return memory;
}

std::shared_ptr<void> map_host_memory(int fd, size_t bytes, bool read_only) {
  struct stat file{};
  const bool is_whole = fstat(fd, &file) == 0 && static_cast<size_t>(file.st_size) >= bytes && bytes > 0;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (!is_whole || seals < 0 || (seals & kSeals) != kSeals) {
    close(fd);
    throw ValueError("interop.open: what the owner sent is no memory of interop.share");
  }
  return map(fd, bytes, read_only ? PROT_READ : PROT_READ | PROT_WRITE);
}

std::optional<HostPages> host_pages(ByteRange range) {
  const std::lock_guard<std::mutex> lock(all_pages->mutex);
  const auto next = all_pages->by_address.upper_bound(range.begin);
  if (next == all_pages->by_address.begin()) return std::nullopt;
  const HostPages& pages = std::prev(next)->second;
  return range.end <= pages.begin + pages.bytes ? std::optional(pages) : std::nullopt;
}

#else  // no memfd_create

std::shared_ptr<void> shared_host_memory(size_t) {
  throw ValueError("interop: this system has no memory that interop.share can share; accepted: Linux");
}
std::shared_ptr<void> map_host_memory(int, size_t, bool) { return shared_host_memory(0); }
std::optional<HostPages> host_pages(ByteRange) { return std::nullopt; }

#endif

}  // namespace interop::exchange
