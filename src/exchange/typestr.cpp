/// NumPy's and PEP 3118's spellings of a dtype.
#include "exchange/typestr.h"

#include <cstring>

namespace interop::exchange {
namespace {

struct Kind {
  char typestr;  // NumPy's kind letter
  uint8_t code;
};
constexpr Kind kKinds[] = {{'i', kDLInt}, {'u', kDLUInt}, {'f', kDLFloat}, {'c', kDLComplex}, {'b', kDLBool}};

struct Format {
  const char* text;
  DLDataType dtype;
};
constexpr Format kFormats[] = {
    {"?", {kDLBool, 8, 1}},      {"b", {kDLInt, 8, 1}},        {"h", {kDLInt, 16, 1}},   {"i", {kDLInt, 32, 1}},
    {"q", {kDLInt, 64, 1}},      {"B", {kDLUInt, 8, 1}},       {"H", {kDLUInt, 16, 1}},  {"I", {kDLUInt, 32, 1}},
    {"Q", {kDLUInt, 64, 1}},     {"e", {kDLFloat, 16, 1}},     {"f", {kDLFloat, 32, 1}}, {"d", {kDLFloat, 64, 1}},
    {"Zf", {kDLComplex, 64, 1}}, {"Zd", {kDLComplex, 128, 1}},
};

/// Dtypes that NumPy has by ml_dtypes alone: neither protocol of its own can spell them.
constexpr DLDataType kExtensions[] = {
    {kDLBfloat, 16, 1},        {kDLFloat8_e3m4, 8, 1},     {kDLFloat8_e4m3, 8, 1}, {kDLFloat8_e4m3b11fnuz, 8, 1},
    {kDLFloat8_e4m3fn, 8, 1},  {kDLFloat8_e4m3fnuz, 8, 1}, {kDLFloat8_e5m2, 8, 1}, {kDLFloat8_e5m2fnuz, 8, 1},
    {kDLFloat8_e8m0fnu, 8, 1},
};

bool served_bits(uint8_t code, int64_t bits) {
  switch (code) {
    case kDLBool:
      return bits == 8;
    case kDLFloat:
      return bits == 16 || bits == 32 || bits == 64;
    case kDLComplex:
      return bits == 64 || bits == 128;
    default:
      return bits == 8 || bits == 16 || bits == 32 || bits == 64;
  }
}

}  // namespace

std::optional<DLDataType> dtype_from_typestr(const std::string& typestr) {
  if (typestr.size() < 3 || typestr.size() > 4) return std::nullopt;
  const char order = typestr[0];
  int64_t bytes = 0;
  for (size_t i = 2; i < typestr.size(); ++i) {
    if (typestr[i] < '0' || typestr[i] > '9') return std::nullopt;
    bytes = bytes * 10 + (typestr[i] - '0');
  }
  if (order != '<' && order != '|' && order != '=') return std::nullopt;
  for (const Kind& kind : kKinds) {
    if (kind.typestr == typestr[1] && served_bits(kind.code, bytes * 8)) {
      return DLDataType{kind.code, static_cast<uint8_t>(bytes * 8), 1};
    }
  }
  return std::nullopt;
}

std::string typestr_of(DLDataType dtype) {
  for (const Kind& kind : kKinds) {
    if (kind.code == dtype.code && served_bits(kind.code, dtype.bits)) {
      return std::string(dtype.bits == 8 ? "|" : "<") + kind.typestr + std::to_string(dtype.bits / 8);
    }
  }
  return "";
}

std::optional<DLDataType> dtype_from_name(const std::string& name) {
  for (const Format& candidate : kFormats) {
    if (dtype_name(candidate.dtype) == name) return candidate.dtype;
  }
  for (DLDataType candidate : kExtensions) {
    if (dtype_name(candidate) == name) return candidate;
  }
  return std::nullopt;
}

std::optional<DLDataType> dtype_from_format(const char* format, int64_t item_bytes) {
  if (!format) format = "B";  // PEP 3118: no format means bytes
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  // 'l' and 'L' have the platform's size: take the size from the item.
  if (std::strcmp(format, "l") == 0 || std::strcmp(format, "L") == 0) {
    if (item_bytes != 4 && item_bytes != 8) return std::nullopt;
    const auto bits = static_cast<uint8_t>(item_bytes * 8);
    return DLDataType{static_cast<uint8_t>(*format == 'l' ? kDLInt : kDLUInt), bits, 1};
  }
  for (const Format& candidate : kFormats) {
    if (std::strcmp(candidate.text, format) == 0 && candidate.dtype.bits == item_bytes * 8) return candidate.dtype;
  }
  return std::nullopt;
}

const char* format_of(DLDataType dtype) {
  for (const Format& candidate : kFormats) {
    if (candidate.dtype == dtype) return candidate.text;
  }
  return nullptr;
}

}  // namespace interop::exchange
