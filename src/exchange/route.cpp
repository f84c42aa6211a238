/// Which route a type takes: looked at once, then answered by the type's address.
#include "exchange/route.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <string_view>

#include "exchange/array.h"
#include "exchange/exchange_api.h"

namespace interop::exchange {
namespace {

// ---- the cache: type address -> route ----

// Read without a lock: a slot's type is published after its route, and never changes again. The cache keeps each type
// alive, so an address stays its type's own. Full (types made in a loop), it stops caching and nothing else changes.
constexpr size_t kSlots = 1024;
struct Slot {
  std::atomic<PyTypeObject*> type{nullptr};
  std::atomic<const Route*> route{nullptr};
};
Slot slots[kSlots];
std::mutex slots_mutex;
size_t slots_used = 0;

size_t first_slot(PyTypeObject* type) { return (reinterpret_cast<uintptr_t>(type) >> 4) % kSlots; }

bool find_cached(PyTypeObject* type, const Route** route) {
  for (size_t i = first_slot(type);; i = (i + 1) % kSlots) {
    PyTypeObject* held = slots[i].type.load(std::memory_order_acquire);
    if (held == type) {
      *route = slots[i].route.load(std::memory_order_relaxed);
      return true;
    }
    if (!held) return false;
  }
}

void cache(PyTypeObject* type, const Route* route) {
  const std::lock_guard<std::mutex> lock(slots_mutex);
  if (slots_used > kSlots / 2) return;
  size_t i = first_slot(type);
  for (; slots[i].type.load(std::memory_order_relaxed); i = (i + 1) % kSlots) {
    if (slots[i].type.load(std::memory_order_relaxed) == type) return;
  }
  Py_INCREF(type);
  ++slots_used;
  slots[i].route.store(route, std::memory_order_relaxed);
  slots[i].type.store(type, std::memory_order_release);
}

// ---- the first look ----

/// Is a class of this name, from this package, among the type's bases?
bool derives_from(PyTypeObject* type, std::string_view package, std::string_view name) {
  PyObject* mro = type->tp_mro;
  for (Py_ssize_t i = 0; mro && i < PyTuple_GET_SIZE(mro); ++i) {
    const nb::handle base(PyTuple_GET_ITEM(mro, i));
    const nb::object module = nb::getattr(base, "__module__", nb::none());
    const nb::object own_name = nb::getattr(base, "__name__", nb::none());
    if (!nb::isinstance<nb::str>(module) || !nb::isinstance<nb::str>(own_name)) continue;
    const std::string text = nb::cast<std::string>(module);
    if (nb::cast<std::string>(own_name) == name && text.substr(0, text.find('.')) == package) return true;
  }
  return false;
}

bool has(PyTypeObject* type, const char* attribute) { return nb::hasattr(nb::handle((PyObject*)type), attribute); }

const Lookup kNumpyNdarray("numpy", "ndarray");
const Lookup kNumpyGeneric("numpy", "generic");
const Lookup kTensor("torch", "Tensor");
const Lookup kParameter("torch.nn", "Parameter");

bool is_subtype(PyTypeObject* type, const Lookup& base) {
  return PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(base.get().ptr()));
}

/// A subclass that overrides NumPy's operations (masks, units) would lose its meaning.
bool overrides_ufuncs(PyTypeObject* type) {
  const nb::handle own((PyObject*)type);
  return derives_from(type, "numpy", "MaskedArray") ||
         !own.attr("__array_ufunc__").is(kNumpyNdarray.get().attr("__array_ufunc__"));
}

const Route* look(PyTypeObject* type) {
  const nb::handle handle((PyObject*)type);
  if (nb::type_check(handle) && handle.is(nb::type<Array>())) return &array_route();
  if (is_subtype(type, kNumpyGeneric) || type == &PyBytes_Type || type == &PyUnicode_Type) return nullptr;
  if (is_subtype(type, kNumpyNdarray)) return overrides_ufuncs(type) ? nullptr : &numpy_route();
  if (derives_from(type, "torch", "Tensor")) {
    const bool exact = handle.is(kTensor.get()) || handle.is(kParameter.get());
    return exact ? &torch_route() : &torch_subclass_route();
  }
  if (derives_from(type, "cupy", "ndarray")) return &cupy_route();
  if (derives_from(type, "jaxlib", "ArrayImpl") || derives_from(type, "jax", "ArrayImpl")) return &jax_array_route();
  if (derives_from(type, "jax", "Tracer")) return &jax_tracer_route();
  if (derives_from(type, "numba", "DeviceNDArrayBase") || derives_from(type, "numba_cuda", "DeviceNDArrayBase")) {
    return &numba_route();
  }
  if (type == &PyCapsule_Type) return &capsule_route();
  if (const Route* route = exchange_api_route(type)) return route;
  if (has(type, "__dlpack__") && has(type, "__dlpack_device__")) return &dlpack_route();
  if (has(type, "__cuda_array_interface__")) return &cai_route();
  const auto* buffer = type->tp_as_buffer;
  if ((buffer && buffer->bf_getbuffer) || has(type, "__array_interface__")) return &buffer_route();
  return nullptr;
}

}  // namespace

const Route* find_route(nb::handle object) {
  PyTypeObject* type = Py_TYPE(object.ptr());
  const Route* route = nullptr;
  if (find_cached(type, &route)) return route;
  route = look(type);
  if (route) {
    cache(type, route);
  } else if (!PyType_Check(object.ptr()) && nb::hasattr(object, "__cuda_array_interface__")) {
    return &cai_route();  // on the instance alone (a proxy's __getattr__): the type says nothing, so nothing is cached
  }
  return route;
}

const Route& route_of(nb::handle object, const char* function, const char* name) {
  const Route* route = find_route(object);
  if (route) return *route;
  std::string text = std::string(function) + ": " + name + " is " + type_text(object);
  if (is_subtype(Py_TYPE(object.ptr()), kNumpyNdarray)) {
    text +=
        ", a subclass of numpy.ndarray with operations of its own, whose meaning would be lost; accepted: plain "
        "arrays (pass numpy.asarray(x), or x.filled() of a masked array)";
  } else {
    text +=
        "; accepted: arrays with DLPack, __cuda_array_interface__ or the buffer protocol (NumPy, torch, JAX, CuPy, "
        "Numba, interop.Array, ...)";
  }
  throw TypeError(text);
}

}  // namespace interop::exchange
