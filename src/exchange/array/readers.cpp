/// The streams that may still read memory of ours when its last owner releases it.
#include "exchange/array/readers.h"

#include <algorithm>

namespace interop::exchange {
namespace {

const Lookup kTorchHasStreams("torch.cuda", "is_initialized");  // not a torch without CUDA, whose streams raise
const Lookup kTorchStream("torch.cuda", "current_stream");
const Lookup kCupyStream("cupy.cuda", "get_current_stream");
const Lookup kCupyType("cupy.cuda", "Stream");
const Name kCudaStream("cuda_stream");
const Name kStreamId("stream_id");
const Name kPtr("ptr");

bool is_loaded(const char* module) { return PyDict_GetItemString(PyImport_GetModuleDict(), module) != nullptr; }

/// torch's current stream, if it is one of torch's own, which are never destroyed. (The id of an external one is its
/// handle.)
bool is_torchs(cudaStream_t stream, int device) {
  if (!nb::cast<bool>(kTorchHasStreams.get()())) return false;
  const nb::object current = kTorchStream.get()(device);
  const auto handle = static_cast<int64_t>(reinterpret_cast<uintptr_t>(stream));
  return to_int64(attribute(current, kCudaStream)) == handle && to_int64(attribute(current, kStreamId)) != handle;
}

/// CuPy's current stream, if it is `stream`: an object that keeps it alive.
nb::object cupys(cudaStream_t stream, int device) {
  const nb::object current = kCupyStream.get()(device);
  const auto handle = static_cast<int64_t>(reinterpret_cast<uintptr_t>(stream));
  const bool owns = nb::cast<bool>(nb::bool_(PyObject_IsInstance(current.ptr(), kCupyType.get().ptr()) == 1));
  return owns && to_int64(attribute(current, kPtr)) == handle ? current : nb::object();
}

}  // namespace

bool Readers::has(cudaStream_t stream) const {
  return std::find(streams_.begin(), streams_.end(), stream) != streams_.end();
}

// Asking the libraries calls Python, which lets other threads run. So no lock is held meanwhile: a thread that holds
// the GIL would wait for it for ever.
void Readers::note(cudaStream_t stream, int device) {
  if (stream == cuda::kLegacyStream || stream == cuda::kPerThreadStream) return;  // always waited for
  if (has(stream)) return;
  nb::object object;
  const bool lives_for_ever = is_loaded("torch.cuda") && is_torchs(stream, device);
  if (!lives_for_ever && is_loaded("cupy")) object = cupys(stream, device);
  if ((!lives_for_ever && !object.is_valid()) || has(stream)) return;
  streams_.push_back(stream);
  if (object.is_valid()) kept_.push_back(std::move(object));
}

void Readers::release(void* memory, int device, std::shared_ptr<const cuda::Event> last_use) noexcept {
  let_go(cuda::release(memory, device, streams_, std::move(last_use)));
}

void Readers::release(cuda::Block* block, std::shared_ptr<const cuda::Event> last_use) noexcept {
  let_go(cuda::give_block(block, streams_, std::move(last_use)));
}

void Readers::let_go(bool is_freed) noexcept {
  std::vector<Held> held;
  for (nb::object& object : kept_) {
    if (is_freed) {
      held.emplace_back();
      held.back().object = std::move(object);
    } else {
      object.release();  // a capture prevented that: the free comes later, and needs the streams then
    }
  }
  kept_.clear();
  if (!held.empty()) give_back_later(std::move(held));
}

void Readers::hold(std::vector<Held> owners, int device) {
  for (nb::object& object : kept_) {
    owners.emplace_back();
    owners.back().object = std::move(object);
  }
  kept_.clear();
  hold_behind_known_streams(device, std::move(owners), std::move(streams_));
}

}  // namespace interop::exchange
