// A module of its own, as an author's: two results, and scratch memory. tests/build/test_nanobind.py builds it.
#include <interop/call.h>

#include <algorithm>

namespace nb = nanobind;

namespace {

struct Entry {
  float value;
  int64_t place;
};

// The elements of x in order, and where they stood.
nb::object sorted(nb::handle x, nb::handle out, nb::handle stream) {
  using Input = nb::ndarray<const float, nb::ndim<1>, nb::device::cpu>;

  interop::Call call("sorted.sorted", {{"x", x}}, {out, stream});
  const Input input = call.view<Input>(0);
  const size_t count = input.shape(0);
  const auto values = call.output<nb::ndarray<float, nb::ndim<1>>>({count});
  const auto places = call.output<nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig>>({count});
  const auto entries = static_cast<Entry*>(call.workspace(count * sizeof(Entry)));
  call.launch([&](cudaStream_t) {
    for (size_t i = 0; i < count; ++i) {
      entries[i] = {input.data()[static_cast<int64_t>(i) * input.stride(0)], static_cast<int64_t>(i)};
    }
    std::stable_sort(entries, entries + count, [](const Entry& a, const Entry& b) { return a.value < b.value; });
    for (size_t i = 0; i < count; ++i) {
      values.data()[static_cast<int64_t>(i) * values.stride(0)] = entries[i].value;
      places.data()[i] = entries[i].place;
    }
  });
  return call.hand_over();
}

}  // namespace

NB_MODULE(sorted, m) {
  interop::initialize();
  m.def("sorted", &sorted, nb::arg(), nb::arg().none() = nb::none(), nb::arg().none() = nb::none());
  m.attr("nanobind") = NB_VERSION_MAJOR;
}
