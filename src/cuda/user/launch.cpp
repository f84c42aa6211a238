/// Launches kernels that users wrote, and explains why a launch was refused.
#include <interop/error.h>

#include <optional>
#include <string>

#include "cuda/driver/kernel.h"
#include "cuda/driver/library.h"
#include "cuda/driver/variables.h"

namespace interop::cuda {
namespace {

constexpr std::uint64_t kAlwaysAllowed = 48 << 10;  // bytes of shared memory that every kernel may have
constexpr unsigned kPortableCluster = 8;            // blocks

std::string text(const unsigned (&sizes)[3]) {
  return "(" + std::to_string(sizes[0]) + ", " + std::to_string(sizes[1]) + ", " + std::to_string(sizes[2]) + ")";
}

std::uint64_t product(const unsigned (&sizes)[3]) { return std::uint64_t{sizes[0]} * sizes[1] * sizes[2]; }

/// One launch, and the limits of the device and the kernel.
class Attempt {
 public:
  Attempt(Kernel& kernel, const Launch& launch, const char* name, int device)
      : kernel_(kernel), launch_(launch), name_(name), device_(device) {}

  CUresult run(CUfunction function, void** parameters, cudaStream_t stream) const {
    const unsigned (&g)[3] = launch_.grid;
    const unsigned (&b)[3] = launch_.block;
    const bool clusters = launch_.cluster[0] != 0;
    if (!clusters && !launch_.cooperative && !launch_.dependent) {
      return driver().cuLaunchKernel(function, g[0], g[1], g[2], b[0], b[1], b[2], launch_.shared_bytes, stream,
                                     parameters, nullptr);
    }
    CUlaunchAttribute attributes[3] = {};
    unsigned count = 0;
    if (clusters) {
      CUlaunchAttribute& attribute = attributes[count++];
      attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
      attribute.value.clusterDim.x = launch_.cluster[0];
      attribute.value.clusterDim.y = launch_.cluster[1];
      attribute.value.clusterDim.z = launch_.cluster[2];
    }
    if (launch_.cooperative) {
      CUlaunchAttribute& attribute = attributes[count++];
      attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
      attribute.value.cooperative = 1;
    }
    if (launch_.dependent) {
      CUlaunchAttribute& attribute = attributes[count++];
      attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
      attribute.value.programmaticStreamSerializationAllowed = 1;
    }
    const CUlaunchConfig config{g[0], g[1], g[2], b[0], b[1], b[2], launch_.shared_bytes, stream, attributes, count};
    return driver().cuLaunchKernelEx(&config, function, parameters, nullptr);
  }

  /// Does the launch use only features that every device and kernel allows?
  bool is_plain() const {
    return shared_bytes() <= kAlwaysAllowed && launch_.cluster[0] == 0 && !launch_.cooperative && !launch_.dependent;
  }

  /// Allows the kernel all the shared memory that the device has for it, and large clusters. It never allows less, as
  /// another thread may be about to launch the kernel with more.
  void allow() const {
    if (shared_bytes() > kAlwaysAllowed) {
      const int own = kernel_.own_shared_bytes.load(std::memory_order_relaxed);
      set(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most_shared_bytes() - own);
    }
    if (product(launch_.cluster) > kPortableCluster) set(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
  }

  /// Throws for what this device does not support, as far as that can be queried before the launch.
  void check_device() const {
    if (launch_.cluster[0] != 0 && !of_device(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH)) {
      refuse("cluster is " + text(launch_.cluster), "None, as this device has no clusters of thread blocks");
    }
    if (launch_.cooperative && !of_device(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)) {
      refuse("cooperative is True", "False, as this device cannot launch cooperatively");
    }
    if (launch_.dependent && compute_capability(device_) < 90) {
      refuse("dependent_launch is True", "False, as this device has no compute capability of 9.0 or later");
    }
    const auto most = static_cast<std::uint64_t>(most_shared_bytes());
    if (shared_bytes() > most) {
      refuse("shared is " + std::to_string(launch_.shared_bytes) + " bytes, beside " +
                 std::to_string(kernel_.own_shared_bytes.load(std::memory_order_relaxed)) + " that the kernel declares",
             "up to " + std::to_string(most) + " together");
    }
  }

  /// Throws for a launch that the driver refused. The message names the limit that it exceeds, if that can be found.
  [[noreturn]] void explain(CUresult status) const {
    static constexpr CUdevice_attribute kMostThreads[] = {
        CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z};
    static constexpr CUdevice_attribute kMostBlocks[] = {
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z};
    if (is_earlier_error(status)) throw_status(status, doing().c_str());
    unsigned most[3], blocks[3];
    for (int i = 0; i < 3; ++i) {
      most[i] = static_cast<unsigned>(of_device(kMostThreads[i]));
      blocks[i] = static_cast<unsigned>(of_device(kMostBlocks[i]));
    }
    const auto threads = static_cast<std::uint64_t>(of_kernel(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
    for (int i = 0; i < 3; ++i) {
      if (launch_.block[i] > most[i]) refuse("block is " + text(launch_.block), "up to " + text(most));
      if (launch_.grid[i] > blocks[i]) refuse("grid is " + text(launch_.grid), "up to " + text(blocks));
      if (launch_.cluster[0] != 0 && launch_.grid[i] % launch_.cluster[i] != 0) {
        refuse("grid is " + text(launch_.grid), "whole clusters, of " + text(launch_.cluster) + " blocks");
      }
    }
    if (product(launch_.block) > threads) {
      refuse("block is " + text(launch_.block) + ", " + std::to_string(product(launch_.block)) + " threads",
             "up to " + std::to_string(threads) + ", by the device, the kernel's registers and its __launch_bounds__");
    }
    if (launch_.cooperative) {
      const std::uint64_t resident = most_resident();
      if (product(launch_.grid) > resident) {
        refuse("grid is " + text(launch_.grid) + ", " + std::to_string(product(launch_.grid)) + " blocks",
               "up to " + std::to_string(resident) + ", which run at once, as the launch is cooperative");
      }
    }
    if (launch_.cluster[0] != 0 && (status == CUDA_ERROR_INVALID_VALUE || status == CUDA_ERROR_INVALID_CLUSTER_SIZE)) {
      refuse("cluster is " + text(launch_.cluster),
             "up to 8 blocks, 16 on some devices, as far as they run at once with block, shared and the kernel's "
             "registers");
    }
    throw_status(status, doing().c_str());
  }

  std::string doing() const { return std::string("launching ") + name_; }

 private:
  [[noreturn]] void refuse(const std::string& found, const std::string& accepted) const {
    throw ValueError(std::string(name_) + ": " + found + "; accepted: " + accepted);
  }

  CUfunction function() const {
    const CUkernel handle = kernel_.handle.load(std::memory_order_relaxed);
    if (kernel_.is_function) return reinterpret_cast<CUfunction>(handle);
    CUfunction function = nullptr;
    check(driver().cuKernelGetFunction(&function, handle), doing().c_str());
    return function;
  }

  int of_device(CUdevice_attribute name) const { return device_attribute(name, device_); }
  int most_shared_bytes() const { return of_device(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN); }

  int of_kernel(CUfunction_attribute name) const {
    int value = 0;
    check(driver().cuFuncGetAttribute(&value, name, function()), doing().c_str());
    return value;
  }

  /// Dynamic shared memory, and what the kernel declares.
  std::uint64_t shared_bytes() const {
    const int own = kernel_.own_shared_bytes.load(std::memory_order_relaxed);
    return std::uint64_t{launch_.shared_bytes} + static_cast<std::uint64_t>(own);
  }

  void set(CUfunction_attribute name, int value) const {
    RelaxedCapture relaxed(driver());
    check(driver().cuFuncSetAttribute(function(), name, value), doing().c_str());
  }

  std::uint64_t most_resident() const {
    int blocks = 0;
    check(driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
              &blocks, function(), static_cast<int>(product(launch_.block)), launch_.shared_bytes),
          doing().c_str());
    return static_cast<std::uint64_t>(blocks) * static_cast<std::uint64_t>(multiprocessors(device_));
  }

  Kernel& kernel_;
  const Launch& launch_;
  const char* name_;
  int device_;
};

}  // namespace

void launch_kernel(Kernel& kernel, const Launch& launch, const char* name, void** parameters, int device,
                   cudaStream_t stream) {
  if (launch.is_empty()) return;
  const Attempt attempt(kernel, launch, name, device);
  const CUfunction function = ready(kernel, "launching a kernel", "loading a kernel that was compiled at run time");
  if (!attempt.is_plain()) {
    attempt.check_device();
    attempt.allow();
  }
  std::optional<VariableOrder::Step> step;
  if (kernel.library && kernel.library->order) {
    step.emplace(*kernel.library->order, VariableOrder::Step::Kind::launch, stream, false);
  }
  const CUresult status = attempt.run(function, parameters, stream);
  if (status != CUDA_SUCCESS) attempt.explain(status);
  if (step) step->queued();
  note_launch(name);
}

}  // namespace interop::cuda
