/// What Python gives a function whose arguments are read here: their number and their names.
#include "bindings/arguments.h"

#include "bindings/bindings.h"

namespace interop::bindings {
namespace {

const exchange::Lookup kObject("builtins", "object");
const exchange::Lookup kRefuse("interop._arguments", "refuse_call_of");
const exchange::Lookup kRefuseMethod("interop._arguments", "refuse_call_by_position");

PyObject* g_missing = nullptr;  // for the life of the process

}  // namespace

bool is_missing(nb::handle x) { return x.ptr() == g_missing; }

void refuse_call(const char* function, nb::handle a, nb::handle b, nb::handle keywords) {
  nb::list given;
  for (const nb::handle operand : {a, b}) {
    if (operand.is_valid() && !is_missing(operand)) given.append(operand);
  }
  kRefuse.get()(function, given, keywords);
  nb::raise_type_error("%s: the call does not fit its signature", function);
}

void refuse_keyword(const char* function, nb::handle keyword, nb::list accepted) {
  nb::dict keywords;
  keywords[keyword] = nb::none();
  kRefuse.get()(function, nb::make_tuple(), keywords, accepted);
  nb::raise_type_error("%s: an unexpected keyword argument", function);
}

void refuse_method_call(const char* function, nb::handle given, nb::handle keywords, const char* parameter) {
  nb::list accepted;
  if (parameter) accepted.append(parameter);
  kRefuseMethod.get()(function, given, keywords, accepted);
  nb::raise_type_error("%s: the call does not fit its signature", function);
}

void check_method_call(const char* function, nb::args given, nb::kwargs keywords, const char* parameter) {
  if (keywords.size() == 0 && given.size() == (parameter ? 1 : 0)) return;
  refuse_method_call(function, given, keywords, parameter);
}

void bind_arguments(nb::module_& m) {
  g_missing = kObject.get()().release().ptr();
  m.attr("missing") = nb::handle(g_missing);
  m.def("shown", &exchange::shown, nb::arg("value").none(),
        "The repr of a value for a message: one line, cut short; of what has none, the type.");
  m.def("type_name", &exchange::type_text, nb::arg("value").none(), "The type of a value as a message names it.");
}

}  // namespace interop::bindings
