/// The machine's calling convention: the arguments of a call of a C function, where it looks for them.
#pragma once

#include <cstdint>
#include <cstring>

namespace interop::bindings {

using Word = uint64_t;

// Integers and floating-point numbers have registers of their own, in the order of the parameters among their kind; a
// parameter without a register takes 8 bytes of the stack. So one call with all registers filled serves every
// signature. libffi does the same, but takes four times as long.
#if defined(__linux__) && defined(__x86_64__)
inline constexpr int kIntegerRegisters = 6;  // System V AMD64
#define INTEROP_INTEGER_REGISTERS(r) r[0], r[1], r[2], r[3], r[4], r[5]
#define INTEROP_INTEGER_TYPES Word, Word, Word, Word, Word, Word
#elif defined(__linux__) && defined(__aarch64__)
inline constexpr int kIntegerRegisters = 8;  // AAPCS64
#define INTEROP_INTEGER_REGISTERS(r) r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7]
#define INTEROP_INTEGER_TYPES Word, Word, Word, Word, Word, Word, Word, Word
#else
inline constexpr int kIntegerRegisters = 0;  // not known here
#define INTEROP_INTEGER_REGISTERS(r) r[0]
#define INTEROP_INTEGER_TYPES Word
#endif
inline constexpr int kFloatRegisters = 8;
inline constexpr int kStackWords = 16;

/// The arguments of one call, where the convention puts them.
class Registers {
 public:
  void add_integer(Word value) {
    if (integer_count_ < kIntegerRegisters) {
      integers_[integer_count_++] = value;
    } else {
      stack_[stack_count_++] = value;
    }
  }
  void add_float(Word bits) {
    if (float_count_ < kFloatRegisters) {
      std::memcpy(&floats_[float_count_++], &bits, sizeof bits);  // a float is in the low half
    } else {
      stack_[stack_count_++] = bits;
    }
  }

  template <class Returned>
  Returned call(void* symbol) const {
    const auto& r = integers_;
    const auto& f = floats_;
    const auto& s = stack_;
    if (stack_count_ == 0) {
      using Function =
          Returned (*)(INTEROP_INTEGER_TYPES, double, double, double, double, double, double, double, double);
      return reinterpret_cast<Function>(symbol)(INTEROP_INTEGER_REGISTERS(r), f[0], f[1], f[2], f[3], f[4], f[5], f[6],
                                                f[7]);
    }
    using Function =
        Returned (*)(INTEROP_INTEGER_TYPES, double, double, double, double, double, double, double, double, Word, Word,
                     Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word);
    return reinterpret_cast<Function>(symbol)(INTEROP_INTEGER_REGISTERS(r), f[0], f[1], f[2], f[3], f[4], f[5], f[6],
                                              f[7], s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10],
                                              s[11], s[12], s[13], s[14], s[15]);
  }

 private:
  Word integers_[8] = {};
  double floats_[kFloatRegisters] = {};
  Word stack_[kStackWords] = {};
  int integer_count_ = 0, float_count_ = 0, stack_count_ = 0;
};

}  // namespace interop::bindings
