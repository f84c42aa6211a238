/// Host arrays, computed on the GPU because `execution=` asks for it: their way there and back.
#include "exchange/staging.h"

#include <interop/profile.h>

#include <cstring>

#include "exchange/array/array.h"
#include "exchange/call.h"
#include "exchange/python.h"
#include "exchange/routes/buffer.h"

namespace interop::exchange {
namespace {

const Lookup kAscontiguousarray("numpy", "ascontiguousarray");
const Lookup kCopyto("numpy", "copyto");

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMostKept = 1024 * kKiB;  // of an array in the block
// What is sooner by way of page-locked memory, as measured on three hosts with an H200. Smaller arrays the driver
// writes into its commands; of larger ones it copies one part on the host while the device copies the part before.
constexpr std::size_t kLeastSentByHost = 96 * kKiB + 1, kMostSentByHost = 384 * kKiB;
constexpr std::size_t kMostFetchedByHost = 512 * kKiB;

/// Larger arrays always get pages that nobody has used, which the operating system must make first.
constexpr std::size_t kMostReused = 32 * 1024 * kKiB;
constexpr std::size_t kPage = 4 * kKiB;

constexpr std::size_t kAlignment = 256;  // as the driver's own allocations have
std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::size_t byte_count(const DLTensor& tensor) {
  return static_cast<std::size_t>(element_count(tensor) * item_bytes(tensor.dtype));
}

}  // namespace

// ---- device memory and copies ----

Staging::~Staging() {
  if (!has_finished_ && (block_ || !large_.empty())) {  // an error came between: work and copies may still be queued
    try {
      const nb::gil_scoped_release no_gil;
      cuda::synchronize(stream_);
    } catch (const CudaError&) {
      return;  // the context can run nothing more, and the block is not used again
    }
  }
  if (block_) cuda::give_staging_block(block_);
}

void* Staging::place(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  if (bytes <= kMostKept) {
    if (!has_asked_) block_ = cuda::take_staging_block(stream_);
    has_asked_ = true;
    if (block_ && aligned(bytes) <= cuda::StagingBlock::kBytes - used_) {
      char* const placed = block_->device + used_;
      used_ += aligned(bytes);
      return placed;
    }
  }
  const auto release = [device = device_, stream = stream_](void* pointer) { cuda::release(pointer, device, stream); };
  large_.emplace_back(cuda::allocate(bytes, stream_), release);
  return large_.back().get();
}

char* Staging::beside(const void* device) const {
  const char* const at = static_cast<const char*>(device);
  if (!block_ || at < block_->device || at >= block_->device + cuda::StagingBlock::kBytes) return nullptr;
  return block_->host + (at - block_->device);
}

void Staging::send(void* device, const void* host, std::size_t bytes) {
  if (bytes == 0) return;
  char* const staged = bytes >= kLeastSentByHost && bytes <= kMostSentByHost ? beside(device) : nullptr;
  if (staged) std::memcpy(staged, host, bytes);
  cuda::copy_to_device(device, staged ? staged : host, bytes, stream_);
}

void Staging::finish() {
  for (const Fetched& f : fetched_) {  // makes the pages while the device works
    if (!f.is_new || f.bytes <= kMostReused) continue;
    for (std::size_t at = 0; at < f.bytes; at += kPage) static_cast<volatile char*>(f.host)[at] = 0;
  }
  const auto staged = [&](const Fetched& f) { return f.bytes <= kMostFetchedByHost ? beside(f.device) : nullptr; };
  for (const Fetched& f : fetched_) {
    char* const to = staged(f);
    cuda::copy_to_host(to ? to : f.host, f.device, f.bytes, stream_);
  }
  cuda::synchronize(stream_);
  for (const Fetched& f : fetched_) {
    if (const char* const from = staged(f)) std::memcpy(f.host, from, f.bytes);
  }
  has_finished_ = true;
}

// ---- the arrays of a call ----

std::vector<Call::Copied> Call::copies() const {
  std::vector<Copied> copies(static_cast<size_t>(argument_count_));
  for (int i = 0; i < argument_count_; ++i) {
    copies[i].of = i;
    for (int j = 0; j < i && copies[i].of == i; ++j) {
      if (is_same(operands_[i].tensor, operands_[j].tensor)) copies[i].of = copies[j].of;
    }
    Copied& copied = copies[copies[i].of];
    copied.is_sent = copied.is_sent || operands_[i].is_read;
    copied.is_fetched = copied.is_fetched || operands_[i].is_output;
  }
  for (int i = 0; i < argument_count_; ++i) {  // one array that is given twice, and written, is one on the device, too
    if (!copies[copies[i].of].is_fetched) copies[i].of = i;
    if (copies[i].of == i) copies[i].is_sent = copies[i].is_sent || operands_[i].is_read;
  }
  return copies;
}

void Call::stage() {
  const std::vector<Copied> copies = this->copies();
  for (int i = 0; i < argument_count_; ++i) {
    Operand& operand = operands_[i];
    if (copies[i].of != i || is_dense(operand.tensor)) continue;
    nb::object array = numpy(i);
    const profile::Stopwatch watch;
    operand.resolved = kAscontiguousarray.get()(array);
    watch.note(profile::What::transfer, profile::kHostToHost, byte_count(operand.tensor));
    read_buffer(operand, operand.resolved);
    if (copies[i].is_fetched) strided_.push_back({std::move(array), operand.resolved});
  }
  const nb::gil_scoped_release no_gil;
  for (int i = 0; i < argument_count_; ++i) {
    if (copies[i].of == i) {
      stage(operands_[i], copies[i]);
    } else {
      operands_[i].tensor = operands_[copies[i].of].tensor;
    }
  }
}

void Call::stage(Operand& operand, const Copied& copied) {
  // A dense array is copied as it lies, so that a transposed one stays transposed.
  const ByteRange range = byte_range(operand.tensor);
  const size_t bytes = byte_count(operand.tensor);
  const uintptr_t offset = reinterpret_cast<uintptr_t>(operand.tensor.data) - range.begin;
  char* const copy = static_cast<char*>(staging_->place(bytes));
  if (copied.is_sent) staging_->send(copy, reinterpret_cast<const void*>(range.begin), bytes);
  if (copied.is_fetched) staging_->fetch(reinterpret_cast<void*>(range.begin), copy, bytes, false);
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
    staging_->fetch(target, made.output.data, byte_count(made.output), made.object.is_valid());
  }
  {
    const nb::gil_scoped_release no_gil;
    staging_->finish();
  }
  for (const Strided& s : strided_) {
    const profile::Stopwatch watch;
    kCopyto.get()(s.array, s.compact);
    watch.note(profile::What::transfer, profile::kHostToHost, nb::cast<size_t>(s.array.attr("nbytes")));
  }
}

}  // namespace interop::exchange
