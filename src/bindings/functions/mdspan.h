/// Parameters of kernels that are mdspans of libcu++: what they are declared as, and where the compiler has put the
/// parts of one.
#pragma once

#include <interop/tensor.h>

#include <cstddef>
#include <string>
#include <vector>

namespace interop::bindings {

/// What the type says.
struct MdspanForm {
  char layout = 'C';  // 'C': layout_right, 'F': layout_left, 'S': layout_stride
  int index_bytes = 8;
  bool index_signed = true;
  int64_t least_index = 0, most_index = 0;  // of its type, as far as an array has so many
  std::vector<int64_t> extents;             // -1 for a dynamic one

  /// As Python passes it: layout, bytes of an index, is it signed, and the extents.
  static MdspanForm of(const std::vector<int64_t>& numbers);
};

/// Where its parts are, as the compiler has it.
struct MdspanLayout {
  std::string bytes;                  // of any value
  int data;                           // the place of the pointer in them
  std::vector<int> extents, strides;  // those of each dimension; -1 where a value has none
};
inline bool operator==(const MdspanLayout& x, const MdspanLayout& y) {
  return x.bytes == y.bytes && x.data == y.data && x.extents == y.extents && x.strides == y.strides;
}
/// Of each mdspan among the parameters of a kernel, in their order.
using MdspanLayouts = std::vector<MdspanLayout>;

/// The most bytes that a value may have, for the room that is kept for it.
constexpr size_t mdspan_room(int ndim) { return 48 + 16 * static_cast<size_t>(ndim); }

/// Throws ValueError where an array has another shape or order than the form. `function` and `name` are for messages.
void check_mdspan_form(const MdspanForm& form, const DLTensor& tensor, const char* function, const char* name);
/// Throws ValueError where a size, a stride or an index is beyond the form's type of indices.
void check_mdspan_indices(const MdspanForm& form, const DLTensor& tensor, const char* function, const char* name);
/// Writes the value for an array that has passed both to `at`, which has room for it.
void put_mdspan(const MdspanForm& form, const MdspanLayout& layout, const DLTensor& tensor, unsigned char* at);

}  // namespace interop::bindings
