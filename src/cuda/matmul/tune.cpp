/// Measures which kernel is the quickest for a product, and keeps that choice.
#include <interop/cuda/matmul.h>
#include <interop/error.h>

#include <algorithm>
#include <vector>

#include "cuda/driver/driver_api.h"
#include "cuda/matmul/backends.h"

namespace interop::cuda {
namespace {

constexpr const char* kTuning = "timing a product";
constexpr int kRuns = 5;

/// Twice the size of the L2 cache. So much is written before each run, so that no run finds its operands there.
std::size_t flushed_bytes(const Device& device) { return 2 * device.l2_bytes(); }

/// The bytes that c's matrices span before its first element, and from it on.
struct Span {
  int64_t before = 0, after = 0;
};
Span span_of_c(const Gemm& gemm) {
  const int64_t item = item_bytes(gemm.out_dtype);
  Span span{0, item};
  const auto add = [&](int64_t size, int64_t stride) {
    (stride < 0 ? span.before : span.after) += std::abs((size - 1) * stride) * item;
  };
  add(gemm.m, gemm.c_strides.row);
  add(gemm.n, gemm.c_strides.column);
  for (int i = 0; i < gemm.batch_ndim; ++i) add(gemm.batch[i].size, gemm.batch[i].c_stride);
  return span;
}

/// Is the result also the addend? Then it cannot be computed twice in place.
bool reads_its_result(const Gemm& gemm) { return gemm.addend == gemm.c; }

std::size_t aligned(int64_t bytes) { return static_cast<std::size_t>(bytes + 255) / 256 * 256; }

/// The largest workspace that our plan or any of cuBLASLt's may need.
std::size_t largest_workspace_of(const MatmulPlan& ours) {
  return std::max(cublas::kMaxWorkspace, aligned(static_cast<int64_t>(ours.workspace_bytes)));
}

class TimingEvent {
 public:
  TimingEvent() { check(driver().cuEventCreate(&event_, CU_EVENT_BLOCKING_SYNC), kTuning); }
  ~TimingEvent() { driver().cuEventDestroy(event_); }
  TimingEvent(const TimingEvent&) = delete;
  TimingEvent& operator=(const TimingEvent&) = delete;
  CUevent get() const { return event_; }

 private:
  CUevent event_ = nullptr;
};

/// Times launches on a stream, each with a cold L2 cache.
class Timer {
 public:
  Timer(cudaStream_t stream, CUdeviceptr flushed, std::size_t bytes)
      : stream_(stream), flushed_(flushed), bytes_(bytes) {}

  /// Returns the median in microseconds. A launch that is far slower than the best so far is timed only once.
  double operator()(const std::function<void()>& launch) {
    launch();  // loads the kernel
    std::vector<double> times;
    for (int run = 0; run < kRuns; ++run) {
      check(driver().cuMemsetD8Async(flushed_, 0, bytes_, stream_), kTuning);
      check(driver().cuEventRecord(start_.get(), stream_), kTuning);
      launch();
      check(driver().cuEventRecord(end_.get(), stream_), kTuning);
      check(driver().cuEventSynchronize(end_.get()), kTuning);
      float milliseconds = 0;
      check(driver().cuEventElapsedTime(&milliseconds, start_.get(), end_.get()), kTuning);
      times.push_back(milliseconds * 1e3);
      if (best_ > 0 && times[0] > 2 * best_) break;
    }
    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2];
    if (best_ == 0 || median < best_) best_ = median;
    return median;
  }

 private:
  cudaStream_t stream_;
  CUdeviceptr flushed_;
  std::size_t bytes_;
  double best_ = 0;
  TimingEvent start_, end_;
};

}  // namespace

std::size_t tuning_bytes(const Gemm& gemm, const MatmulOptions& options) {
  const Span span = span_of_c(gemm);
  const Device device;
  return largest_workspace_of(ours::choose(gemm, options, device)) + flushed_bytes(device) +
         (reads_its_result(gemm) ? aligned(span.before) + aligned(span.after) : 0);
}

void tune_matmul(const Gemm& asked, const MatmulOptions& options, void* memory, cudaStream_t stream) {
  const Device device;
  const MatmulPlan plan = ours::choose(asked, options, device);
  char* const workspace = static_cast<char*>(memory);
  char* const flushed = workspace + largest_workspace_of(plan);
  const std::size_t bytes = flushed_bytes(device);
  Gemm gemm = asked;
  if (reads_its_result(gemm)) gemm.c = flushed + bytes + aligned(span_of_c(gemm).before);

  RelaxedCapture relaxed(driver());  // another thread may be capturing
  Timer timer(stream, reinterpret_cast<CUdeviceptr>(flushed), bytes);
  const double ours_us = timer([&] { ours::launch(gemm, plan, workspace, stream); });
  cublas::tune(gemm, options, workspace, stream, [&](const auto& launch) { return timer(launch); }, ours_us);
}

}  // namespace interop::cuda
