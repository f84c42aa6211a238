/// Tuning: whether products are tuned, and what it chose.
#include <interop/cuda/matmul.h>
#include <nanobind/stl/string.h>

#include <atomic>

#include "bindings/matmul/choices.h"
#include "exchange/python.h"

namespace interop::bindings {
namespace {

/// What Python has these functions in.
struct Tuning {};

/// Is every product to be tuned, as inside `interop.autotune`?
std::atomic<bool> g_tunes_all{false};

nb::list matmul_choices(int device) {
  nb::list listed;
  for (const cuda::MatmulChoice& choice : cuda::choices(device)) {
    nb::dict entry;
    entry["product"] = choice.product;
    entry["backend"] = choice.tiled ? "tiled" : "cublas";
    entry["microseconds"] = choice.microseconds;
    entry["untuned_microseconds"] = choice.untuned_microseconds;
    entry["key"] = choice.key;
    entry["algorithm"] = choice.algorithm;
    listed.append(entry);
  }
  return listed;
}

void keep_matmul_choice(int device, const nb::dict& entry) {
  const auto text = [&](const char* name) { return nb::cast<std::string>(nb::str(nb::object(entry[name]))); };
  cuda::MatmulChoice choice;
  choice.product = text("product");
  choice.key = text("key");
  choice.algorithm = text("algorithm");
  choice.tiled = text("backend") == "tiled";
  choice.microseconds = PyFloat_AsDouble(nb::object(entry["microseconds"]).ptr());
  choice.untuned_microseconds = PyFloat_AsDouble(nb::object(entry["untuned_microseconds"]).ptr());
  if (PyErr_Occurred()) nb::raise_python_error();
  if (!cuda::keep_choice(device, choice)) throw ValueError("the key or the algorithm of " + choice.product);
}

}  // namespace

bool asks_tuning(const Terms& terms) {
  return terms.autotune.is_none() ? g_tunes_all.load(std::memory_order_relaxed) : terms.autotune.is(Py_True);
}

void bind_matmul_choices(nb::module_& m) {
  nb::class_<Tuning>(m, "Tuning", "The tuning of products, and what it chose: of the process, so there is no object.")
      .def_static(
          "tune_all", [](bool tunes) { g_tunes_all.store(tunes); }, nb::arg(),
          "Tune every product from now on, or no longer.")
      .def_static("choices", &matmul_choices, nb::arg(),
                  nb::sig("def choices(device: int, /) -> list[dict[str, typing.Any]]"),
                  "What tuning chose on a device.")
      .def_static("keep", &keep_matmul_choice, nb::arg(), nb::arg(),
                  nb::sig("def keep(device: int, choice: dict[str, typing.Any], /) -> None"),
                  "Take a choice as choices() lists it; KeyError, TypeError or ValueError where it is malformed.");
}

}  // namespace interop::bindings
