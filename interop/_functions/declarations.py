"""Declarations as text: those of C and C++ functions for `interop.load`, and the parameters of kernels."""

from __future__ import annotations

import re
from collections.abc import Sequence

from interop._functions.c_types import QUALIFIERS, WORDS_OF_TYPES, Alias, CType, Names, Struct, ends_type, without_std
from interop._functions.enums import Constants, enum_of
from interop._functions.parameters import Declared, Refuse, Stated

__all__ = ["declared_of", "functions_in", "parameters_in", "without_comments"]

_NAME = r"(?:::)?[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*"
_CLASS_KEYS = {"struct", "class", "union", "enum"}


def declared_of(text: str, refuse: Refuse, unnamed: str = "", places: Sequence[str] = ()) -> Declared:
    """Take "type name" or "type* qualifiers name" apart; anything else raises the error that `refuse` returns.

    `unnamed`: the name of a parameter that has none. Without it, each needs one. `places`: the words that may say
    before the type where a pointer points.
    """
    left, star, right = text.partition("*")
    words, after = left.split(), right.split()
    is_named = after[-1:] and after[-1] not in QUALIFIERS
    if not star:
        is_named = len(words) > 1 and words[-1] not in WORDS_OF_TYPES and not {*words[:-1]} <= {"const", *_CLASS_KEYS}
        is_named = is_named and not (unnamed and ends_type(words[-1], " ".join(words[:-1])))
        words, after = (words[:-1], words[-1:]) if is_named else (words, [])
    if not is_named and unnamed:
        after.append(unnamed)
    if not words or not (is_named or unnamed) or not all(re.fullmatch(_NAME, x) for x in words + after):
        raise refuse(f"the parameter {text.strip()!r} is not understood; accepted: type name, or type* name")
    *qualifiers, name = after
    if set(qualifiers) - QUALIFIERS:
        raise refuse(f"the elements of {name!r} are {' '.join(words + qualifiers)!r}; accepted: a pointer to a type")
    said = [word for word in words if word in places]
    if len(said) > 1:
        raise refuse(f"the pointer {name!r} says not once 'device' or 'host' before its type")
    type_name = " ".join(word for word in words if word != "const" and word not in places)
    return Declared(name, CType(type_name, len(star), "const" in words), " ".join(words), said[0] if said else "")


def parameters_in(text: str, refuse: Refuse) -> list[Declared]:
    """Return the parameters between the parentheses of a function of the host."""
    parts = [] if text.strip() in ("", "void") else text.split(",")
    return [declared_of(part, refuse, f"arg{place}", ("device", "host")) for place, part in enumerate(parts)]


_DECLARATION = re.compile(
    r'(?P<extern>extern (?:"C" ?)?)?(?:inline )?(?P<result>[\w: *]*[ *])(?:::)?'
    r"(?P<name>[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*) ?\((?P<rest>[^()]*)\)(?: ?noexcept)?"
)
_ENUM = re.compile(
    rf"(?P<typedef>typedef )?enum(?: class| struct)?(?: (?P<name>{_NAME}))? ?(?:: ?(?P<base>{_NAME}(?: \w+)*))? ?"
    r"(?:\{(?P<values>[^{}]*)\})? ?(?P<alias>[A-Za-z_]\w*)?"
)
_STRUCT = re.compile(rf"(?:struct|class|union) (?P<name>{_NAME})")


def functions_in(declarations: str, names: Names) -> list[Stated]:
    """Return the functions of a text; into `names` go the enums, structs and typedefs that it defines."""
    known = Constants()
    statements = _statements(declarations)
    return [_function_in(text) for text in statements if not _define(without_std(text), names, known)]


def _statements(declarations: str) -> list[str]:
    text = without_comments(declarations)
    if found := re.search(r"^\s*#.*", text, re.MULTILINE):
        raise ValueError(
            f"interop.load: {found[0].strip()!r} is for the preprocessor; accepted: C declarations of functions, or "
            "header=, which reads a whole file"
        )
    if re.search(r'extern\s*"C"\s*\{', text):
        raise ValueError(
            'interop.load: declarations has a block extern "C" { ... }, which is not read; accepted: the declarations '
            'in it, each as it is or with extern "C" before it'
        )
    *statements, rest = (" ".join(part.split()) for part in text.split(";"))
    if rest:
        raise ValueError(f"interop.load: {rest!r} has no ';' behind it; accepted: C declarations, each with one")
    return [statement for statement in statements if statement]


def _define(text: str, names: Names, known: Constants) -> bool:
    """Take the definition of a type; return whether it is one."""
    if struct := _STRUCT.fullmatch(text):
        names.define(struct["name"].removeprefix("::"), Struct(struct["name"].removeprefix("::"), False))
        return True
    enum = _ENUM.fullmatch(text)
    if enum and (enum["values"] is not None or enum["base"]):
        label = (enum["name"] or enum["alias"] or "").removeprefix("::")
        pairs = [pair.partition("=") for pair in (enum["values"] or "").split(",") if pair.strip()]
        values = [(x.strip(), y.strip() if eq else None) for x, eq, y in pairs]
        is_class = text.startswith(("enum class ", "enum struct "))
        definition = enum_of(label, values, enum["base"] or "", known, is_class)
        for name in (enum["name"], enum["alias"]):
            if name:
                names.define(name.removeprefix("::"), definition)
        return True
    if not text.startswith("typedef ") or "(" in text:
        return False

    def refuse(what: str) -> ValueError:
        return ValueError(f"interop.load: {what}, in {text!r}")

    alias = declared_of(text.removeprefix("typedef "), refuse)
    names.resolve(alias.type)  # a struct is declared by this, too
    names.define(alias.name, Alias(alias.type, ()))
    return True


def _function_in(text: str) -> Stated:
    def refuse(what: str) -> ValueError:
        return ValueError(f"interop.load: {what}, in {text!r}")

    if text.startswith("static "):
        raise refuse("a static function has no symbol outside its file; accepted: one that is not static")
    found = _DECLARATION.fullmatch(without_std(text))
    if found is None or "operator" in found["name"]:
        raise refuse("a declaration is not understood; accepted: type name(type name, ...)")
    result = declared_of(found["result"], refuse, "result").type
    is_c = '"C"' in (found["extern"] or "")
    if is_c and "::" in found["name"]:
        raise refuse(f'{found["name"]!r} is extern "C": its symbol has no namespace; accepted: its name without it')
    return Stated(text, found["name"], result, parameters_in(found["rest"], refuse), is_c)


def without_comments(text: str) -> str:
    """Return C or C++ with a space for each comment."""

    def replace(found: re.Match[str]) -> str:
        return " " if found[0].startswith("/") else found[0]

    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', replace, text, flags=re.DOTALL)
