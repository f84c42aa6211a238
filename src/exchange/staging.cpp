/// Host arrays, computed on the GPU because `execution=` asks for it: their way there and back.
#include "exchange/staging.h"

#include <algorithm>
#include <cstring>

#include "exchange/array/array.h"
#include "exchange/call.h"
#include "exchange/python.h"
#include "exchange/routes/buffer.h"

namespace interop::exchange {
namespace {

const Lookup kAscontiguousarray("numpy", "ascontiguousarray");
const Lookup kCopyto("numpy", "copyto");

constexpr std::size_t kAlignment = 256;  // as the driver's own allocations have
std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::size_t byte_count(const DLTensor& tensor) {
  return static_cast<std::size_t>(element_count(tensor) * item_bytes(tensor.dtype));
}

/// Does the tensor fill its byte range without holes, in some order of its dimensions?
bool is_dense(const DLTensor& tensor) {
  const ByteRange range = byte_range(tensor);
  return range.end - range.begin == byte_count(tensor) && !may_overlap_itself(tensor);
}

}  // namespace

// ---- device memory and copies ----

Staging::~Staging() {
  if (!block_) return;
  if (!has_finished_) {  // an error came between: work may still be queued on the block
    try {
      const nb::gil_scoped_release no_gil;
      cuda::synchronize(stream_);
    } catch (const CudaError&) {
      return;  // the context can run nothing more, and the block is not used again
    }
  }
  cuda::give_staging_block(block_);
}

void Staging::Range::add(std::size_t at, std::size_t bytes) {
  begin = std::min(begin, at);
  end = std::max(end, at + bytes);
}

/// The block, if there is one and it has room.
cuda::StagingBlock* Staging::block_for(std::size_t bytes) {
  if (bytes > kMostBytes) return nullptr;
  if (!has_asked_) block_ = cuda::take_staging_block(stream_);
  has_asked_ = true;
  return block_ && aligned(bytes) <= high_ - low_ ? block_ : nullptr;
}

bool Staging::in_block(const void* device) const {
  return block_ && as_char(device) >= block_->device && as_char(device) < block_->device + cuda::StagingBlock::kBytes;
}

void* Staging::allocate(std::size_t bytes) {
  const auto release = [device = device_, stream = stream_](void* pointer) { cuda::release(pointer, device, stream); };
  large_.emplace_back(cuda::allocate(bytes, stream_), release);
  return large_.back().get();
}

void* Staging::place(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  if (!block_for(bytes)) return allocate(bytes);
  char* const placed = block_->device + low_;
  low_ += aligned(bytes);
  return placed;
}

void* Staging::workspace(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  if (!block_for(bytes)) return allocate(bytes);
  high_ -= aligned(bytes);
  return block_->device + high_;
}

void Staging::send(void* device, const void* host, std::size_t bytes) {
  if (bytes == 0) return;
  if (!in_block(device)) return cuda::copy_to_device(device, host, bytes, stream_);
  std::memcpy(block_->host + offset(device), host, bytes);
  unsent_.add(offset(device), bytes);
}

void Staging::flush() {
  if (unsent_.end == 0) return;
  cuda::copy_to_device(block_->device + unsent_.begin, block_->host + unsent_.begin, unsent_.end - unsent_.begin,
                       stream_);
  unsent_ = {};
}

void Staging::finish() {
  Range range;
  for (const Fetched& f : fetched_) {
    if (in_block(f.device)) range.add(offset(f.device), f.bytes);
  }
  if (range.end > 0) {
    cuda::copy_to_host(block_->host + range.begin, block_->device + range.begin, range.end - range.begin, stream_);
  }
  for (const Fetched& f : fetched_) {
    if (!in_block(f.device)) cuda::copy_to_host(f.host, f.device, f.bytes, stream_);
  }
  cuda::synchronize(stream_);
  for (const Fetched& f : fetched_) {
    if (in_block(f.device)) std::memcpy(f.host, block_->host + offset(f.device), f.bytes);
  }
  has_finished_ = true;
}

// ---- the arrays of a call ----

void Call::stage() {
  staging_ = std::make_unique<Staging>(device_, stream_);
  for (int i = 0; i < argument_count_; ++i) {
    Operand& operand = operands_[i];
    if (is_dense(operand.tensor)) continue;
    nb::object array = numpy(i);
    operand.resolved = kAscontiguousarray.get()(array);
    read_buffer(operand, operand.resolved);
    if (operand.is_output) strided_.push_back({std::move(array), operand.resolved});
  }
  const nb::gil_scoped_release no_gil;
  // Those of a kind lie side by side: what is only read, what is read and written, what is only written.
  const auto kind = [](const Operand& operand) { return !operand.is_output ? 0 : operand.is_read ? 1 : 2; };
  for (int k = 0; k < 3; ++k) {
    for (int i = 0; i < argument_count_; ++i) {
      if (kind(operands_[i]) == k) stage(operands_[i]);
    }
  }
  staging_->flush();
}

void Call::stage(Operand& operand) {
  // A dense array is copied as it lies, so that a transposed one stays transposed.
  const ByteRange range = byte_range(operand.tensor);
  const size_t bytes = byte_count(operand.tensor);
  const uintptr_t offset = reinterpret_cast<uintptr_t>(operand.tensor.data) - range.begin;
  char* const copy = static_cast<char*>(staging_->place(bytes));
  if (operand.is_read) staging_->send(copy, reinterpret_cast<const void*>(range.begin), bytes);
  if (operand.is_output) staging_->fetch(reinterpret_cast<void*>(range.begin), copy, bytes);
  operand.tensor.data = copy ? copy + offset : nullptr;
  operand.tensor.device = {kDLCUDA, device_};
}

void Call::unstage() {
  for (int i = 0; i < result_count_; ++i) {
    const Result& made = result(i);
    void* target = made.tensor.data;
    if (!is_compact(made.tensor)) {  // host memory to copy from, where the result's own is strided
      nb::object compact = nb::cast(new_array(made.shape, made.output.dtype, {kDLCPU, 0}, nullptr));
      target = nb::cast<Array&>(compact).data;
      strided_.push_back({numpy_output(i), std::move(compact)});
    }
    staging_->fetch(target, made.output.data, byte_count(made.output));
  }
  {
    const nb::gil_scoped_release no_gil;
    staging_->finish();
  }
  for (const Strided& s : strided_) kCopyto.get()(s.array, s.compact);
}

}  // namespace interop::exchange
