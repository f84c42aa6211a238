/// The loading of kernels that are compiled at run time, or elsewhere.
#include "bindings/functions/loaded_kernel.h"

#include <interop/error.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <deque>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace interop::bindings {
namespace {

LoadedLibrary load_library(nb::bytes image, const std::string& origin, bool has_variables) {
  return {&cuda::load_library(std::string(image.c_str(), image.size()), origin, has_variables)};
}

LoadedKernel find_kernel(const LoadedLibrary& library, const std::string& symbol) {
  return {&cuda::find_kernel(*library.library, symbol), nullptr};
}

std::vector<std::string> kernel_symbols(const LoadedLibrary& library) { return cuda::kernel_symbols(*library.library); }

LoadedKernel adopt(uintptr_t handle, bool is_function) {
  return {&cuda::adopt_kernel(reinterpret_cast<void*>(handle), is_function), nullptr};
}

using Measured = std::tuple<nb::bytes, int, std::vector<int>, std::vector<int>>;

LoadedKernel with_mdspans(const LoadedKernel& loaded, const std::vector<Measured>& measured) {
  MdspanLayouts mdspans;
  for (const auto& [bytes, data, extents, strides] : measured) {
    if (bytes.size() > mdspan_room(static_cast<int>(extents.size()))) {
      throw ValueError("interop.kernel: an mdspan has " + std::to_string(bytes.size()) + " bytes; accepted: up to " +
                       std::to_string(mdspan_room(static_cast<int>(extents.size()))));
    }
    mdspans.push_back({std::string(bytes.c_str(), bytes.size()), data, extents, strides});
  }
  static auto* const all = new std::deque<MdspanLayouts>;  // bounded by the different ones of one process
  const auto known = std::find(all->begin(), all->end(), mdspans);
  return {loaded.kernel, known != all->end() ? &*known : &all->emplace_back(std::move(mdspans))};
}

}  // namespace

void bind_loaded_kernel(nb::module_& m) {
  nb::class_<LoadedKernel>(m, "LoadedKernel", "A kernel of an image that was loaded, kept until the process ends.")
      .def_static("adopt", &adopt, nb::arg(), nb::arg(),
                  nb::sig("def adopt(handle: int, is_function: bool, /) -> LoadedKernel"),
                  "The kernel that another library has loaded, by its CUkernel, or its CUfunction (`is_function`), "
                  "which is of one context. Whoever has the handle keeps its owner.")
      .def("with_mdspans", &with_mdspans, nb::arg(),
           nb::sig("def with_mdspans(self, measured: list[tuple[bytes, int, list[int], list[int]]], /) -> "
                   "LoadedKernel"),
           "The same with, of each of its mdspans: the bytes of any value, and the places in them of the pointer, of "
           "each extent and of each stride, or -1.");
  nb::class_<LoadedLibrary>(m, "LoadedLibrary", "An image that was loaded, kept until the process ends.")
      .def_static("load", &load_library, nb::arg(), nb::arg(), nb::arg(),
                  nb::sig("def load(image: bytes, origin: str, has_variables: bool, /) -> LoadedLibrary"),
                  "Load a cubin, PTX or a fatbin; `origin` is what messages call it. Needs a driver, and no context. "
                  "`has_variables`, or may have some: its kernels are ordered with `write_variable` and the like.")
      .def("kernel", &find_kernel, nb::arg(), nb::sig("def kernel(self, symbol: str, /) -> LoadedKernel"),
           "The kernel of that symbol.")
      .def("kernels", &kernel_symbols, nb::sig("def kernels(self) -> list[str]"),
           "The symbols of all kernels. Needs a driver of CUDA 12.4.");
}

}  // namespace interop::bindings
