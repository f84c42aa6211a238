/// Kernels that are compiled at run time. Knows no Python.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

typedef struct CUstream_st* cudaStream_t;

namespace interop::cuda {

/// A kernel, made ready in each context that launches it.
struct Kernel;

/// A compiled image that was loaded: a cubin, PTX or a fatbin. It is kept for the life of the process.
struct Library;

/// Loads an image, for every device that it has code for. `origin` is what messages call it, such as "scale.ptx
/// (PTX 9.0 for sm_80)". A stream may be captured meanwhile. Throws CudaError that says what is accepted; what is wrong
/// may show only when a kernel is first used on a device, in the same words. `has_variables`, or may have some:
/// launches of its kernels are ordered with what `write_variable` and `read_variable` do, which takes an event for each
/// launch.
Library& load_library(const std::string& image, const std::string& origin, bool has_variables);
/// The kernel of that symbol, kept for the life of the process. Throws CudaError if there is none.
Kernel& find_kernel(Library& library, const std::string& symbol);
/// A kernel that another library has loaded, kept for the life of the process; its owner keeps the handle valid. A
/// CUfunction (`is_function`) is of one context, a CUkernel of all.
Kernel& adopt_kernel(void* handle, bool is_function);
/// Is it of one context alone, as a CUfunction is?
bool is_of_one_context(const Kernel& kernel);
/// The symbols of all its kernels. Throws CudaError with a driver before CUDA 12.4, which cannot list them.
std::vector<std::string> kernel_symbols(const Library& library);
/// The sizes of the kernel's parameters, on the current device; none with a driver before CUDA 12.4, which does not
/// say.
std::optional<std::vector<std::size_t>> parameter_bytes(Kernel& kernel);

/// A variable of an image, `__device__`, `__constant__` or `__managed__`, on the current device.
struct Variable {
  void* address;
  std::size_t bytes;
  bool managed;  ///< one for all devices
};
/// Throws CudaError if there is none of that symbol. Call it without the GIL, as the driver may compile PTX here.
Variable find_variable(Library& library, const std::string& symbol);
/// Queues a copy of `variable.bytes` from `from` to the variable, behind all launches of the library's kernels and all
/// writes that were queued before, on any stream; later ones come behind it. Pageable memory of the host is read before
/// this returns; in a capture, all memory is read as the graph runs. Call it without the GIL.
void write_variable(Library& library, const Variable& variable, const void* from, bool from_host, cudaStream_t stream);
/// Copies the variable to the host, in the same order, and waits for it. Not in a capture. Call it without the GIL.
void read_variable(Library& library, const Variable& variable, void* to, cudaStream_t stream);

/// What NVRTC calls a device's architecture: "sm_90".
std::string architecture_name(int device);

/// How a kernel is launched, in blocks (grid, cluster) and threads (block) along x, y, z.
struct Launch {
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned cluster[3] = {0, 0, 0};  ///< of thread blocks; 0: what the kernel itself says
  unsigned shared_bytes = 0;        ///< of dynamic shared memory; more than 48 KB is allowed to the kernel where needed
  bool cooperative = false;         ///< all blocks run at once, and may wait for each other
  bool dependent = false;           ///< may begin before the work that is ahead of it on the stream is done

  bool is_empty() const { return grid[0] == 0 || grid[1] == 0 || grid[2] == 0; }
};

/// Queues a launch on `stream`, which is one of `device`, the current one. `parameters` point to the values, each of
/// its parameter's size. A grid of no blocks launches nothing. Throws ValueError for threads, grid, shared memory,
/// cluster, cooperative or dependent launch beyond what the device or the kernel allows; the message has the limit.
/// `name` is the kernel's name in messages. It lives as long as the process: a later asynchronous error names the last
/// kernel.
void launch_kernel(Kernel& kernel, const Launch& launch, const char* name, void** parameters, int device,
                   cudaStream_t stream);

}  // namespace interop::cuda
