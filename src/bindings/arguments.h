/// What Python gives a function whose arguments are read here: their number and their names.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>

#include "exchange/python.h"

namespace interop::bindings {

/// A keyword of a call, and the member of `Options` that has its value.
template <class Options>
struct Keyword {
  exchange::Name name;
  nanobind::handle Options::* place;
};

/// The keyword of that name; null if there is none.
template <class Options, std::size_t Count>
const Keyword<Options>* find_keyword(const Keyword<Options> (&known)[Count], PyObject* name) {
  for (const Keyword<Options>& keyword : known) {
    if (keyword.name.get() == name) return &keyword;  // as a call that is written out has it
  }
  for (const Keyword<Options>& keyword : known) {
    if (PyUnicode_Compare(keyword.name.get(), name) == 0) return &keyword;
  }
  return nullptr;
}

/// `interop._core.missing`: stands for an operand that was not given.
bool is_missing(nanobind::handle x);

/// Raises the TypeError of a call that does not fit the signature of a public function: an operand is missing, or a
/// keyword is unknown.
[[noreturn]] void refuse_call(const char* function, nanobind::handle a, nanobind::handle b, nanobind::handle keywords);
/// Raises the TypeError of a keyword that is none of those.
[[noreturn]] void refuse_keyword(const char* function, nanobind::handle keyword, nanobind::list accepted);
/// Raises the TypeError of a call of a method that takes arguments by position alone: `parameter`, or (null) none.
[[noreturn]] void refuse_method_call(const char* function, nanobind::handle given, nanobind::handle keywords,
                                     const char* parameter);
/// The same, unless there is the one argument, or none.
void check_method_call(const char* function, nanobind::args given, nanobind::kwargs keywords,
                       const char* parameter = nullptr);

}  // namespace interop::bindings
