#include "bindings/jax_plans.h"

#include <cstddef>
#include <unordered_map>
#include <vector>

#include "exchange/door.h"
#include "exchange/python.h"

namespace interop::bindings {
namespace {

using exchange::attribute;
using exchange::Lookup;
using exchange::Name;

const Lookup kFindCompiled("interop.jax._door", "compiled_for");
const Lookup kDevicesOf("interop.jax._placement", "devices_of");
const Name kAval("aval"), kDtype("dtype"), kSharding("sharding"), kWeak("weak_type");
constexpr size_t kMostKept = 4096;

/// Objects of Python by objects of Python, which are kept, so that their addresses are no others'. All are let go of
/// when there are too many, and never at exit, when Python may be gone.
template <class Key, class Hash = std::hash<Key>>
class Kept {
 public:
  /// A null object if there is none.
  nb::object find(const Key& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? nb::object() : nb::borrow(found->second);
  }

  void add(const Key& key, const nb::object& value) {
    if (values_.size() >= kMostKept) {
      std::unordered_map<Key, PyObject*, Hash> old;
      old.swap(values_);
      for (const auto& [old_key, old_value] : old) {
        keep(old_key, -1);
        Py_DECREF(old_value);
      }
    }
    if (!values_.emplace(key, value.ptr()).second) return;  // another thread was first
    keep(key, 1);
    value.inc_ref();
  }

 private:
  static void keep(PyObject* object, int by) { by > 0 ? Py_INCREF(object) : Py_DECREF(object); }
  static void keep(const std::vector<PyObject*>& key, int by) {
    for (PyObject* object : key) keep(object, by);
  }
  std::unordered_map<Key, PyObject*, Hash> values_;
};

struct HashOfAll {
  size_t operator()(const std::vector<PyObject*>& key) const {
    size_t hash = 0;
    for (PyObject* object : key) hash = hash * 1000003 + std::hash<PyObject*>()(object);
    return hash;
  }
};

/// By the operation and the arrays' dtypes: what is compiled, or None.
auto& compiled_of = *new Kept<std::vector<PyObject*>, HashOfAll>;
/// By the sharding: its devices, one object for those that are equal.
auto& devices_of = *new Kept<PyObject*>;

nb::object devices(nb::handle sharding) {
  nb::object found = devices_of.find(sharding.ptr());
  if (!found.is_valid()) {
    found = kDevicesOf.get()(sharding);
    devices_of.add(sharding.ptr(), found);
  }
  return found;
}

nb::object compiled(const std::vector<PyObject*>& key) {
  nb::object found = compiled_of.find(key);
  if (!found.is_valid()) {
    nb::list kinds;
    for (PyObject* kind : key) kinds.append(nb::handle(kind));
    found = kFindCompiled.get()(*kinds);
    compiled_of.add(key, found);
  }
  return found;
}

/// Is the error one that the door says in our words?
bool is_said_by_door() {
  return PyErr_ExceptionMatches(PyExc_RuntimeError) || PyErr_ExceptionMatches(PyExc_ValueError) ||
         PyErr_ExceptionMatches(PyExc_FloatingPointError);
}

}  // namespace

nb::object compute_planned(nb::handle operation, const nb::handle* arrays, int count) {
  for (int k = 0; k < count; ++k) {
    if (!exchange::is_concrete_in_jax(arrays[k])) return {};
  }
  std::vector<PyObject*> key{operation.ptr()}, passed;
  std::vector<nb::object> dtypes;  // while their addresses are in the key
  nb::object first;
  for (int k = 0; k < count; ++k) {
    const nb::object aval = attribute(arrays[k], kAval);
    if (attribute(aval, kWeak).ptr() != Py_False) return {};
    key.push_back(dtypes.emplace_back(attribute(aval, kDtype)).ptr());
    nb::object place = attribute(arrays[k], kSharding);
    if (k == 0) {
      first = std::move(place);
    } else if (!place.is(first) && !devices(place).is(devices(first))) {
      return {};
    }
    passed.push_back(arrays[k].ptr());
  }
  const nb::object function = compiled(key);
  if (function.is_none()) return {};
  PyObject* const result = PyObject_Vectorcall(function.ptr(), passed.data(), passed.size(), nullptr);
  if (result == nullptr) {
    if (!is_said_by_door()) nb::raise_python_error();
    PyErr_Clear();
    return {};
  }
  return nb::steal(result);
}

}  // namespace interop::bindings
