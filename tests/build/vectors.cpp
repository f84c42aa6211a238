/// A module whose C++ code owns memory that NumPy and the GPU see: vectors, and arrays with a shape.
#include <interop/array.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <numeric>

namespace nb = nanobind;

// The one line that code with a CuVec<T> changes.
template <class T>
using CuVec = interop::vector<T>;

namespace {

double sum_of_squares(int count) {
  CuVec<double> values;
  for (int i = 0; i < count; ++i) values.push_back(i);  // it grows as any vector
  return std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
}

using Image = interop::array<float>;

void fill(const Image& image, float value) { std::fill(image.begin(), image.end(), value); }

}  // namespace

NB_MODULE(vectors, m) {
  interop::initialize();
  m.def("sum_of_squares", &sum_of_squares);
  m.def("ramp", [](int count) {
    const interop::array<int> ramp({count});
    std::iota(ramp.begin(), ramp.end(), 0);
    return ramp.to_python();  // the memory lives on in Python
  });
  m.def("too_much", [] { CuVec<double>().reserve(std::size_t{1} << 58); });
  nb::class_<Image>(m, "Image")
      .def(nb::init<std::vector<int64_t>>())
      .def("fill", [](const Image& image, float value) { fill(image, value); })
      .def("resize", [](Image& image, std::vector<int64_t> shape) { image.resize(std::move(shape)); })
      .def("address", [](const Image& image) { return reinterpret_cast<uintptr_t>(image.data()); })
      .def_prop_ro("shape", [](const Image& image) { return image.shape(); })
      .def("__array__", [](const Image& image, nb::args,
                           nb::kwargs) { return nb::module_::import_("numpy").attr("asarray")(image.to_python()); })
      .def("to_python", [](const Image& image) { return image.to_python(); });
}
