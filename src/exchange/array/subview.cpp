/// Views of an `interop.Array`: other shapes and strides on the same memory.
#include "exchange/array/subview.h"

#include <algorithm>

namespace interop::exchange {
namespace {

/// An array on the memory of another, which has no shape yet.
Array same_memory(const Array& array) {
  Array view = array;
  view.shape.clear();
  view.strides.clear();
  view.buffers = 0;
  return view;
}

[[noreturn]] void index_error(const std::string& message) {
  throw nb::index_error(("interop.Array: " + message).c_str());
}

bool is_newaxis(nb::handle item) { return item.is_none(); }
bool is_ellipsis(nb::handle item) { return item.ptr() == Py_Ellipsis; }

void move(Array& view, int64_t elements) {
  if (view.data) view.data = static_cast<char*>(view.data) + elements * item_bytes(view.dtype);
}

/// Takes one element along a dimension of this size and stride.
void take_index(Array& view, nb::handle item, size_t axis, int64_t size, int64_t stride) {
  const Py_ssize_t given = PyNumber_AsSsize_t(item.ptr(), nullptr);  // of a larger one, the largest
  if (given == -1 && PyErr_Occurred()) nb::raise_python_error();
  if (given < -size || given >= size) {
    index_error("index " + shown(item) + " is out of bounds for axis " + std::to_string(axis) + ", whose size is " +
                std::to_string(size));
  }
  move(view, (given < 0 ? given + size : given) * stride);
}

void take_slice(Array& view, nb::handle item, int64_t size, int64_t stride) {
  Py_ssize_t start, stop, step;
  if (PySlice_Unpack(item.ptr(), &start, &stop, &step) < 0) nb::raise_python_error();
  const Py_ssize_t count = PySlice_AdjustIndices(size, &start, &stop, step);
  if (count > 0) move(view, start * stride);
  view.shape.push_back(count);
  view.strides.push_back(count > 1 ? step * stride : stride);
}

/// The items of a key. Throws for one that names no view, and for more of them than the array has dimensions.
std::vector<nb::handle> read_key(const Array& array, nb::handle key) {
  std::vector<nb::handle> items;
  if (PyTuple_Check(key.ptr())) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key.ptr()); ++i) items.emplace_back(PyTuple_GET_ITEM(key.ptr(), i));
  } else {
    items.push_back(key);
  }
  size_t taken = 0, ellipses = 0;
  for (nb::handle item : items) {
    const bool is_int = PyIndex_Check(item.ptr()) && !PyBool_Check(item.ptr()) && !find_route(item);
    if (!is_int && !PySlice_Check(item.ptr()) && !is_newaxis(item) && !is_ellipsis(item)) {
      throw TypeError("interop.Array: an index is " + type_text(item) + "; accepted: ints, slices, Ellipsis and None");
    }
    if (is_ellipsis(item)) {
      ++ellipses;
    } else if (!is_newaxis(item)) {
      ++taken;
    }
  }
  if (ellipses > 1) index_error("an index has more than one Ellipsis");
  if (taken > array.shape.size()) {
    index_error("there are " + std::to_string(taken) + " indices for " + std::to_string(array.shape.size()) +
                " dimension(s)");
  }
  return items;
}

// ---- reshape ----

/// The shape with its -1 replaced. Throws ValueError where the number of elements is another.
std::vector<int64_t> completed(const Array& array, std::vector<int64_t> shape) {
  const int64_t count = element_count(array.shape.data(), static_cast<int>(array.shape.size()));
  const auto refuse = [&](const char* accepted) {
    throw ValueError("interop.Array.reshape: shape is " + shape_text(shape.data(), static_cast<int>(shape.size())) +
                     ", and the array has shape " +
                     shape_text(array.shape.data(), static_cast<int>(array.shape.size())) + "; accepted: " + accepted);
  };
  int64_t known = 1, *open = nullptr;
  for (int64_t& size : shape) {
    if (size < -1 || (size == -1 && open)) refuse("sizes of 0 and more, and one -1");
    if (size == -1) {
      open = &size;
    } else if (__builtin_mul_overflow(known, size, &known)) {
      refuse("a shape of as many elements");
    }
  }
  if (open && known > 0 && count % known == 0) {
    *open = count / known;
  } else if (open || known != count) {
    refuse("a shape of as many elements");
  }
  return shape;
}

/// Fills the strides of `view`, whose shape is known. False where only a copy has the elements in that order.
bool fill_strides(const Array& array, Array& view) {
  view.strides.assign(view.shape.size(), 1);
  if (byte_count(array) == 0) {
    compact_strides(view.shape.data(), static_cast<int>(view.shape.size()), view.strides.data());
    return true;
  }
  // From the last dimension to the first: runs of old dimensions that merge, each cut into new ones.
  size_t old_end = array.shape.size(), new_end = view.shape.size();
  while (old_end > 0) {
    size_t old_begin = old_end - 1;
    if (array.shape[old_begin] == 1) {
      old_end = old_begin;
      continue;
    }
    int64_t count = array.shape[old_begin];
    const int64_t step = array.strides[old_begin];
    while (old_begin > 0) {
      const int64_t size = array.shape[old_begin - 1];
      if (size != 1 && array.strides[old_begin - 1] != step * count) break;
      count *= size;
      --old_begin;
    }
    int64_t cut = 1;
    while (cut < count) {
      if (new_end == 0) return false;
      view.strides[--new_end] = step * cut;
      cut *= view.shape[new_end];
    }
    if (cut != count) return false;
    old_end = old_begin;
  }
  return true;
}

}  // namespace

Array subview(const Array& array, nb::handle key) {
  const std::vector<nb::handle> items = read_key(array, key);
  const auto taken = static_cast<size_t>(std::count_if(
      items.begin(), items.end(), [](nb::handle item) { return !is_newaxis(item) && !is_ellipsis(item); }));
  Array view = same_memory(array);
  size_t axis = 0;
  const auto keep = [&](size_t count) {
    for (; count > 0; --count, ++axis) {
      view.shape.push_back(array.shape[axis]);
      view.strides.push_back(array.strides[axis]);
    }
  };
  for (nb::handle item : items) {
    if (is_newaxis(item)) {
      view.shape.push_back(1);
      view.strides.push_back(1);
    } else if (is_ellipsis(item)) {
      keep(array.shape.size() - taken);
    } else {
      const int64_t size = array.shape[axis], stride = array.strides[axis];
      if (PySlice_Check(item.ptr())) {
        take_slice(view, item, size, stride);
      } else {
        take_index(view, item, axis, size, stride);
      }
      ++axis;
    }
  }
  keep(array.shape.size() - axis);
  if (view.shape.size() > kMaxDims) index_error("a view has at most " + std::to_string(kMaxDims) + " dimensions");
  return view;
}

Array reshaped(const Array& array, const std::vector<int64_t>& shape) {
  Array view = same_memory(array);
  view.shape = completed(array, shape);
  if (fill_strides(array, view)) return view;
  throw ValueError("interop.Array.reshape: the elements of shape " +
                   shape_text(array.shape.data(), static_cast<int>(array.shape.size())) +
                   " do not lie in the order of " + shape_text(view.shape.data(), static_cast<int>(view.shape.size())) +
                   "; accepted: interop.copy(x).reshape(shape)");
}

Array transposed(const Array& array, const std::vector<int64_t>& axes) {
  const auto ndim = static_cast<int64_t>(array.shape.size());
  Array view = same_memory(array);
  std::vector<bool> seen(array.shape.size());
  for (int64_t axis : axes) {
    const int64_t place = axis < 0 ? axis + ndim : axis;
    if (place < 0 || place >= ndim || seen[static_cast<size_t>(place)]) break;
    seen[static_cast<size_t>(place)] = true;
    view.shape.push_back(array.shape[static_cast<size_t>(place)]);
    view.strides.push_back(array.strides[static_cast<size_t>(place)]);
  }
  if (axes.size() == array.shape.size() && view.shape.size() == axes.size()) return view;
  throw ValueError("interop.Array.transpose: axes is " + shape_text(axes.data(), static_cast<int>(axes.size())) +
                   "; accepted: each of the " + std::to_string(ndim) + " dimension(s) once");
}

}  // namespace interop::exchange
