/// The table of operations on elements, for the rules, the kernels, NumPy, JAX and the pages.
/// Python reads the table by `interop._core.operations()`. Knows neither Python nor CUDA.
#pragma once

#include <cstdint>
#include <string_view>

namespace interop {

/// The dtype of an operation's result, from the dtype in which it is computed.
enum class Gives : uint8_t {
  same,   ///< that dtype
  truth,  ///< bool
  part    ///< the dtype of the parts for a complex one, otherwise the same
};

/// Operations that one kernel switches between, since memory takes longer than the switch. `parts`: abs of complex
/// numbers, which gives another dtype. `swapped`: a > b is b < a, which one of the `comparisons` computes.
enum class Family : uint8_t { simple, divisions, comparisons, parts, swapped };

/// One operation on elements. Its operands are called x; or a and b; or condition, x and y.
struct Operation {
  const char* name;    ///< as the array API calls it
  const char* symbol;  ///< in an expression; null where it is written as a function there
  int arity;
  const char* functor;  ///< in src/cuda/elementwise, of one or more headers that end in functors.cuh
  const char* accepts;  ///< kinds of dtypes, by NumPy's letters: bool, signed and unsigned integers, floats, complex
  Gives gives;
  /// Integers and bools are computed in the default float of the array library.
  bool in_float;
  /// How many operands, the first ones, are only tested for zero. They take no part in promotion.
  int truths;
  const char* numpy;  ///< NumPy's function, by the name that it has in every version
  const char* torch;  ///< torch's; null where there is none
  /// The derivative by each operand, as an expression of the operands, of real numbers. Null: there is none.
  const char* derivatives[3] = {};
  const char* identity = nullptr;  ///< changes no other operand; null if nothing does: "0", "1", "largest", "least"
};

/// The operations that are functions of the package, and have kernels in it:
/// X(name, symbol, arity, functor, family, accepts, gives, in_float, numpy, torch, identity, derivatives).
#define INTEROP_FUNCTIONS(X)                                                                                          \
  X(add, "+", 2, Add, simple, "biufc", same, false, "add", "add", "0", "1", "1")                                      \
  X(subtract, "-", 2, Subtract, simple, "iufc", same, false, "subtract", "subtract", nullptr, "1", "-1")              \
  X(multiply, "*", 2, Multiply, simple, "biufc", same, false, "multiply", "multiply", "1", "b", "a")                  \
  X(divide, "/", 2, Divide, simple, "fc", same, true, "divide", "divide", nullptr, "1 / b", "-(a / b) / b")           \
  X(floor_divide, "//", 2, FloorDivide, divisions, "iuf", same, false, "floor_divide", "floor_divide", nullptr, "0",  \
    "0")                                                                                                              \
  X(remainder, "%", 2, Remainder, divisions, "iuf", same, false, "remainder", "remainder", nullptr, "1", "-(a // b)") \
  X(minimum, nullptr, 2, Minimum, simple, "biuf", same, false, "minimum", "minimum", "largest",                       \
    "where(a > b, 0, where(a == b, 0.5, 1))", "where(b > a, 0, where(a == b, 0.5, 1))")                               \
  X(maximum, nullptr, 2, Maximum, simple, "biuf", same, false, "maximum", "maximum", "least",                         \
    "where(a < b, 0, where(a == b, 0.5, 1))", "where(b < a, 0, where(a == b, 0.5, 1))")                               \
  X(pow, "**", 2, Pow, divisions, "iufc", same, false, "power", "pow", nullptr,                                       \
    "where(b == 0, 0, b * a ** where(b == 0, 0, b - 1))", "where(logical_and(a == 0, b >= 0), 0, log(a) * a ** b)")   \
  X(negative, "-", 1, Negative, simple, "iufc", same, false, "negative", "negative", nullptr, "-1", nullptr)          \
  X(abs, nullptr, 1, Abs, simple, "biufc", part, false, "absolute", "abs", nullptr,                                   \
    "where(x > 0, 1, where(x < 0, -1, 0))", nullptr)                                                                  \
  X(equal, "==", 2, Equal, comparisons, "biufc", truth, false, "equal", "eq", nullptr, nullptr, nullptr)              \
  X(not_equal, "!=", 2, NotEqual, comparisons, "biufc", truth, false, "not_equal", "ne", nullptr, nullptr, nullptr)   \
  X(less, "<", 2, Less, comparisons, "biuf", truth, false, "less", "lt", nullptr, nullptr, nullptr)                   \
  X(less_equal, "<=", 2, LessEqual, comparisons, "biuf", truth, false, "less_equal", "le", nullptr, nullptr, nullptr) \
  X(greater, ">", 2, Greater, swapped, "biuf", truth, false, "greater", "gt", nullptr, nullptr, nullptr)              \
  X(greater_equal, ">=", 2, GreaterEqual, swapped, "biuf", truth, false, "greater_equal", "ge", nullptr, nullptr,     \
    nullptr)

/// The operations that kernels of the package have: the functions, and the copy of an array.
enum class ElementwiseOp : uint8_t {
#define INTEROP_NAME(name, ...) name,
  INTEROP_FUNCTIONS(INTEROP_NAME)
#undef INTEROP_NAME
      copy
};

inline constexpr Operation kFunctions[] = {
#define INTEROP_LINE(name, symbol, arity, functor, family, accepts, gives, in_float, numpy, torch, identity, ...) \
  {#name, symbol, arity, #functor, accepts, Gives::gives, in_float, 0, numpy, torch, {__VA_ARGS__}, identity},
    INTEROP_FUNCTIONS(INTEROP_LINE)
#undef INTEROP_LINE
};
inline constexpr int kFunctionCount = sizeof kFunctions / sizeof *kFunctions;

inline constexpr bool is_comparison(ElementwiseOp op) {
  return op != ElementwiseOp::copy && kFunctions[static_cast<int>(op)].gives == Gives::truth;
}

// clang-format off
/// The operations that only expressions have.
inline constexpr Operation kInExpressions[] = {
    {"copy", nullptr, 1, "Same", "biufc", Gives::same, false, 0, "copy", "clone", {"1"}},
    {"positive", "+", 1, "Same", "iufc", Gives::same, false, 0, "positive", "positive", {"1"}},
    {"bitwise_and", "&", 2, "BitwiseAnd", "biu", Gives::same, false, 0, "bitwise_and", "bitwise_and"},
    {"bitwise_or", "|", 2, "BitwiseOr", "biu", Gives::same, false, 0, "bitwise_or", "bitwise_or"},
    {"bitwise_xor", "^", 2, "BitwiseXor", "biu", Gives::same, false, 0, "bitwise_xor", "bitwise_xor"},
    {"bitwise_left_shift", "<<", 2, "LeftShift", "iu", Gives::same, false, 0, "left_shift", "bitwise_left_shift"},
    {"bitwise_right_shift", ">>", 2, "RightShift", "iu", Gives::same, false, 0, "right_shift", "bitwise_right_shift"},
    {"bitwise_invert", "~", 1, "BitwiseInvert", "biu", Gives::same, false, 0, "invert", "bitwise_not"},
    {"where", nullptr, 3, "Where", "biufc", Gives::same, false, 1, "where", "where",
     {nullptr, "where(condition, 1, 0)", "where(condition, 0, 1)"}},
    {"sqrt", nullptr, 1, "Sqrt", "f", Gives::same, true, 0, "sqrt", "sqrt", {"0.5 / sqrt(x)"}},
    {"exp", nullptr, 1, "Exp", "f", Gives::same, true, 0, "exp", "exp", {"exp(x)"}},
    {"expm1", nullptr, 1, "Expm1", "f", Gives::same, true, 0, "expm1", "expm1", {"exp(x)"}},
    {"log", nullptr, 1, "Log", "f", Gives::same, true, 0, "log", "log", {"1 / x"}},
    {"log1p", nullptr, 1, "Log1p", "f", Gives::same, true, 0, "log1p", "log1p", {"1 / (1 + x)"}},
    {"log2", nullptr, 1, "Log2", "f", Gives::same, true, 0, "log2", "log2", {"1.4426950408889634 / x"}},
    {"log10", nullptr, 1, "Log10", "f", Gives::same, true, 0, "log10", "log10", {"0.4342944819032518 / x"}},
    {"sin", nullptr, 1, "Sin", "f", Gives::same, true, 0, "sin", "sin", {"cos(x)"}},
    {"cos", nullptr, 1, "Cos", "f", Gives::same, true, 0, "cos", "cos", {"-sin(x)"}},
    {"tan", nullptr, 1, "Tan", "f", Gives::same, true, 0, "tan", "tan", {"1 + square(tan(x))"}},
    {"asin", nullptr, 1, "Asin", "f", Gives::same, true, 0, "arcsin", "asin", {"1 / sqrt(1 - square(x))"}},
    {"acos", nullptr, 1, "Acos", "f", Gives::same, true, 0, "arccos", "acos", {"-1 / sqrt(1 - square(x))"}},
    {"atan", nullptr, 1, "Atan", "f", Gives::same, true, 0, "arctan", "atan", {"1 / (1 + square(x))"}},
    {"sinh", nullptr, 1, "Sinh", "f", Gives::same, true, 0, "sinh", "sinh", {"cosh(x)"}},
    {"cosh", nullptr, 1, "Cosh", "f", Gives::same, true, 0, "cosh", "cosh", {"sinh(x)"}},
    {"tanh", nullptr, 1, "Tanh", "f", Gives::same, true, 0, "tanh", "tanh", {"1 - square(tanh(x))"}},
    {"asinh", nullptr, 1, "Asinh", "f", Gives::same, true, 0, "arcsinh", "asinh", {"1 / sqrt(square(x) + 1)"}},
    {"acosh", nullptr, 1, "Acosh", "f", Gives::same, true, 0, "arccosh", "acosh", {"1 / sqrt(square(x) - 1)"}},
    {"atanh", nullptr, 1, "Atanh", "f", Gives::same, true, 0, "arctanh", "atanh", {"1 / (1 - square(x))"}},
    {"atan2", nullptr, 2, "Atan2", "f", Gives::same, true, 0, "arctan2", "atan2",
     {"where(logical_and(a == 0, b == 0), 0, b / (square(a) + square(b)))",
      "where(logical_and(a == 0, b == 0), 0, -a / (square(a) + square(b)))"}},
    {"hypot", nullptr, 2, "Hypot", "f", Gives::same, true, 0, "hypot", "hypot", {"a / hypot(a, b)", "b / hypot(a, b)"}},
    {"copysign", nullptr, 2, "Copysign", "f", Gives::same, true, 0, "copysign", "copysign",
     {"sign(a) * copysign(1.0, b)", "0"}},
    {"floor", nullptr, 1, "Floor", "iuf", Gives::same, false, 0, "floor", "floor", {"0"}},
    {"ceil", nullptr, 1, "Ceil", "iuf", Gives::same, false, 0, "ceil", "ceil", {"0"}},
    {"trunc", nullptr, 1, "Trunc", "iuf", Gives::same, false, 0, "trunc", "trunc", {"0"}},
    {"round", nullptr, 1, "RoundEven", "iuf", Gives::same, false, 0, "rint", "round", {"0"}},
    {"square", nullptr, 1, "Square", "iufc", Gives::same, false, 0, "square", "square", {"2 * x"}},
    {"sign", nullptr, 1, "Sign", "iuf", Gives::same, false, 0, "sign", "sign", {"0"}},
    {"real", nullptr, 1, "Real", "iufc", Gives::part, false, 0, "real", "real", {"1"}},
    {"imag", nullptr, 1, "Imag", "c", Gives::part, false, 0, "imag", "imag"},
    {"conj", nullptr, 1, "Conj", "iufc", Gives::same, false, 0, "conj", "conj", {"1"}},
    {"isnan", nullptr, 1, "IsNan", "biufc", Gives::truth, false, 0, "isnan", "isnan"},
    {"isinf", nullptr, 1, "IsInf", "biufc", Gives::truth, false, 0, "isinf", "isinf"},
    {"isfinite", nullptr, 1, "IsFinite", "biufc", Gives::truth, false, 0, "isfinite", "isfinite"},
    {"signbit", nullptr, 1, "SignBit", "iuf", Gives::truth, false, 0, "signbit", "signbit"},
    {"logical_and", nullptr, 2, "LogicalAnd", "biufc", Gives::truth, false, 2, "logical_and", "logical_and"},
    {"logical_or", nullptr, 2, "LogicalOr", "biufc", Gives::truth, false, 2, "logical_or", "logical_or"},
    {"logical_xor", nullptr, 2, "LogicalXor", "biufc", Gives::truth, false, 2, "logical_xor", "logical_xor"},
    {"logical_not", nullptr, 1, "LogicalNot", "biufc", Gives::truth, false, 1, "logical_not", "logical_not"},
};
// clang-format on

/// The operation of that name; null if there is none.
inline constexpr const Operation* find_operation(std::string_view name) {
  for (const Operation& operation : kFunctions) {
    if (operation.name == name) return &operation;
  }
  for (const Operation& operation : kInExpressions) {
    if (operation.name == name) return &operation;
  }
  return nullptr;
}

/// Is it a line of `kFunctions`? Then its place there is its `ElementwiseOp`.
inline constexpr bool is_function(const Operation& operation) {
  return &operation >= kFunctions && &operation < kFunctions + kFunctionCount;
}
inline constexpr bool is_comparison(const Operation& operation) {
  return is_function(operation) && operation.gives == Gives::truth;
}
inline constexpr ElementwiseOp function_op(const Operation& function) {
  return static_cast<ElementwiseOp>(&function - kFunctions);
}

}  // namespace interop
