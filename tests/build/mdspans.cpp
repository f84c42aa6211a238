// Mdspans of libcu++ of any array: in functions with Python and without it, and of memory that C++ owns.
#include <interop/array.h>
#include <interop/call.h>
#include <interop/function.h>
#include <cuda/std/mdspan>

namespace nb = nanobind;

namespace {

using cuda::std::dextents;
using cuda::std::dynamic_extent;
using cuda::std::extents;
using cuda::std::layout_left;
using cuda::std::layout_stride;
using cuda::std::mdspan;

template <class X, class Y>
void transpose(const X& x, const Y& y) {
  for (int i = 0; i < static_cast<int>(x.extent(0)); ++i) {
    for (int j = 0; j < static_cast<int>(x.extent(1)); ++j) y(j, i) = x(i, j);
  }
}

void transposed(const interop::Run& run) {
  transpose(run.mdspan<mdspan<const float, dextents<int, 2>, layout_stride>>(0),
            run.mdspan<mdspan<float, extents<short, dynamic_extent, 3>>>(1));
}

/// What `transposed` says, with arrays of any library and Python.
template <class Mdspan>
double first_and_last(nb::handle x) {
  interop::Call call("mdspans.first_and_last", {{"x", x}});
  const auto view = call.mdspan<Mdspan>(0);
  double sum = 0;
  call.launch([&](cudaStream_t) { sum = view(0, 0) + view(view.extent(0) - 1, view.extent(1) - 1); });
  call.hand_over();
  return sum;
}

void write_in_silence(nb::handle x) {
  interop::Call call("mdspans.write", {{"x", x}});  // it forgets to say that x is written
  call.mdspan<mdspan<float, dextents<int, 2>>>(0);
}

}  // namespace

NB_MODULE(mdspans, m) {
  interop::initialize();
  interop::define<transposed>(
      m, "mdspans.transposed",
      "cuda::std::mdspan<const float, cuda::std::dextents<int, 2>, cuda::std::layout_stride> x, "
      "cuda::std::mdspan<float, cuda::std::extents<short, cuda::std::dynamic_extent, 3>> y");
  m.def("right", &first_and_last<mdspan<const double, dextents<int, 2>>>);
  m.def("left", &first_and_last<mdspan<const double, dextents<int, 2>, layout_left>>);
  m.def("any", &first_and_last<mdspan<const double, dextents<long long, 2>, layout_stride>>);
  m.def("few", &first_and_last<mdspan<const double, dextents<signed char, 2>, layout_stride>>);
  m.def("fixed", &first_and_last<mdspan<const double, extents<size_t, 3, 4>>>);
  m.def("write", &write_in_silence);
  m.def("offset", [] {  // as other producers have it
    int values[6] = {0, 1, 2, 3, 4, 5};
    int64_t shape[] = {2, 2};
    DLTensor tensor{values, {kDLCPU, 0}, 2, {kDLInt, 32, 1}, shape, nullptr, 2 * sizeof(int)};
    const auto view = interop::as_mdspan<mdspan<const int, dextents<int, 2>>>(tensor);
    return 10 * view(0, 0) + view(1, 1);
  });
  m.def("of_floats", [] {
    float values[2] = {};
    int64_t shape[] = {2};
    DLTensor tensor{values, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape, nullptr, 0};
    interop::as_mdspan<mdspan<const int, dextents<int, 1>>>(tensor);
  });
  m.def("owned", [] {
    interop::array<float, interop::Memory::host> x({2, 3});
    const auto view = x.mdspan<mdspan<float, extents<int, 2, 3>>>();
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 3; ++j) view(i, j) = static_cast<float>(10 * i + j);
    }
    return x.to_python();
  });
}
