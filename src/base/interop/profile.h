/// What profiles count: what is allocated, copied, waited for, launched and held. Knows neither Python nor CUDA.
///
/// Any thread may call all of this. While no profile runs, `is_on` is all that it costs: one relaxed load.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

namespace interop::profile {

enum class What : uint8_t { allocation, transfer, wait, launch, hold };

// The kinds of transfers; others are named where they are noted.
inline constexpr const char* kHostToHost = "host to host";
inline constexpr const char* kHostToDevice = "host to device";
inline constexpr const char* kDeviceToHost = "device to host";
inline constexpr const char* kDeviceToDevice = "device to device";
inline constexpr const char* kPeer = "peer";
inline const char* kind_of_transfer(bool from_host, bool to_host) {
  return from_host ? (to_host ? kHostToHost : kHostToDevice) : (to_host ? kDeviceToHost : kDeviceToDevice);
}

struct Count {
  uint64_t count = 0;
  uint64_t bytes = 0;
  double seconds = 0;  ///< of the host
};

/// Where a transfer came from. Empty, and line 0, is what is not known.
struct Source {
  std::string function;  ///< the public one, such as "interop.copyto"
  std::string file;      ///< the caller of it
  int line = 0;

  friend bool operator<(const Source& x, const Source& y) {
    return std::tie(x.file, x.line, x.function) < std::tie(y.file, y.line, y.function);
  }
};

/// What one profile has counted.
struct Tally {
  std::map<std::pair<What, std::string>, Count> counts;       // by kind
  std::map<std::pair<Source, std::string>, Count> transfers;  // by source and kind
};

extern std::atomic<int> g_running;  // how many profiles run
/// Does any profile run?
inline bool is_on() { return g_running.load(std::memory_order_relaxed) != 0; }

/// From now on `tally` counts, beside those that do already.
void start(std::shared_ptr<Tally> tally);
/// It counts no more. Nothing is done where it did not, as in a child forked since.
void stop(const std::shared_ptr<Tally>& tally);
/// What it has counted by now.
Tally copy_of(const Tally& tally);

/// Adds to all profiles that run.
void note(What what, const char* kind, uint64_t count, uint64_t bytes, double seconds);

/// Measures the host's time from its making on, if a profile runs.
class Stopwatch {
 public:
  Stopwatch() : is_on_(is_on()) {
    if (is_on_) begin_ = Clock::now();
  }
  /// Notes one thing of that kind, which took the time until now. What fails is not noted.
  void note(What what, const char* kind, uint64_t bytes) const {
    if (is_on_) profile::note(what, kind, 1, bytes, std::chrono::duration<double>(Clock::now() - begin_).count());
  }

 private:
  using Clock = std::chrono::steady_clock;
  const bool is_on_;
  Clock::time_point begin_;
};

/// Within its life this thread runs the public function of that name, unless it is in another one already. The text
/// lives as long.
class Within {
 public:
  explicit Within(const char* function) : entered_(is_on() && enter(function)) {}
  ~Within() {
    if (entered_) leave();
  }
  Within(const Within&) = delete;
  Within& operator=(const Within&) = delete;

 private:
  static bool enter(const char* function);
  static void leave();
  const bool entered_;
};

/// This thread is one of interop's own, for which no user waits.
void mark_background();
bool is_background();

/// Who says where a transfer of this thread comes from: `finder` gets the name of `Within`, which may be null.
void set_source_finder(Source (*finder)(const char* function));

}  // namespace interop::profile
