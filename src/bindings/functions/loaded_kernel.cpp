/// The loading of kernels that are compiled at run time.
#include "bindings/functions/loaded_kernel.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace interop::bindings {
namespace {

std::vector<LoadedKernel> load_kernels(nb::bytes image, const std::vector<std::string>& names) {
  std::vector<LoadedKernel> loaded;
  for (cuda::Kernel* kernel : cuda::load_kernels(image.c_str(), names)) loaded.push_back({kernel});
  return loaded;
}

}  // namespace

void bind_loaded_kernel(nb::module_& m) {
  nb::class_<LoadedKernel>(m, "LoadedKernel", "A kernel that was compiled at run time, kept until the process ends.")
      .def_static("load", &load_kernels, nb::sig("def load(image: bytes, names: list[str], /) -> list[LoadedKernel]"),
                  "The kernels of a cubin by their names in it. Needs a driver, and no context.");
}

}  // namespace interop::bindings
