/// Memory of the host that several processes map: no name in a file system, so that nothing is left of it when the last
/// of them has ended, however it ends.
#pragma once

#include <memory>
#include <optional>

#include "exchange/array/array.h"

namespace interop::exchange {

/// What names such memory to another process, as long as it is mapped here.
struct HostPages {
  int fd = -1;  ///< to be sent; closed with the mapping
  uintptr_t begin = 0;
  size_t bytes = 0;
};

/// `bytes` > 0 of new memory, all 0, at the beginning of a page. Throws std::bad_alloc.
std::shared_ptr<void> shared_host_memory(size_t bytes);
/// The memory of another process. Takes over `fd`. Throws ValueError for what is no such memory of `bytes`.
std::shared_ptr<void> map_host_memory(int fd, size_t bytes, bool read_only);
/// Those that an array of any library lies in, which keeps them; none where it lies in other memory.
std::optional<HostPages> host_pages(ByteRange range);

}  // namespace interop::exchange
