/// Arrays that interop has made views of: a map of memory to arrays.
#include "exchange/array/shown.h"

#include <pthread.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "exchange/overlap.h"

namespace interop::exchange {

std::atomic<size_t> detail::shown_count{0};

namespace {

struct Note {
  const Route* route;
  PyObject* array;  // kept alive by the view
  uintptr_t end;
  DLTensor tensor;  // of which shape and strides are these
  std::vector<int64_t> sizes, steps;

  DLTensor layout() const {
    DLTensor found = tensor;
    found.shape = const_cast<int64_t*>(sizes.data());
    found.strides = const_cast<int64_t*>(steps.data());
    return found;
  }
};

struct Notes {
  std::mutex mutex;
  std::map<std::pair<uintptr_t, uint64_t>, Note> by_begin;  // and by number
  std::map<uint64_t, uintptr_t> begins;
  uintptr_t longest = 0;
  uint64_t last = 0;
};

// Never destroyed: views may die after static destruction.
Notes& notes() {
  static auto* const all = new Notes;
  return *all;
}

// No other thread is in the middle of a change when a process is forked.
const int registered =
    pthread_atfork([] { notes().mutex.lock(); }, [] { notes().mutex.unlock(); }, [] { notes().mutex.unlock(); });

}  // namespace

uint64_t note_shown(const Route& route, nanobind::handle array, const DLTensor& tensor) {
  const ByteRange range = byte_range(tensor);
  Notes& all = notes();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const uint64_t number = ++all.last;
  Note note{&route, array.ptr(), range.end, tensor, {}, {}};
  note.sizes.assign(tensor.shape, tensor.shape + tensor.ndim);
  note.steps.assign(tensor.strides, tensor.strides + tensor.ndim);
  all.by_begin.emplace(std::pair(range.begin, number), std::move(note));
  all.begins.emplace(number, range.begin);
  all.longest = std::max(all.longest, range.end - range.begin);
  detail::shown_count.store(all.begins.size(), std::memory_order_relaxed);
  return number;
}

void forget_shown(uint64_t number) noexcept {
  Notes& all = notes();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto begin = all.begins.find(number);
  all.by_begin.erase({begin->second, number});
  all.begins.erase(begin);
  detail::shown_count.store(all.begins.size(), std::memory_order_relaxed);
}

std::vector<Shown> find_shown(const DLTensor& tensor) {
  const ByteRange range = byte_range(tensor);
  Notes& all = notes();
  std::vector<Note> near;
  std::vector<nanobind::object> arrays;  // held, as the exact answer is sought without the lock: it may be NumPy's
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    const uintptr_t first = range.begin > all.longest ? range.begin - all.longest : 0;
    for (auto note = all.by_begin.lower_bound({first, 0}); note != all.by_begin.end(); ++note) {
      if (note->first.first >= range.end) break;
      if (note->second.end <= range.begin) continue;
      near.push_back(note->second);
      arrays.push_back(nanobind::borrow(note->second.array));
    }
  }
  std::vector<Shown> found;
  for (size_t i = 0; i < near.size(); ++i) {
    if (share_memory(tensor, near[i].layout())) found.push_back({near[i].route, std::move(arrays[i])});
  }
  return found;
}

}  // namespace interop::exchange
