/// `Array.resize`: another shape in place, as `std::vector::resize` has it.
#include <interop/cuda/memory.h>

#include <algorithm>
#include <optional>

#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "bindings/memory/arguments.h"
#include "exchange/array/array.h"
#include "exchange/array/shared.h"
#include "exchange/closing.h"

namespace interop::bindings {
namespace {

using exchange::Array;

constexpr const char* kFunction = "interop.Array.resize";
constexpr CopyNames kNames{kFunction, "the array", "the array"};

/// `count` elements of the memory from place `first` on, in one dimension.
nb::object part_of(const Array& array, int64_t first, int64_t count) {
  Array part = array;
  part.buffers = 0;
  part.data = static_cast<char*>(array.data) + first * item_bytes(array.dtype);
  part.shape = {count};
  part.strides = {1};
  return nb::cast(std::move(part));
}

/// Throws ValueError where somebody else has the memory, or a part of it is not the array's.
void check_alone(const Array& array) {
  const auto refuse = [](const char* what) {
    throw ValueError(std::string(kFunction) + ": " + what +
                     "; accepted: an array of interop's own, whose memory nobody else has");
  };
  if (array.is_view) refuse("the memory is another library's");
  if (array.on_host() && exchange::host_pages(byte_range(array.tensor())))
    refuse("the memory is shared with other processes, or may be");
  if (array.memory.use_count() > 1 || array.buffers > 0) {
    refuse(
        "the memory is in use by a view, a buffer (such as that of a NumPy view), an export to another library, or a "
        "call");
  }
  if (array.data != array.memory.get() || !is_compact(array.tensor())) refuse("the array is a part of its memory");
}

/// Moves the first `count` elements to new memory of the same kind, behind the work on the old one.
void move(Array& array, const Shape& shape, int64_t count) {
  cudaStream_t stream = nullptr;
  std::optional<cuda::DeviceGuard> guard;
  DLDevice device = array.device;
  if (array.gpu >= 0) {
    exchange::enter_foreign(kFunction, "CUDA");
    guard.emplace(array.gpu);
    stream = cuda::own_stream();
  }
  const nb::object made = nb::cast(make_array(kFunction, shape, array.dtype, device, stream));
  Array& fresh = nb::cast<Array&>(made);
  if (count > 0) copy_into(kNames, part_of(fresh, 0, count), part_of(array, 0, count));
  check_alone(array);                      // other threads have run meanwhile
  array.memory = std::move(fresh.memory);  // the old memory is freed behind its last use, which was the copy
  array.data = fresh.data;
  array.work = fresh.work;
  array.capacity = fresh.capacity;
}

/// Nobody else begins to use the array, in this thread or another, as long as this lives.
class Resizing {
 public:
  explicit Resizing(Array& array) : array_(array) { array.resizing.is_on = true; }
  ~Resizing() { array_.resizing.is_on = false; }
  Resizing(const Resizing&) = delete;
  Resizing& operator=(const Resizing&) = delete;

 private:
  Array& array_;
};

void resize(Array& array, nb::handle given) {
  const Shape shape = read_shape(kFunction, given, array.dtype);
  array.check_address();
  check_alone(array);
  const Resizing resizing(array);
  const int64_t old_count = element_count(array.shape.data(), static_cast<int>(array.shape.size()));
  const int64_t count = element_count(shape.sizes, shape.ndim);
  if (static_cast<size_t>(count * item_bytes(array.dtype)) > array.capacity) {
    move(array, shape, std::min(old_count, count));
  }
  array.shape.assign(shape.sizes, shape.sizes + shape.ndim);
  array.strides.resize(array.shape.size());
  compact_strides(shape.sizes, shape.ndim, array.strides.data());
  if (count > old_count) copy_into(kNames, part_of(array, old_count, count - old_count), nb::bool_(false));
}

}  // namespace

void add_resize(nb::object object) {
  nb::borrow<nb::class_<Array>>(object).def(
      "resize",
      [](Array& array, nb::args shape, nb::kwargs keywords) {
        check_method_call(kFunction, shape, keywords, "shape");
        const exchange::CallGuard guard;
        exchange::as_call(kFunction, false, [&] { resize(array, shape[0]); });
      },
      nb::sig("def resize(self, shape: int | tuple[int, ...] | list[int], /) -> None"),
      "Changes the shape in place, as `std::vector::resize`: the first elements, in row-major order, are kept, and new "
      "ones are 0. The memory moves only where it is too small, behind the work that uses it. ValueError where a view, "
      "a buffer or another library's array has the memory, too.");
}

}  // namespace interop::bindings
