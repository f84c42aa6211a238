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

}  // namespace

size_t KernelParameter::bytes() const {
  if (kind == Kind::pointer) return sizeof(void*);
  if (kind == Kind::view) {
    const size_t noted = checked ? 2 * sizeof(void*) : 0;  // where a fault is noted, and as whose
    return sizeof(void*) + 2 * sizeof(int64_t) * static_cast<size_t>(ndim) + noted;
  }
  return static_cast<size_t>(item_bytes(dtype));
}

KernelDeclaration::KernelDeclaration(const std::string& label_, const std::vector<KernelParameter::Declared>& declared,
                                     bool checks_indexes)
    : label(kept(label_)) {
  using Kind = KernelParameter::Kind;
  size_t end = 0;
  for (const auto& [kind, name, dtype, written, ndim] : declared) {
    const Kind known = kind == "pointer" ? Kind::pointer : kind == "view" ? Kind::view : Kind::scalar;
    const auto type = dtype.empty() ? DLDataType{} : exchange::dtype_from_name(dtype);
    if (!type) throw TypeError("interop.kernel: no dtype is called " + dtype);
    KernelParameter parameter{known, name, *type, written, ndim, checks_indexes && known == Kind::view, end};
    end += (parameter.bytes() + 15) / 16 * 16;
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
