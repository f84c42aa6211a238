"""Headers that hypothesis makes: what they declare is found in the library that a compiler makes of it."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
from helpers.cxx_declarations import NAMES, PREAMBLE, SPELLINGS, Declared, Parameter, parameters, that_fit_together
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import interop

pytestmark = pytest.mark.usefixtures("_reader_of_headers")

#: Types of a name of their own: how a header defines each, and uses it.
OWN_TYPES = {
    "Mode": "enum Mode { OFF, ON = 7 };",
    "Wide": "enum Wide { HUGE = 0x100000000 };",
    "Scoped": "enum class Scoped : short { a, b };",
    "word": "typedef unsigned int word;",
    "real": "using real = double;",
    "thing*": "struct thing;",
    "thing_t": "typedef struct thing* thing_t;",
    "const thing*": "struct thing;",
    "void*": "",
    "const char*": "",
}
_PREAMBLE = "\n".join(dict.fromkeys([PREAMBLE, *OWN_TYPES.values()]))


#: What C++ takes for the same type.
_SAME = {
    "thing_t": (("thing*",), False, False),
    "word": (next(spellings for spellings in SPELLINGS if "unsigned" in spellings), False, False),
    "real": (("double",), False, False),
    "void*": (("void",), True, False),
    "const char*": (("char",), True, True),
}


def of_own_type(name):
    return Parameter(_SAME.get(name, ((name,), False, False)), name, name)


@st.composite
def of_builtin_types(draw):
    made = draw(parameters())
    return made._replace(declared=made.source)


class Written(NamedTuple):
    """How a header writes a function."""

    function: Declared
    names: list[str]
    before: str
    after: str
    has_default: bool

    @property
    def text(self):
        listed = [f"{x.source} {name}" for x, name in zip(self.function.parameters, self.names, strict=False)]
        if self.has_default and listed:
            listed[-1] += " = {}"
        opened = "".join(f"namespace {space} {{\n" for space in self.function.spaces)
        text = f"{self.before} int {self.function.name}({', '.join(listed)}) {self.after};"
        return f"{opened}{text}\n{'}' * len(self.function.spaces)}"


WRITTEN = st.builds(
    Written,
    st.builds(
        Declared,
        st.lists(NAMES, max_size=3).map(tuple),
        NAMES,
        st.lists(st.one_of(of_builtin_types(), st.sampled_from([*OWN_TYPES]).map(of_own_type)), max_size=6),
    ),
    st.lists(st.sampled_from(["", "x", "stream", "execution"]), min_size=6, max_size=6).map(
        lambda names: [name and f"{name}{i or ''}" for i, name in enumerate(names)]
    ),
    st.sampled_from(
        ["", "extern", "API", "__host__", "[[nodiscard]]", "/* of ours; */", "__attribute__((aligned(8)))"]
    ),
    st.sampled_from(["", "API", "// with a comment\n", "__attribute__((pure))"]),
    st.booleans(),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("made")


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(st.lists(WRITTEN, min_size=10, max_size=30))
def test_what_headers_declare_is_found(compiled, folder, written):
    """Each function by its own parameters, whatever stands around it; and nothing else."""
    by_function = {id(x.function): x for x in written}
    functions = that_fit_together([x.function for x in written])
    library = compiled(functions, _PREAMBLE)
    text = "\n".join(by_function[id(function)].text for function in functions)
    header = folder / "made.h"
    header.write_text(f"#ifndef MADE\n#define MADE\n#include <not_there.h>\n#define API\n{_PREAMBLE}\n{text}\n#endif\n")
    lib = interop.load(library, header=header, memory="host")
    assert not lib.refused
    assert len(lib._functions) == len({function._address for function in lib._functions.values()}) == len(functions)
    for number, function in enumerate(functions):
        types = [x.source for x in function.parameters]
        if not any("*" in x or x == "thing_t" for x in types):
            assert lib[f"{function.whole_name}({', '.join(types)})"](*[0] * len(types)) == number


_WORDS = """
int f ( ) ; { } * , struct enum typedef namespace a = 1 < > template class extern const :: & [ ] ... operator using
__attribute__ /* */ ' " "C" \\ # @ ~ asm 0x __host__
"""
WORDS = st.sampled_from([*re.findall(r"\S+", _WORDS), *("\n#if", "\n#endif", "\n#define", "\n#include", "\n")])


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(WORDS, max_size=25).map(" ".join))
def test_no_text_is_an_error_of_ours(compiled, folder, text):
    """Whatever stands in a header, it is read, or a ValueError that names it."""
    library = folder / "libnone.so"
    if not library.exists():
        compiled([]).rename(library)
    header = folder / "any.h"
    header.write_text(text)
    error = "any.h"
    try:
        interop.load(library, header=header)
    except ValueError as caught:
        error = str(caught)
    assert "any.h" in error
