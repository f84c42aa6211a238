/// The table of <interop/c_api.h>: each function runs a method of `exchange::Call`, and turns C++ errors into Python
/// errors.
#include <interop/api.h>
#include <interop/cuda/memory.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "exchange/array/array.h"
#include "exchange/call.h"
#include "exchange/closing.h"
#include "exchange/explain.h"
#include "exchange/python.h"
#include "exchange/route.h"

namespace interop {
namespace exchange {
namespace {

/// A call, and what its module sees of it.
struct SharedCall : InteropCall {
  SharedCall(const char* function, const InteropArgument* arguments, int count, const InteropOptions& options)
      : call(function, arguments, count, options) {
    const int operands = call.operand_count();
    if (operands > kFew) many = std::make_unique<const DLTensor*[]>(static_cast<size_t>(operands));
    const DLTensor** tensors = many ? many.get() : few;
    for (int i = 0; i < operands; ++i) tensors[i] = &call.tensor(i);
    this->arguments = tensors;
    out = call.has_out() ? tensors[count] : nullptr;
    library = call.operand(0).route->library();
    stream = call.stream();
    device = call.on_host() ? -1 : call.device();
    argument_count = count;
    staged = call.staged();
  }

  static constexpr int kFew = 16;

  const CallGuard guard;
  Call call;
  const DLTensor* few[kFew];
  std::unique_ptr<const DLTensor*[]> many;
};

Call& call_of(InteropCall* call) { return static_cast<SharedCall*>(call)->call; }

// The memory of calls that have ended, for the next ones: 20 KB of malloc would take longer than all of this file. Each
// thread may be in a call, as a launch lets the GIL go. Used with the GIL.
constexpr int kSpares = 16;
void* spares[kSpares];
int spare_count = 0;

void* take_memory() { return spare_count > 0 ? spares[--spare_count] : ::operator new(sizeof(SharedCall)); }

struct GiveBack {
  void operator()(void* memory) const {
    if (spare_count == kSpares) {
      ::operator delete(memory);
    } else {
      spares[spare_count++] = memory;
    }
  }
};

/// Runs `body` and returns its result. If it throws, sets the Python error and returns `failed`.
template <class Result, class Body>
Result as_c(Result failed, Body&& body) noexcept {
  try {
    return body();
  } catch (...) {
    set_python_error();
    return failed;
  }
}
/// The same for a call: a CudaError names it.
template <class Result, class Body>
Result as_c(Result failed, const char* function, bool has_execution, Body&& body) noexcept {
  return as_c(failed, [&] { return as_call(function, has_execution, body); });
}
template <class Result, class Body>
Result as_c(Result failed, const Call& call, Body&& body) noexcept {
  return as_c(failed, call.function(), call.staged(), body);
}

InteropCall* make_call(const char* function, const InteropArgument* arguments, int32_t count,
                       const InteropOptions* options) {
  const nb::handle execution = options->execution;
  return as_c<InteropCall*>(nullptr, function, execution.is_valid() && !execution.is_none(), [&] {
    std::unique_ptr<void, GiveBack> memory(take_memory());
    SharedCall* call = new (memory.get()) SharedCall(function, arguments, count, *options);
    memory.release();
    return call;
  });
}

void release_call(InteropCall* call) {
  static_cast<SharedCall*>(call)->~SharedCall();
  GiveBack()(static_cast<SharedCall*>(call));
}

int check(InteropCall* call, int32_t i, const InteropConstraint* constraint) {
  return as_c(-1, [&] {
    call_of(call).check(i, *constraint);
    return 0;
  });
}

int is_conjugated(const InteropCall* call, int32_t i) {
  return static_cast<const SharedCall*>(call)->call.operand(i).conjugated;
}

}  // namespace

bool is_read_only(const InteropCall& call, int i) {
  return static_cast<const SharedCall&>(call).call.operand(i).read_only;
}

namespace {

const DLTensor* output(InteropCall* call, const int64_t* shape, int32_t ndim, DLDataType dtype) {
  return as_c<const DLTensor*>(nullptr, call_of(call), [&] {
    const auto refuse = [&](const std::string& what) {
      throw ValueError(call_of(call).function() + std::string(": the result has ") + what);
    };
    if (ndim < 0 || ndim > kMaxDims) {
      refuse(std::to_string(ndim) + " dimensions; accepted: up to " + std::to_string(kMaxDims));
    }
    if (ndim > 0 && !shape) refuse("no shape; accepted: a size for each dimension");
    Shape sizes;
    sizes.ndim = ndim;
    std::copy(shape, shape + ndim, sizes.sizes);
    if (std::any_of(shape, shape + ndim, [](int64_t size) { return size < 0; })) {
      refuse("shape " + shape_text(sizes) + "; accepted: no negative sizes");
    }
    return &call_of(call).output(sizes, dtype);
  });
}

int workspace(InteropCall* call, size_t bytes, void** memory) {
  return as_c(-1, call_of(call), [&] {
    *memory = call_of(call).workspace(bytes);
    return 0;
  });
}

PyObject* numpy(InteropCall* call, int32_t i) {
  return as_c<PyObject*>(nullptr, [&] { return call_of(call).numpy(i).release().ptr(); });
}

PyObject* numpy_output(InteropCall* call, int32_t i) {
  return as_c<PyObject*>(nullptr, [&] { return call_of(call).numpy_output(i).release().ptr(); });
}

PyObject* explain_call(InteropCall* call) {
  return as_c<PyObject*>(nullptr, call_of(call), [&] { return explain(call_of(call)).release().ptr(); });
}

PyObject* hand_over(InteropCall* call) {
  return as_c<PyObject*>(nullptr, call_of(call), [&] { return call_of(call).hand_over().release().ptr(); });
}

void set_error(InteropError kind, const char* message) {
  as_c(0, [&]() -> int {
    switch (kind) {
      case INTEROP_TYPE_ERROR:
        throw TypeError(message);
      case INTEROP_VALUE_ERROR:
        throw ValueError(message);
      case INTEROP_BUFFER_ERROR:
        throw BufferError(message);
      case INTEROP_CUDA_ERROR:
        throw CudaError(message);
    }
    throw std::runtime_error(message);
  });
}

int define(PyObject* module, const char* name, const char* parameters, InteropFunction function, int32_t graph_safe) {
  return as_c(-1, [&] {
    nb::module_::import_("interop._compiled")
        .attr("define")(nb::handle(module), name, parameters, reinterpret_cast<uintptr_t>(function), graph_safe != 0);
    return 0;
  });
}

// ---- memory of no call ----

struct Allocation {
  std::shared_ptr<void> memory;
  DLDeviceType type;
};

/// Every block that is out, by its address.
struct Allocations {
  std::mutex mutex;
  std::unordered_map<const void*, Allocation> blocks;
};

// Never destroyed: containers may give memory back after static destruction.
Allocations& allocations() {
  static auto* const all = new Allocations;
  return *all;
}

void* allocate(size_t bytes, int32_t type) {
  return as_c<void*>(nullptr, [&]() -> void* {
    const auto memory_type = static_cast<DLDeviceType>(type);
    if (memory_type != kDLCPU && memory_type != kDLCUDAHost && memory_type != kDLCUDAManaged) {
      throw ValueError("interop: allocate: type is " + std::to_string(type) +
                       "; accepted: 1, 3 or 13, DLPack's types " + "of host, pinned and managed memory");
    }
    Shape shape;
    shape.ndim = 1;
    shape.sizes[0] = static_cast<int64_t>(std::max(bytes, size_t{1}));
    Array array;
    if (memory_type == kDLCPU || !cuda::has_gpu()) {
      array = new_array(shape, {kDLUInt, 8, 1}, {kDLCPU, 0}, nullptr);
    } else {
      enter_foreign("interop.allocate", "CUDA");
      const cuda::DeviceGuard guard(cuda::default_device());
      const cudaStream_t stream = cuda::own_stream();
      array = new_array(shape, {kDLUInt, 8, 1}, {memory_type, 0}, stream);
      array.make_host_wait();  // the caller may write at once
    }
    const std::lock_guard<std::mutex> lock(allocations().mutex);
    allocations().blocks[array.data] = {array.memory, array.device.device_type};
    return array.data;
  });
}

void deallocate(void* memory) {
  Allocation back;
  Allocations& all = allocations();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.blocks.find(memory);
  if (found == all.blocks.end()) return;
  back = std::move(found->second);
  all.blocks.erase(found);
}

int32_t memory_type(const void* memory) {
  Allocations& all = allocations();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.blocks.find(memory);
  return found == all.blocks.end() ? kDLCPU : found->second.type;
}

}  // namespace
}  // namespace exchange

const InteropApi core_api{INTEROP_API_VERSION,     sizeof(InteropApi),      &exchange::make_call,
                          &exchange::release_call, &exchange::check,        &exchange::is_conjugated,
                          &exchange::output,       &exchange::workspace,    &exchange::numpy,
                          &exchange::numpy_output, &exchange::explain_call, &exchange::hand_over,
                          &exchange::set_error,    &exchange::define,       &exchange::allocate,
                          &exchange::deallocate,   &exchange::memory_type};

}  // namespace interop
