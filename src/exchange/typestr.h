/// NumPy's and PEP 3118's spellings of a dtype, to and from DLPack's.
#pragma once

#include <interop/tensor.h>

#include <optional>
#include <string>

namespace interop::exchange {

/// "<f4" -> float32; none for a dtype that has no DLPack code, or foreign byte order.
std::optional<DLDataType> dtype_from_typestr(const std::string& typestr);
/// float32 -> "<f4"; empty if NumPy has no such type (bfloat16, float8, complex32).
std::string typestr_of(DLDataType dtype);

/// "float32" -> float32, "float8_e5m2" -> float8_e5m2; none for a name that is no dtype of ours.
std::optional<DLDataType> dtype_from_name(const std::string& name);

/// A PEP 3118 format and its item size -> dtype; none for structures, strings, objects, foreign byte order.
std::optional<DLDataType> dtype_from_format(const char* format, int64_t item_bytes);
/// dtype -> PEP 3118 format; null if it has none.
const char* format_of(DLDataType dtype);

}  // namespace interop::exchange
