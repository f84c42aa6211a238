/// The whole of this layer in a build without CUDA (-DINTEROP_CUDA=OFF): every call says so.
#include <interop/cuda/driver.h>
#include <interop/cuda/elementwise.h>
#include <interop/cuda/graph.h>
#include <interop/cuda/matmul.h>
#include <interop/cuda/memory.h>
#include <interop/cuda/share.h>
#include <interop/cuda/tensor_map.h>
#include <interop/error.h>

namespace interop::cuda {
namespace {

[[noreturn]] void unavailable() {
  throw CudaError(
      "interop: built without CUDA (-DINTEROP_CUDA=OFF): host arrays only; for the GPU, install a build with CUDA");
}

}  // namespace

int built_for() { return 0; }
const char* built_architectures() { return ""; }
const char* built_compiler() { return ""; }

void require_driver() { unavailable(); }
int driver_version() { unavailable(); }
void throw_status(int, const char*) { unavailable(); }
int device_count() { unavailable(); }
DeviceInfo device_info(int) { unavailable(); }
void count_calls(bool) {}

DeviceGuard::DeviceGuard(int) { unavailable(); }
DeviceGuard::~DeviceGuard() = default;
ForeignGuard::ForeignGuard(int) { unavailable(); }
ForeignGuard::~ForeignGuard() = default;

std::optional<int> pointer_device(const void*) { unavailable(); }
bool is_managed(const void*) { unavailable(); }

void wait_stream(cudaStream_t, cudaStream_t) { unavailable(); }
void synchronize(cudaStream_t) { unavailable(); }
bool is_capturing(cudaStream_t) { unavailable(); }
bool give_to_graph(cudaStream_t, void*, void (*)(void*)) { unavailable(); }
cudaStream_t own_stream() { unavailable(); }
cudaStream_t lasting_stream() { unavailable(); }

uint64_t capture_id(cudaStream_t) { unavailable(); }
CaptureState capture_state(cudaStream_t) { unavailable(); }
cudaStream_t stream_to_capture() { unavailable(); }
void capture_own_stream(cudaStream_t) { unavailable(); }
bool own_stream_is_captured() { return false; }
void begin_capture(cudaStream_t) { unavailable(); }
void drop_capture(cudaStream_t) noexcept {}
GraphExec::GraphExec(cudaStream_t) { unavailable(); }
GraphExec::~GraphExec() = default;
void GraphExec::launch(cudaStream_t) const { unavailable(); }

Event::Event(cudaStream_t) { unavailable(); }
Event::~Event() = default;  // only an empty event can exist
Event& Event::operator=(Event&&) noexcept { return *this; }
Event Event::of_known_streams(int, const std::vector<cudaStream_t>&) { unavailable(); }
void Event::make_wait(cudaStream_t) const { unavailable(); }
bool Event::done() const { unavailable(); }
void Event::synchronize() const { unavailable(); }

void* allocate(std::size_t, cudaStream_t) { unavailable(); }
bool release(void*, int, const std::vector<cudaStream_t>&, std::shared_ptr<const Event>) noexcept { return true; }
void release_behind(const Event&, int) noexcept {}
void release(void*, int, cudaStream_t) noexcept {}
bool release_unless_captured(void*, int, cudaStream_t) noexcept { return true; }

void copy_to_device(void*, const void*, std::size_t, cudaStream_t) { unavailable(); }
void copy_to_host(void*, const void*, std::size_t, cudaStream_t) { unavailable(); }
void copy_on_device(void*, const void*, std::size_t, cudaStream_t) { unavailable(); }

bool has_gpu() { return false; }
int default_device() { unavailable(); }
TakenBlock take_block(MemoryKind, std::size_t, cudaStream_t) { unavailable(); }
bool give_block(Block*, const std::vector<cudaStream_t>&, std::shared_ptr<const Event>) noexcept { return true; }
void prefetch(const void*, std::size_t, int, cudaStream_t) { unavailable(); }
void advise(const void*, std::size_t, Advice, bool, int) { unavailable(); }
void copy(void*, const void*, std::size_t, cudaStream_t) { unavailable(); }
void copy_between(void*, int, const void*, int, std::size_t, cudaStream_t) { unavailable(); }
void copy_rows(const Rows&, const Rows&, std::size_t, std::size_t, std::size_t, cudaStream_t) { unavailable(); }
PoolState pool_state(MemoryKind, int) { unavailable(); }
void set_release_threshold(MemoryKind, int, uint64_t) { unavailable(); }
void trim_pool(MemoryKind, int, uint64_t) { unavailable(); }
void set_managed_limit(int, uint64_t) { unavailable(); }

std::string device_uuid(int) { unavailable(); }
std::optional<int> find_device(const std::string&) { unavailable(); }
FileDescriptor::FileDescriptor(int fd) : fd_(fd) {}
FileDescriptor::~FileDescriptor() = default;
SharedMemory share_memory(const void*, const std::string&) { unavailable(); }
SharedFlags::SharedFlags(void*, std::size_t) { unavailable(); }
SharedFlags::~SharedFlags() = default;
void SharedFlags::set(std::size_t, cudaStream_t) const { unavailable(); }
void SharedFlags::make_wait(std::size_t, cudaStream_t) const { unavailable(); }
OpenedMemory::OpenedMemory(const std::string&, const SharedMemory&, int) { unavailable(); }
OpenedMemory::~OpenedMemory() = default;

StagingBlock* take_staging_block(cudaStream_t) noexcept { return nullptr; }
void give_staging_block(StagingBlock*) noexcept {}

PassShape compiled_shape(const Elementwise&) { unavailable(); }
void launch_elementwise(const ElementwiseStep&, const Elementwise&, cudaStream_t) { unavailable(); }
void launch_elementwise(const CompiledPass&, const Elementwise&, cudaStream_t) { unavailable(); }
void launch_arange(void*, int64_t, DLDataType, const ScalarValue&, const ScalarValue&, cudaStream_t) { unavailable(); }
std::string describe(const ElementwiseStep&, const Elementwise&) { unavailable(); }
std::string describe(const Elementwise&) { unavailable(); }

Library& load_library(const std::string&, const std::string&, bool) { unavailable(); }
Kernel& find_kernel(Library&, const std::string&) { unavailable(); }
Kernel& adopt_kernel(void*, bool) { unavailable(); }
bool is_of_one_context(const Kernel&) { unavailable(); }
std::vector<std::string> kernel_symbols(const Library&) { unavailable(); }
std::optional<std::vector<std::size_t>> parameter_bytes(Kernel&) { unavailable(); }
Variable find_variable(Library&, const std::string&) { unavailable(); }
void write_variable(Library&, const Variable&, const void*, bool, cudaStream_t) { unavailable(); }
void read_variable(Library&, const Variable&, void*, cudaStream_t) { unavailable(); }
std::string architecture_name(int) { unavailable(); }
void launch_kernel(Kernel&, const Launch&, const char*, void**, int, cudaStream_t) { unavailable(); }
void require_tensor_maps(int, const char*, const char*) { unavailable(); }
void check_tensor_map(const TensorMapForm&, const DLTensor&, const char*, const char*) { unavailable(); }
TensorMap TensorMaps::of(const DLTensor&, int, const char*, const char*) { unavailable(); }

MatmulPlan plan_matmul(const Gemm&, const MatmulOptions&) { unavailable(); }
std::size_t largest_workspace(const Gemm&, const MatmulOptions&) { return 0; }
void launch_matmul(const Gemm&, const MatmulPlan&, void*, cudaStream_t) { unavailable(); }
std::string describe(const Gemm&, const MatmulPlan&) { unavailable(); }
std::size_t tuning_bytes(const Gemm&, const MatmulOptions&) { unavailable(); }
void tune_matmul(const Gemm&, const MatmulOptions&, void*, cudaStream_t) { unavailable(); }
std::vector<MatmulChoice> choices(int) { unavailable(); }
bool keep_choice(int, const MatmulChoice&) { unavailable(); }
std::string cublas_version() { return ""; }
std::string cublas_status() { return "not used: built without CUDA (-DINTEROP_CUDA=OFF)"; }
void set_cublas_paths(const char* const*, int) {}

}  // namespace interop::cuda
