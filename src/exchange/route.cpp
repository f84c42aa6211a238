/// Which route a type takes: looked at once, then answered by the type's address.
#include "exchange/route.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>

#include "exchange/array/array.h"
#include "exchange/routes/exchange_api.h"
#include "exchange/routes/registered.h"

namespace interop::exchange {
namespace {

// ---- the cache: type address -> route ----

// Read without a lock: a slot's type is published after its route, and never changes again; its route changes only when
// a library is registered. The cache keeps each type alive, so an address stays its type's own. Full (types made in a
// loop), it stops caching and nothing else changes.
constexpr size_t kSlots = 1024;
struct Slot {
  std::atomic<PyTypeObject*> type{nullptr};
  std::atomic<const Route*> route{nullptr};
};
Slot slots[kSlots];
std::mutex slots_mutex;
size_t slots_used = 0;
std::atomic<unsigned> registrations{0};

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

/// `looked_at`: the count of registrations before the look; a route that may be out of date is not kept.
void cache(PyTypeObject* type, const Route* route, unsigned looked_at) {
  const std::lock_guard<std::mutex> lock(slots_mutex);
  if (slots_used > kSlots / 2 || registrations.load() != looked_at) return;
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
  // Held: what is asked below may be Python of a metaclass, which can give the type other bases.
  const nb::object mro = nb::borrow(type->tp_mro);
  for (Py_ssize_t i = 0; mro.is_valid() && i < PyTuple_GET_SIZE(mro.ptr()); ++i) {
    const nb::handle base(PyTuple_GET_ITEM(mro.ptr(), i));
    const nb::object module = nb::getattr(base, "__module__", nb::none());
    const nb::object own_name = nb::getattr(base, "__name__", nb::none());
    if (!nb::isinstance<nb::str>(module) || !nb::isinstance<nb::str>(own_name)) continue;
    const std::string text = text_of(module);
    if (text_of(own_name) == name && text.substr(0, text.find('.')) == package) return true;
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

/// The types that interop knows by name; a null route for those that are no arrays, nothing for all others.
std::optional<const Route*> look_by_name(PyTypeObject* type) {
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
  if (derives_from(type, "warp", "array")) return &warp_route();
  if (derives_from(type, "tensorflow", "EagerTensor")) return &tensorflow_route();
  if (derives_from(type, "tvm_ffi", "Tensor")) return &tvm_ffi_route();
  if (type == &PyCapsule_Type) return &capsule_route();
  return std::nullopt;
}

const Route* look_by_protocol(PyTypeObject* type) {
  const nb::handle handle((PyObject*)type);
  if (const DLPackExchangeAPI* api = find_exchange_api(handle)) {
    return derives_from(type, "paddle", "Tensor") ? &paddle_route(*api) : &exchange_api_route(handle, *api);
  }
  if (has(type, "__dlpack__") && has(type, "__dlpack_device__")) return &dlpack_route();
  if (has(type, "__cuda_array_interface__")) return &cai_route();
  const auto* buffer = type->tp_as_buffer;
  if ((buffer && buffer->bf_getbuffer) || has(type, "__array_interface__")) return &buffer_route();
  return nullptr;
}

/// A protocol on the instance alone, such as a proxy's __getattr__ has: the type says nothing, so nothing is kept.
const Route* look_at_instance(nb::handle object) {
  if (nb::hasattr(object, "__cuda_array_interface__")) return &cai_route();
  if (look_by_name(Py_TYPE(object.ptr()))) return nullptr;  // NumPy's scalars and masked arrays have more
  if (nb::hasattr(object, "__dlpack__") && nb::hasattr(object, "__dlpack_device__")) return &dlpack_route();
  return nb::hasattr(object, "__array_interface__") ? &buffer_route() : nullptr;
}

// ---- what is no array ----

/// How to come by an array from what holds one, or is nearly one. {} stands for the argument.
struct Way {
  const char* module;  // of the type or of a base, or what begins it
  const char* words;
};
constexpr Way kWays[] = {
    {"scipy.sparse", "a sparse matrix has no such memory: pass {}.toarray(), or its {}.data"},
    {"cupyx.scipy.sparse", "a sparse matrix has no such memory: pass {}.toarray(), or its {}.data"},
    {"pandas", "pass {}.to_numpy(), which copies where pandas must"},
    {"polars", "pass {}.to_numpy(), which copies where Polars must"},
    {"pyarrow", "pass {}.to_numpy(zero_copy_only=False), or a column's"},
    {"cudf", "pass {}.to_cupy(), or one column"},
    {"dask.array",
     "pass {}.compute(), or call an interop.operator made of the kernel or function, or use {}.map_blocks(...)"},
    {"dask", "pass {}.compute().to_numpy(), or use {}.map_partitions(...) with a function that calls interop"},
    {"xarray", "pass {}.data; of a Dataset, that of one variable"},
    {"h5py", "pass {}[...], which reads it"},
    {"zarr", "pass {}[...], which reads it"},
    {"pint", "pass {}.magnitude; the unit is yours to keep"},
};

bool begins(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start && (text.size() == start.size() || text[start.size()] == '.');
}

std::string of_module(PyTypeObject* type) {
  const nb::object mro = nb::borrow(type->tp_mro);  // a metaclass's `__module__` may give the type other bases
  for (Py_ssize_t i = 0; mro.is_valid() && i < PyTuple_GET_SIZE(mro.ptr()); ++i) {
    const nb::object module = nb::getattr(nb::handle(PyTuple_GET_ITEM(mro.ptr(), i)), "__module__", nb::none());
    if (!nb::isinstance<nb::str>(module)) continue;
    const std::string text = text_of(module);
    for (const Way& way : kWays) {
      if (begins(text, way.module)) return way.words;
    }
  }
  return "";
}

std::string way_out(nb::handle object, const char* name) {
  PyTypeObject* type = Py_TYPE(object.ptr());
  const nb::object held = nb::borrow(reinterpret_cast<PyObject*>(type));  // an object may be given another
  std::string words = of_module(type);
  if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr()) || PyRange_Check(object.ptr())) {
    words = "pass numpy.asarray({}), or that of your library";
  } else if (PyBytes_Check(object.ptr())) {
    words = "bytes are no numbers: pass numpy.frombuffer({}, dtype), or memoryview({}) for uint8";
  } else if (PyUnicode_Check(object.ptr())) {
    words = "text is no array";
  } else if (is_subtype(type, kNumpyGeneric)) {
    words = "a scalar of NumPy is no array, which numpy.asarray({}) is, of no dimension";
  }
  for (size_t at = words.find("{}"); at != std::string::npos; at = words.find("{}", at)) words.replace(at, 2, name);
  return words;
}

const Route* look(PyTypeObject* type) {
  const Route* taught = registered_route(type);
  return taught ? taught : built_in_route(type);
}

}  // namespace

const Route* built_in_route(PyTypeObject* type) {
  const std::optional<const Route*> known = look_by_name(type);
  return known ? *known : look_by_protocol(type);
}

bool is_known_library(PyTypeObject* type) {
  const auto is_known = [](PyTypeObject* t) { return t && look_by_name(t).value_or(nullptr) != nullptr; };
  const nb::object base = nb::borrow(reinterpret_cast<PyObject*>(type->tp_base));  // held, as in derives_from
  return is_known(type) && !is_known(reinterpret_cast<PyTypeObject*>(base.ptr()));
}

void refresh_routes(PyTypeObject* base) {
  {
    const std::lock_guard<std::mutex> lock(slots_mutex);
    ++registrations;
  }
  for (Slot& slot : slots) {
    PyTypeObject* type = slot.type.load(std::memory_order_acquire);
    // Taught by now, so that the look calls no Python: no call, and no other registration, comes in between.
    if (type && PyType_IsSubtype(type, base)) slot.route.store(look(type), std::memory_order_relaxed);
  }
}

unsigned registration_count() { return registrations.load(); }

const Route* built_in_route_of(nb::handle object) {
  const nb::object type = nb::borrow(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));  // held, as in find_route
  const Route* route = built_in_route(reinterpret_cast<PyTypeObject*>(type.ptr()));
  return route || PyType_Check(object.ptr()) ? route : look_at_instance(object);
}

const Route* find_route(nb::handle object) {
  PyTypeObject* type = Py_TYPE(object.ptr());
  const Route* route = nullptr;
  if (find_cached(type, &route)) return route;
  const unsigned before = registrations.load();
  const nb::object held = nb::borrow(reinterpret_cast<PyObject*>(type));  // the look may run Python of its metaclass
  route = look(type);
  if (route) {
    cache(type, route, before);
  } else if (!PyType_Check(object.ptr())) {
    return look_at_instance(object);
  }
  return route;
}

const Route& route_of(nb::handle object, const char* function, const char* name) {
  const Route* route = find_route(object);
  if (!route) refuse_no_array(object, function, name);
  return *route;
}

void refuse_no_array(nb::handle object, const char* function, const char* name) {
  std::string text = std::string(function) + ": " + name + " is " + type_text(object);
  if (is_subtype(Py_TYPE(object.ptr()), kNumpyNdarray)) {
    text +=
        ", a subclass of numpy.ndarray with operations of its own, whose meaning would be lost; accepted: plain "
        "arrays (pass numpy.asarray(x), or x.filled() of a masked array)";
  } else {
    text +=
        "; accepted: arrays with DLPack, __cuda_array_interface__, the buffer protocol or __array_interface__ (NumPy, "
        "torch, JAX, CuPy, Numba, interop.Array, ...), and types given to interop.register";
    if (const std::string way = way_out(object, name); !way.empty()) text += "; " + way;
  }
  throw TypeError(text);
}

}  // namespace interop::exchange
