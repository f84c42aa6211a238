/// The parameters of a kernel, and where their values lie in a launch.
#include "bindings/functions/kernel_declaration.h"

#include <interop/error.h>

#include <set>

#include "exchange/typestr.h"

namespace interop::bindings {
namespace {

const char* kept(const std::string& text) {
  static auto* const all = new std::set<std::string>;
  return all->insert(text).first->c_str();
}

using Kind = KernelParameter::Kind;

Kind kind_of(const std::string& name) {
  if (name == "pointer") return Kind::pointer;
  if (name == "view") return Kind::view;
  if (name == "mdspan") return Kind::mdspan;
  return name == "scalar" ? Kind::scalar : Kind::map;
}

std::shared_ptr<cuda::TensorMaps> maps_of(const std::vector<int64_t>& form) {
  cuda::TensorMapForm made;
  constexpr size_t kBox = 4;  // its place
  made.ndim = static_cast<int>(form.size() - kBox);
  made.swizzle = static_cast<int>(form.at(1));
  made.l2_promotion = static_cast<int>(form.at(2));
  made.fills_nan = form.at(3) != 0;
  for (size_t d = kBox; d < form.size(); ++d) made.box[d - kBox] = static_cast<uint32_t>(form[d]);
  return std::make_shared<cuda::TensorMaps>(made);
}

size_t rounded_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

size_t KernelParameter::bytes() const {
  switch (kind) {
    case Kind::pointer:
      return sizeof(void*);
    case Kind::view: {
      const size_t noted = checked ? 2 * sizeof(void*) : 0;  // where a fault is noted, and as whose
      return sizeof(void*) + 2 * sizeof(int64_t) * static_cast<size_t>(ndim) + noted;
    }
    case Kind::mdspan:
      return mdspan_room(ndim);
    case Kind::map:
      return sizeof(cuda::TensorMap);
    default:
      return static_cast<size_t>(item_bytes(dtype));
  }
}

KernelDeclaration::KernelDeclaration(const std::string& label_, const std::vector<KernelParameter::Declared>& declared,
                                     bool checks_indexes)
    : label(kept(label_)) {
  size_t end = 0;
  for (const auto& [kind, name, dtype, written, ndim, form] : declared) {
    const Kind known = kind_of(kind);
    const auto place = static_cast<int>(parameters.size());
    const auto type = dtype.empty() ? DLDataType{} : exchange::dtype_from_name(dtype);
    if (!type) throw TypeError("interop.kernel: no dtype is called " + dtype);
    const bool is_map = known == Kind::map;
    const int map_of = is_map ? static_cast<int>(form.at(0)) : -1;
    if (is_map) end = rounded_up(end, alignof(cuda::TensorMap));
    KernelParameter parameter{known,
                              name,
                              *type,
                              written,
                              ndim,
                              checks_indexes && known == Kind::view,
                              end,
                              known != Kind::scalar && (!is_map || map_of == place),
                              known == Kind::mdspan ? MdspanForm::of(form) : MdspanForm{},
                              is_map ? maps_of(form) : nullptr,
                              map_of};
    if (is_map && first_map < 0) first_map = place;
    end += rounded_up(parameter.bytes(), 16);
    has_checked_views |= parameter.checked;
    parameters.push_back(std::move(parameter));
  }
  if (parameters.size() > kMostParameters || end > kMostParameterBytes) {
    throw ValueError(label_ + " has " + std::to_string(parameters.size()) + " parameters of " + std::to_string(end) +
                     " bytes; accepted: up to " + std::to_string(kMostParameters) + ", and " +
                     std::to_string(kMostParameterBytes) + " bytes, each rounded up to 16");
  }
}

}  // namespace interop::bindings
