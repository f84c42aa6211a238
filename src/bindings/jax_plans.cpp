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

struct HashOfAll {
  size_t operator()(const std::vector<PyObject*>& key) const {
    size_t hash = 0;
    for (PyObject* object : key) hash = hash * 1000003 + std::hash<PyObject*>()(object);
    return hash;
  }
};

/// Objects of Python by objects of Python, which are kept, so that their addresses are no others'. All are let go of
/// when there are too many, and never at exit, when Python may be gone.
class Kept {
 public:
  using Key = std::vector<PyObject*>;

  /// A null object if there is none.
  nb::object find(const Key& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? nb::object() : nb::borrow(found->second);
  }

  void add(const Key& key, const nb::object& value) {
    if (values_.size() >= kMostKept) {
      std::unordered_map<Key, PyObject*, HashOfAll> old;
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
  static void keep(const Key& key, int by) {
    for (PyObject* object : key) by > 0 ? Py_INCREF(object) : Py_DECREF(object);
  }
  std::unordered_map<Key, PyObject*, HashOfAll> values_;
};

/// By the operation and the arrays' dtypes: what is compiled, or None.
auto& compiled_of = *new Kept;

/// Are arrays of these shardings on the same devices? Each array may have a sharding of its own, equal to others'.
bool same_devices(nb::handle a, nb::handle b) {
  return a.is(b) || a.equal(b) || kDevicesOf.get()(a).is(kDevicesOf.get()(b));
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
    } else if (!same_devices(place, first)) {
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
