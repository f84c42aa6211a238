/// Parameters of kernels that are mdspans of libcu++: the checks, and the bytes of a value.
#include "bindings/functions/mdspan.h"

#include <interop/error.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace interop::bindings {
namespace {

/// The stride along a dimension of at most one element is never used: where it does not fit, another will do.
int64_t stride_of(const MdspanForm& form, const DLTensor& tensor, int d) {
  const int64_t stride = tensor.strides[d];
  if (tensor.shape[d] > 1) return stride;
  return stride > form.most_index || stride < form.least_index ? 1 : stride;
}

/// Little-endian, as CUDA's machines are.
void put_index(int64_t value, int bytes, unsigned char* at) {
  switch (bytes) {  // each without a call
    case 4:
      std::memcpy(at, &value, 4);
      break;
    case 8:
      std::memcpy(at, &value, 8);
      break;
    default:
      std::memcpy(at, &value, static_cast<size_t>(bytes));
  }
}

}  // namespace

MdspanForm MdspanForm::of(const std::vector<int64_t>& numbers) {
  MdspanForm form;
  form.layout = static_cast<char>(numbers.at(0));
  form.index_bytes = static_cast<int>(numbers.at(1));
  form.index_signed = numbers.at(2) != 0;
  const int bits = 8 * form.index_bytes - (form.index_signed ? 1 : 0);
  form.most_index = bits >= 63 ? std::numeric_limits<int64_t>::max() : (int64_t{1} << bits) - 1;
  form.least_index = form.index_signed ? -form.most_index - 1 : 0;
  form.extents.assign(numbers.begin() + 3, numbers.end());
  return form;
}

void check_mdspan_form(const MdspanForm& form, const DLTensor& tensor, const char* function, const char* name) {
  const auto ndim = static_cast<int>(form.extents.size());
  bool fits = tensor.ndim == ndim;
  for (int d = 0; fits && d < ndim; ++d) fits = form.extents[d] < 0 || form.extents[d] == tensor.shape[d];
  if (!fits) {
    std::string accepted;
    for (const int64_t extent : form.extents) {
      accepted += (accepted.empty() ? "" : ", ") + (extent < 0 ? std::string("*") : std::to_string(extent));
    }
    throw ValueError(std::string(function) + ": " + name + " has shape " + shape_text(tensor) + "; accepted: (" +
                     accepted + (ndim == 1 ? ",)" : ")") + ", the extents of its mdspan");
  }
  if (form.layout == 'S' || (form.layout == 'C' ? is_compact(tensor) : is_compact_backwards(tensor))) return;
  const bool is_right = form.layout == 'C';
  throw ValueError(std::string(function) + ": " + name + " has shape " + shape_text(tensor) + " and strides " +
                   shape_text(tensor.strides, tensor.ndim) + "; accepted: a " +
                   (is_right ? "C-contiguous array, as its mdspan has layout_right"
                             : "Fortran-contiguous array, as its mdspan has layout_left") +
                   "; layout_stride takes any");
}

void check_mdspan_indices(const MdspanForm& form, const DLTensor& tensor, const char* function, const char* name) {
  if (form.index_bytes == 8 && form.index_signed) return;
  const int64_t most = form.most_index, least = form.least_index;
  int64_t first = 0, last = 0;  // no overflow: an array has fewer bytes than an int64_t counts
  bool fits = true, is_empty = false;
  for (int d = 0; d < tensor.ndim; ++d) {
    const int64_t size = tensor.shape[d];
    const int64_t stride = form.layout == 'S' ? stride_of(form, tensor, d) : 0;
    fits = fits && size <= most && stride <= most && stride >= least;
    is_empty |= size == 0;
    const int64_t steps = size > 1 ? size - 1 : 0;
    first += steps * std::min<int64_t>(tensor.strides[d], 0);
    last += steps * std::max<int64_t>(tensor.strides[d], 0);
  }
  if (fits && (is_empty || form.index_bytes == 8 || (last < most && first >= least))) return;
  throw ValueError(std::string(function) + ": " + name + " has shape " + shape_text(tensor) + " and strides " +
                   shape_text(tensor.strides, tensor.ndim) + ", which its mdspan counts in " +
                   (form.index_signed ? "signed" : "unsigned") + " integers of " +
                   std::to_string(8 * form.index_bytes) + " bits; accepted: sizes, strides and indices from " +
                   std::to_string(least) + " to " + std::to_string(most));
}

void put_mdspan(const MdspanForm& form, const MdspanLayout& layout, const DLTensor& tensor, unsigned char* at) {
  std::memcpy(at, layout.bytes.data(), layout.bytes.size());
  std::memcpy(at + layout.data, &tensor.data, sizeof tensor.data);
  for (int d = 0; d < tensor.ndim; ++d) {
    const auto i = static_cast<size_t>(d);
    if (layout.extents[i] >= 0) put_index(tensor.shape[d], form.index_bytes, at + layout.extents[i]);
    if (layout.strides[i] >= 0) put_index(stride_of(form, tensor, d), form.index_bytes, at + layout.strides[i]);
  }
}

}  // namespace interop::bindings
