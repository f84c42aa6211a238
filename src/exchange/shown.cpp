/// Arrays that interop has made views of: a map of memory to arrays.
#include "exchange/shown.h"

#include <algorithm>
#include <map>
#include <mutex>

namespace interop::exchange {

std::atomic<size_t> shown::count{0};

namespace {

struct Note {
  const Route* route;
  PyObject* array;  // kept alive by the view
  uintptr_t end;
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

}  // namespace

uint64_t note_shown(const Route& route, nanobind::handle array, ByteRange range) {
  Notes& all = notes();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const uint64_t number = ++all.last;
  all.by_begin.emplace(std::pair(range.begin, number), Note{&route, array.ptr(), range.end});
  all.begins.emplace(number, range.begin);
  all.longest = std::max(all.longest, range.end - range.begin);
  shown::count.store(all.begins.size(), std::memory_order_relaxed);
  return number;
}

void forget_shown(uint64_t number) noexcept {
  Notes& all = notes();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto begin = all.begins.find(number);
  all.by_begin.erase({begin->second, number});
  all.begins.erase(begin);
  shown::count.store(all.begins.size(), std::memory_order_relaxed);
}

std::vector<Shown> find_shown(ByteRange range) {
  Notes& all = notes();
  std::vector<Shown> found;
  const std::lock_guard<std::mutex> lock(all.mutex);
  const uintptr_t first = range.begin > all.longest ? range.begin - all.longest : 0;
  for (auto note = all.by_begin.lower_bound({first, 0}); note != all.by_begin.end(); ++note) {
    if (note->first.first >= range.end) break;
    if (note->second.end > range.begin) found.push_back({note->second.route, nanobind::borrow(note->second.array)});
  }
  return found;
}

}  // namespace interop::exchange
