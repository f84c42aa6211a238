/// What all handlers that XLA calls share: its buffers' dtypes, and our errors as its own.
#pragma once

#include <interop/error.h>
#include <interop/tensor.h>
#include <xla/ffi/api/ffi.h>

#include <exception>
#include <string>

namespace interop {

namespace ffi = xla::ffi;

inline DLDataType dtype_of(const ffi::AnyBuffer& buffer) {
  switch (buffer.element_type()) {
    case ffi::DataType::PRED:
      return {kDLBool, 8, 1};
    case ffi::DataType::S8:
      return {kDLInt, 8, 1};
    case ffi::DataType::S16:
      return {kDLInt, 16, 1};
    case ffi::DataType::S32:
      return {kDLInt, 32, 1};
    case ffi::DataType::S64:
      return {kDLInt, 64, 1};
    case ffi::DataType::U8:
      return {kDLUInt, 8, 1};
    case ffi::DataType::U16:
      return {kDLUInt, 16, 1};
    case ffi::DataType::U32:
      return {kDLUInt, 32, 1};
    case ffi::DataType::U64:
      return {kDLUInt, 64, 1};
    case ffi::DataType::F16:
      return {kDLFloat, 16, 1};
    case ffi::DataType::BF16:
      return kBfloat16;
    case ffi::DataType::F32:
      return kFloat32;
    case ffi::DataType::F64:
      return kFloat64;
    case ffi::DataType::C64:
      return {kDLComplex, 64, 1};
    case ffi::DataType::C128:
      return {kDLComplex, 128, 1};
    case ffi::DataType::F8E4M3FN:
      return {kDLFloat8_e4m3fn, 8, 1};
    case ffi::DataType::F8E5M2:
      return {kDLFloat8_e5m2, 8, 1};
    default:
      throw TypeError("an XLA buffer of element type " + std::to_string(static_cast<int>(buffer.element_type())) +
                      "; accepted: PRED, S8 to S64, U8 to U64, F16, BF16, F32, F64, C64, C128, F8E4M3FN, F8E5M2");
  }
}

/// An error of ours as XLA's; `interop.jax` knows it by its first words.
inline ffi::Error report(ffi::ErrorCode code, const std::string& function, const std::string& message) {
  const std::string prefix = function + ": ";
  return ffi::Error(code, message.compare(0, prefix.size(), prefix) == 0 ? message : prefix + message);
}

/// Runs `work`; an exception of it becomes XLA's error.
template <class Work>
ffi::Error guarded(const std::string& function, Work work) {
  try {
    return work();
  } catch (const TypeError& error) {
    return report(ffi::ErrorCode::kInvalidArgument, function, error.what());
  } catch (const ValueError& error) {
    return report(ffi::ErrorCode::kInvalidArgument, function, error.what());
  } catch (const std::exception& error) {
    return report(ffi::ErrorCode::kInternal, function, error.what());
  } catch (...) {
    return report(ffi::ErrorCode::kInternal, function, "unknown C++ exception");
  }
}

}  // namespace interop
