/// An array as an mdspan: of libcu++ (`cuda::std::mdspan`), of the standard library from C++23 on, or of Kokkos. None
/// of them is included here.
///
///     using Matrix = cuda::std::mdspan<const float, cuda::std::dextents<int, 2>>;
///     const Matrix x = interop::as_mdspan<Matrix>(tensor);
#pragma once

#include <dlpack/dlpack.h>
#include <interop/error.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

namespace interop {
namespace detail {

/// The layouts whose strides are given, not computed: layout_stride.
template <class Mapping, class = void>
struct TakesStrides : std::false_type {};
template <class Mapping>
struct TakesStrides<Mapping, std::void_t<decltype(Mapping(std::declval<const typename Mapping::extents_type&>(),
                                                          std::declval<const Mapping&>().strides()))>>
    : std::true_type {};

/// Is it the dtype of the elements? Of types that are no numbers to C++, such as `__half`, the size is all that is
/// known.
template <class Element>
bool is_dtype_of(DLDataType dtype) {
  using Plain = std::remove_const_t<Element>;
  if (dtype.bits * dtype.lanes != 8 * sizeof(Element)) return false;
  if (!std::is_arithmetic_v<Plain> || std::is_same_v<Plain, char>) return true;
  const auto code = std::is_same_v<Plain, bool>       ? kDLBool
                    : std::is_floating_point_v<Plain> ? kDLFloat
                    : std::is_signed_v<Plain>         ? kDLInt
                                                      : kDLUInt;
  return dtype.code == code && dtype.lanes == 1;
}

template <class Mdspan, std::size_t... d>
Mdspan as_mdspan(const DLTensor& tensor, const std::string& name, std::index_sequence<d...>) {
  using Index = typename Mdspan::index_type;
  using Extents = typename Mdspan::extents_type;
  using Mapping = typename Mdspan::mapping_type;
  using Element = typename Mdspan::element_type;
  const auto refuse = [&](const std::string& what) { throw ValueError(name + " " + what); };
  constexpr auto kRank = static_cast<int32_t>(sizeof...(d));
  const int64_t shape[] = {tensor.shape[d]...};
  int64_t strides[] = {tensor.strides ? tensor.strides[d] : 0 ...};
  for (int32_t i = kRank - 1; !tensor.strides && i >= 0; --i) {
    strides[i] = i == kRank - 1 ? 1 : strides[i + 1] * shape[i + 1];
  }
  const auto fits = [](int64_t x) {
    using Limits = std::numeric_limits<Index>;
    if (!std::is_signed_v<Index>) return x >= 0 && static_cast<uint64_t>(x) <= Limits::max();
    return x >= static_cast<int64_t>(Limits::min()) && x <= static_cast<int64_t>(Limits::max());
  };
  if (!is_dtype_of<Element>(tensor.dtype)) throw TypeError(name + " has elements of another type");
  int64_t first = 0, last = 0;
  bool is_empty = false;
  for (int32_t i = 0; i < kRank; ++i) {
    const auto extent = Extents::static_extent(static_cast<typename Extents::rank_type>(i));
    const bool is_static = extent != std::numeric_limits<decltype(Extents::static_extent(0))>::max();
    if (is_static && static_cast<int64_t>(extent) != shape[i]) {
      refuse("has the size " + std::to_string(shape[i]) + " in dimension " + std::to_string(i) +
             "; accepted: " + std::to_string(extent) + ", its static extent");
    }
    if (shape[i] <= 1 && !fits(strides[i])) strides[i] = 1;  // which nothing is multiplied by
    is_empty |= shape[i] == 0;
    (strides[i] > 0 ? last : first) += (shape[i] > 1 ? shape[i] - 1 : 0) * strides[i];
    if (!fits(shape[i]) || !fits(strides[i])) refuse("has sizes or strides beyond the mdspan's type of indices");
  }
  if (!is_empty && !(fits(first) && fits(last + 1)))
    refuse("has more elements than the mdspan's type of indices counts");
  const Extents extents(static_cast<Index>(shape[d])...);
  auto* const data = reinterpret_cast<Element*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
  if constexpr (TakesStrides<Mapping>::value) {
    auto given = Mapping().strides();
    for (int32_t i = 0; i < kRank; ++i) given[static_cast<std::size_t>(i)] = static_cast<Index>(strides[i]);
    return Mdspan(data, Mapping(extents, given));
  } else {
    const Mapping mapping(extents);
    for (int32_t i = 0; i < kRank; ++i) {
      if (shape[i] > 1 && !is_empty &&
          static_cast<int64_t>(mapping.stride(static_cast<typename Extents::rank_type>(i))) != strides[i]) {
        refuse("has the stride " + std::to_string(strides[i]) + " in dimension " + std::to_string(i) +
               "; accepted: " + std::to_string(mapping.stride(static_cast<typename Extents::rank_type>(i))) +
               ", as the mdspan's layout has it, or layout_stride");
      }
    }
    return Mdspan(data, mapping);
  }
}

}  // namespace detail

/// The array as an mdspan, valid as long as its memory. Throws TypeError for another dtype, as far as the type of the
/// elements says it, and ValueError for another number of dimensions, sizes that are not the static extents, strides
/// that are not the layout's, and for more than the type of its indices counts; `name` is what the message calls the
/// array. Whether the array may be written to, and where its memory is, its owner knows.
template <class Mdspan>
Mdspan as_mdspan(const DLTensor& tensor, const std::string& name = "interop::as_mdspan: the array") {
  static_assert(Mdspan::rank() >= 1, "an mdspan of at least one dimension");
  if (tensor.ndim != static_cast<int32_t>(Mdspan::rank())) {
    throw ValueError(name + " has " + std::to_string(tensor.ndim) +
                     " dimensions; accepted: " + std::to_string(Mdspan::rank()));
  }
  return detail::as_mdspan<Mdspan>(tensor, name, std::make_index_sequence<Mdspan::rank()>());
}

}  // namespace interop
