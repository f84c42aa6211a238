/// A call of an expression: its arguments, its shape and dtype, and what it shares with other calls of the expression.
#pragma once

#include <interop/call.h>
#include <interop/cuda/elementwise.h>
#include <interop/elementwise.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bindings/elementwise/host_plan.h"

namespace interop::bindings {

/// An expression for arrays and scalars of given dtypes: `interop._expressions.typed.Typed`, as far as a call reads it.
struct Typed {
  struct Value {
    int source;
    DLDataType dtype;
  };
  struct Compiled {
    int device;
    cuda::CompiledPass pass;
  };
  std::vector<uint64_t> key;
  nanobind::object python;
  nanobind::object configuration;  // of the array library; None if the dtypes do not depend on it
  nanobind::object current;        // gives the configuration that the library has now
  DLDataType out_dtype;
  std::vector<Value> values;
  std::vector<Value> compared;  // with arrays of that dtype
  std::vector<Compiled> compiled;
};

/// An expression for calls in which given parameters are scalars: `interop._expressions.typed.Split`. Its sources are
/// the scalars that the arrays meet: parameters, and what is computed of scalars alone.
struct Split {
  uint32_t scalars;  // bit k: parameter k is one
  nanobind::object python;
  std::vector<int> places;  // of the sources among the parameters; -1: to be computed
  std::vector<std::string> labels;
  bool computes = false;
  std::vector<std::unique_ptr<Typed>> typed;
  HostPlans host_plans;  // of NumPy's own arrays
};

/// An expression, and all that its calls have found out. Entries are added and never removed or moved: one for each
/// combination of dtypes that it is called with.
///
/// Whatever calls Python lets other threads in, and `__del__` of any object, which may call the same expression: lists
/// may have grown meanwhile. So they are gone through by index, an entry is made whole before it is added, and the list
/// is looked through again before that.
struct ExpressionCalls {
  std::string function;
  std::vector<std::string> parameters;
  nanobind::object make_split;   // of the names of the scalars
  nanobind::object load_kernel;  // `interop._expressions.source.load`
  std::vector<std::unique_ptr<Split>> splits;

  /// Throws ValueError for no parameters, or for too many.
  ExpressionCalls(std::string function_, std::vector<std::string> parameters_, nanobind::object make_split_,
                  nanobind::object load_kernel_);
  ExpressionCalls(const ExpressionCalls&) = delete;
  ExpressionCalls& operator=(const ExpressionCalls&) = delete;
};

/// The arguments of one call, before anything is decided.
struct ExpressionArguments {
  nanobind::handle objects[kMaxInputs];
  Argument arrays[kMaxInputs];
  int array_count = 0;
  uint32_t scalars = 0;
};

/// The arguments in the order of the parameters. Throws the TypeError of a call that does not fit the signature, or in
/// which no argument is an array.
ExpressionArguments read_arguments(const ExpressionCalls& self, nanobind::tuple args, nanobind::dict named);
nanobind::tuple argument_tuple(const ExpressionCalls& self, const ExpressionArguments& arguments);

/// The split for calls in which those parameters are scalars, made on first use.
Split& find_split(ExpressionCalls& self, uint32_t scalars);

/// A call with its arrays read and its result made, as its shape and dtype rules say.
struct ExpressionPlan {
  /// The values of a split's sources.
  struct Sources {
    nanobind::object computed;  // keeps them
    std::vector<nanobind::handle> values;
  };

  const ExpressionArguments& arguments;
  Split& split;
  const Sources sources;
  Call call;
  bool passed[kMaxInputs];  // arrays that the kernel has as a value: 0-d ones in host memory beside device arrays
  Typed* typed;
  const DLTensor* out;

  ExpressionPlan(ExpressionCalls& self, const ExpressionArguments& given, const CallOptions& options);
};

}  // namespace interop::bindings
