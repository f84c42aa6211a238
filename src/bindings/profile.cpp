/// What `interop.profile` counts.
#include <interop/cuda/driver.h>
#include <interop/profile.h>

#include "bindings/bindings.h"
#include "exchange/python.h"
#include "exchange/source.h"

namespace interop::bindings {
namespace {

namespace nb = nanobind;

const char* name_of(profile::What what) {
  switch (what) {
    case profile::What::allocation:
      return "allocations";
    case profile::What::transfer:
      return "transfers";
    case profile::What::wait:
      return "waits";
    case profile::What::launch:
      return "launches";
    default:
      return "holds";
  }
}

/// The driver is counted while any profile runs. Called with the GIL, which is not given up.
void follow() { cuda::count_calls(profile::is_on()); }

class Profile {
 public:
  ~Profile() { stop(); }

  void start() {
    if (is_running_) return;
    profile::start(tally_);
    is_running_ = true;
    exchange::find_source(nullptr);  // which imports now what it needs: a transfer is no place for that
    follow();
  }
  void stop() {
    if (!is_running_) return;
    profile::stop(tally_);
    is_running_ = false;
    follow();
  }

  nb::list counts() const {
    nb::list all;
    for (const auto& [key, c] : profile::copy_of(*tally_).counts) {
      all.append(nb::make_tuple(name_of(key.first), key.second, c.count, c.bytes, c.seconds));
    }
    return all;
  }
  nb::list transfers() const {
    nb::list all;
    for (const auto& [key, c] : profile::copy_of(*tally_).transfers) {
      const profile::Source& source = key.first;
      const nb::object file =
          nb::steal(PyUnicode_DecodeUTF8(source.file.data(), static_cast<Py_ssize_t>(source.file.size()), "replace"));
      all.append(nb::make_tuple(key.second, source.function, file, source.line, c.count, c.bytes, c.seconds));
    }
    return all;
  }

 private:
  const std::shared_ptr<profile::Tally> tally_ = std::make_shared<profile::Tally>();
  bool is_running_ = false;
};

}  // namespace

void bind_profile(nb::module_& m) {
  profile::set_source_finder(&exchange::find_source);
  m.def("profiles_running", [] { return profile::g_running.load(); }, "How many profiles run. For tests.");
  nb::class_<Profile>(m, "Profile", "What interop does in the whole process while it runs.")
      .def(nb::init<>())
      .def("start", &Profile::start, "Counts from now on.")
      .def("stop", &Profile::stop, "Counts no more.")
      .def("counts", &Profile::counts, nb::sig("def counts(self) -> list[tuple[str, str, int, int, float]]"),
           "What was done, of which kind, how often, with how many bytes, in how many seconds.")
      .def("transfers", &Profile::transfers,
           nb::sig("def transfers(self) -> list[tuple[str, str, str, int, int, int, float]]"),
           "The transfers by kind, public function, file and line of its caller: how often, bytes, seconds.");
}

}  // namespace interop::bindings
