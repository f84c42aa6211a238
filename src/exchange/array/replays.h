/// The replays of a CUDA graph, as work on the arrays that it uses.
#pragma once

#include <interop/cuda/graph.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace interop::exchange {

struct Work;

/// One graph of `interop.graph`: an array that a captured call uses notes the graph, and the graph the array. So a
/// replay waits for all work on its arrays that was queued before it, and all that is queued later waits for the
/// replay. The GIL orders the calls.
class Replays : public std::enable_shared_from_this<Replays> {
 public:
  /// That of a capture, by its id; null for a capture of others.
  static std::shared_ptr<Replays> of_capture(std::uint64_t id);
  /// That into which a stream is captured; null for none, and for a capture of others.
  static std::shared_ptr<Replays> of_stream(cudaStream_t stream);

  ~Replays();
  /// `work` no longer knows the graphs that are gone, and whose last replay is done.
  static void forget_done(Work& work);
  /// From now on the capture of `stream` is this graph's, until `end`.
  void begin(cudaStream_t stream);
  void end();
  /// The stream that is captured; null before and after.
  cudaStream_t captured() const { return captured_; }
  /// Notes that a captured call uses memory; false if that was known.
  bool note(const std::shared_ptr<Work>& work);

  /// `stream` waits for all that uses the memory. A replay is to be queued there.
  void before(cudaStream_t stream);
  /// Notes that it has been.
  void after(cudaStream_t stream);
  /// `waiter` waits for the last replay, if there was any.
  void make_wait(cudaStream_t waiter) const;
  /// There will be no more replays.
  void close();
  /// The event behind the last replay; null if there was none.
  const std::shared_ptr<const cuda::Event>& last() const { return last_; }

 private:
  std::uint64_t id_ = 0;
  cudaStream_t captured_ = nullptr;
  bool is_gone_ = false;
  /// Memory that the graph uses, and which of its uses the replay that is being queued has waited for.
  struct Used {
    std::weak_ptr<Work> work;
    std::shared_ptr<const cuda::Event> waited;
  };
  std::vector<Used> works_;
  std::shared_ptr<const cuda::Event> last_;
  cudaStream_t stream_ = nullptr;  // of the last replay
};

}  // namespace interop::exchange
