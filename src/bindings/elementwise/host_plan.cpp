/// Calls on NumPy's own arrays, by functions of NumPy that are kept.
#include "bindings/elementwise/host_plan.h"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdlib>

#include "bindings/frame.h"
#include "bindings/scalars.h"
#include "exchange/array/shown.h"
#include "exchange/python.h"
#include "exchange/routes/numpy.h"
#include "exchange/typestr.h"

namespace interop::bindings {
namespace {

using exchange::Fact;
using exchange::Lookup;
using exchange::Name;

const Lookup kNdarray("numpy", "ndarray");
const Lookup kAsarray("numpy", "asarray");
const Lookup kElementOf("interop._operations.promotion", "element_of");
const Fact kDtype("numpy", "ndarray", "dtype");
const Fact kShape("numpy", "ndarray", "shape");
const Fact kStrides("numpy", "ndarray", "strides");
const Fact kFlags("numpy", "ndarray", "flags");
const Name kWriteable("writeable");
const Name kMetadata("metadata");

constexpr uint32_t kScalar = uint32_t{1} << 31, kIs0d = uint32_t{1} << 30, kOut = uint32_t{1} << 29;
constexpr double kMostBytes = 0x1p47;  // the addresses of a process

bool is_ndarray(nb::handle x) { return x.type().is(kNdarray.get()); }

/// Reads a tuple of ints; -1 for more than an array may have.
int read_ints(nb::handle tuple, int64_t* out) {
  const Py_ssize_t count = PyTuple_GET_SIZE(tuple.ptr());
  if (count > kMaxDims) return -1;
  for (Py_ssize_t i = 0; i < count; ++i) out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple.ptr(), i));
  return static_cast<int>(count);
}

/// Are the strides whole elements, and all elements within what a process can address?
bool are_usual(const int64_t* sizes, const int64_t* strides, int ndim, int64_t item) {
  double extent = 0;
  for (int i = 0; i < ndim; ++i) {
    if (sizes[i] <= 1) continue;
    if (strides[i] % item != 0) return false;
    extent += static_cast<double>(sizes[i] - 1) * std::abs(static_cast<double>(strides[i]));
  }
  return extent < kMostBytes;
}

bool is_compact(const int64_t* sizes, const int64_t* strides, int ndim, int64_t item) {
  int64_t stride = item;
  for (int i = ndim - 1; i >= 0; --i) {
    if (strides[i] != stride) return false;
    stride *= sizes[i];
  }
  return true;
}

/// Broadcasts `shape` with another one; false where they do not.
bool broadcast(Shape& shape, const int64_t* sizes, int ndim) {
  const int more = std::max(0, ndim - shape.ndim);
  std::copy_backward(shape.sizes, shape.sizes + shape.ndim, shape.sizes + shape.ndim + more);
  std::fill(shape.sizes, shape.sizes + more, int64_t{1});
  shape.ndim += more;
  int64_t* const tail = shape.sizes + (shape.ndim - ndim);
  for (int i = 0; i < ndim; ++i) {
    if (sizes[i] == tail[i] || sizes[i] == 1) continue;
    if (tail[i] != 1) return false;
    tail[i] = sizes[i];
  }
  return true;
}

bool is_same(const Shape& shape, const int64_t* sizes, int ndim) {
  return shape.ndim == ndim && std::equal(sizes, sizes + ndim, shape.sizes);
}

}  // namespace

// ---- what a plan depends on ----

bool HostKey::read(const nb::handle* operands, int count, nb::handle out) {
  // Of other libraries, no more is asked.
  if (count >= kMaxValues || std::none_of(operands, operands + count, is_ndarray)) return false;
  Shape shape;
  shape.ndim = -1;
  for (int k = 0; k < count; ++k) {
    if (is_ndarray(operands[k])) {
      if (!add_array(operands[k], shape)) return false;
    } else {
      const Kind kind = kind_of(operands[k]);
      if (kind == Kind::array || kind == Kind::numpy_scalar) return false;
      add(kScalar | static_cast<uint32_t>(kind));
    }
  }
  double bytes = 16;  // at most, of an element
  for (int i = 0; i < shape.ndim; ++i) bytes *= static_cast<double>(std::max<int64_t>(shape.sizes[i], 1));
  return bytes < kMostBytes && (out.is_none() || add_out(out, shape));
}

/// Of one that may be written as it is: writable, compact, and shown by no other library.
bool HostKey::add_out(nb::handle out, const Shape& shape) {
  if (!is_ndarray(out) || exchange::any_shown()) return false;
  if (!exchange::attribute(kFlags(out), kWriteable).is(Py_True)) return false;
  HostKey own;
  Shape own_shape;
  own_shape.ndim = -1;
  if (!own.add_array(out, own_shape) || !own.is_plain_) return false;
  if (!is_same(shape, own_shape.sizes, own_shape.ndim)) return false;
  add(kOut | own.parts_[0]);
  return true;
}

/// `shape`: that of the arrays before it; with -1 dimensions if there is none.
bool HostKey::add_array(nb::handle x, Shape& shape) {
  const nb::object numpy_dtype = kDtype(x);
  const auto dtype = exchange::dtype_of(numpy_dtype);
  if (!dtype) return false;
  const bool is_own_dtype = numpy_dtype.is(exchange::numpy_dtype(*dtype));
  // NumPy would give the result the metadata, too, which nothing else here does.
  if (!is_own_dtype && !exchange::attribute(numpy_dtype, kMetadata).is_none()) return false;
  int64_t sizes[kMaxDims], strides[kMaxDims];
  const int ndim = read_ints(kShape(x), sizes);
  if (ndim < 0 || read_ints(kStrides(x), strides) != ndim) return false;
  const int64_t item = item_bytes(*dtype);
  if (!are_usual(sizes, strides, ndim, item)) return false;
  is_plain_ = is_plain_ && is_own_dtype && is_compact(sizes, strides, ndim, item);
  if (shape.ndim < 0) {
    shape.ndim = ndim;
    std::copy(sizes, sizes + ndim, shape.sizes);
  } else if (!is_same(shape, sizes, ndim)) {
    is_plain_ = false;
    if (!broadcast(shape, sizes, ndim)) return false;
  }
  add(uint32_t{dtype->code} | uint32_t{dtype->bits} << 8 | uint32_t{dtype->lanes} << 16 | (ndim == 0 ? kIs0d : 0));
  return true;
}

// ---- plans ----

HostPlan::HostPlan(nb::handle described) {
  if (described.is_none()) return;
  for (nb::handle value : described.attr("values")) {
    values_.push_back({nb::cast<int>(value[0]), value[1], value[2], nb::cast<bool>(value[3])});
  }
  for (nb::handle pair : described.attr("compared")) {
    const auto dtype = exchange::dtype_of(pair[1]);
    compared_.push_back({nb::cast<int>(pair[0]), dtype.value()});
  }
  for (nb::handle constant : described.attr("constants")) constants_.push_back(nb::borrow(constant));
  for (nb::handle step : described.attr("steps")) {
    Step made{step[0], nb::cast<std::vector<int>>(step[1]), read_keywords(step[2]), read_keywords(step[3]),
              nb::cast<std::vector<int>>(step[4])};
    if (made.operands.size() > kMaxOperands || std::max(made.plain.values.size(), made.full.values.size()) > kMaxNamed)
      throw ValueError("interop: no such step");
    steps_.push_back(std::move(made));
  }
}

HostPlan::Keywords HostPlan::read_keywords(nb::handle given) {
  Keywords keywords;
  nb::list names;
  for (auto [name, value] : nb::borrow<nb::dict>(given)) {
    names.append(name);
    keywords.values.push_back(nb::borrow(value));
  }
  if (!keywords.values.empty()) keywords.names = nb::tuple(names);
  return keywords;
}

bool HostPlan::computes(const nb::handle* scalars) const {
  return !steps_.empty() && std::all_of(compared_.begin(), compared_.end(), [&](const Compared& x) {
    return fits(scalars[x.source], kind_of(scalars[x.source]), x.dtype);
  });
}

nb::object HostPlan::run(const char* function, const nb::handle* arrays, int array_count, const nb::handle* scalars,
                         nb::handle out, bool is_plain) const {
  const auto value_count = static_cast<int>(values_.size()), constant_count = static_cast<int>(constants_.size());
  Room<nb::object> made(value_count + static_cast<int>(steps_.size()));  // values, and results
  for (int k = 0; k < value_count; ++k) {
    const Value& value = values_[static_cast<size_t>(k)];
    made[k] = kElementOf.get()(function, value.label, scalars[value.source], value.dtype, value.warns);
  }
  const auto operand = [&](int place) {
    if (place < array_count) return arrays[place];
    place -= array_count;
    if (place < value_count) return nb::handle(made[place]);
    place -= value_count;
    if (place < constant_count) return nb::handle(constants_[static_cast<size_t>(place)]);
    return nb::handle(made[value_count + place - constant_count]);
  };
  int result = value_count;
  for (const Step& step : steps_) {
    const Keywords& keywords = is_plain ? step.plain : step.full;
    PyObject* args[1 + kMaxOperands + kMaxNamed];  // the first one is NumPy's to use
    PyObject** next = args + 1;
    for (const int place : step.operands) *next++ = operand(place).ptr();
    for (const nb::object& value : keywords.values) *next++ = value.ptr();
    if (&step == &steps_.back() && !out.is_none()) next[-1] = out.ptr();
    PyObject* const computed = PyObject_Vectorcall(
        step.function.ptr(), args + 1, step.operands.size() | PY_VECTORCALL_ARGUMENTS_OFFSET, keywords.names.ptr());
    if (!computed) nb::raise_python_error();
    made[result++] = nb::steal(computed);
    for (const int place : step.last_uses) made[value_count + place].reset();
  }
  nb::object& last = made[result - 1];
  if (!is_ndarray(last)) last = kAsarray.get()(last);  // NumPy's scalar, of 0-d arrays
  return std::move(last);
}

const HostPlan* HostPlans::find(const HostKey& key) const {
  for (const auto& [known, plan] : plans_) {
    if (known == key) return plan.get();
  }
  return nullptr;
}

void HostPlans::keep(const HostKey& key, nb::handle described) {
  auto made = std::make_unique<const HostPlan>(described);
  if (!find(key)) plans_.emplace_back(key, std::move(made));  // NumPy let other threads in
}

}  // namespace interop::bindings
