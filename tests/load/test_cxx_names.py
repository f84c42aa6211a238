"""Declarations of C++ that hypothesis makes: a compiler's symbols of them are found by `interop.load`."""

from __future__ import annotations

import inspect

import pytest
from helpers.cxx_declarations import (
    FUNCTIONS,
    POINTED_TO,
    SPELLINGS,
    Declared,
    Parameter,
    parameters,
    that_fit_together,
)
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import interop


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(FUNCTIONS, min_size=20, max_size=40), st.lists(st.sampled_from(["", " p"]), min_size=6, max_size=6))
def test_declarations_are_found(compiled, functions, names):
    """Each by its own: overloads, namespaces, any spelling of the types, with or without names of parameters."""
    functions = that_fit_together(functions)
    names = [name and f"{name}{i}" for i, name in enumerate(names)]
    lib = interop.load(compiled(functions), "".join(function.declaration(names) for function in functions))
    addresses = set()
    for number, function in enumerate(functions):
        found = lib[function.declaration([""] * 6)[len("int ") : -1]]
        if not any(x.kind[1] for x in function.parameters):
            assert found(*[0] * len(function.parameters)) == number
        addresses.add(found._address)
    assert len(addresses) == len(functions)


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(parameters(), min_size=1, max_size=4), parameters(), st.integers(0, 3))
def test_another_type_is_another_function(compiled, right, wrong, place):
    place %= len(right)
    assume(wrong.kind != right[place].kind)
    path = compiled([Declared(("n",), "f", right)])
    assert interop.load(path, Declared(("n",), "f", right).declaration([""] * 4)).f is not None
    with pytest.raises(AttributeError, match=r"has no function 'n::f\(.*it has, in C\+\+, 'n::f\("):
        interop.load(path, Declared(("n",), "f", [*right[:place], wrong, *right[place + 1 :]]).declaration([""] * 4))


def test_every_spelling(compiled):
    """Each finds the function that has another one, as a value and as a pointer."""
    kinds = [(spellings, "{}", "{}") for spellings in SPELLINGS]
    kinds += [(spellings, "{}*", "host {}*") for spellings in POINTED_TO]
    kinds += [(spellings, "const {}*", "host {} const*") for spellings in POINTED_TO]
    names = [f"f{i}" for i in range(len(kinds))]
    in_source = [Parameter((), source.format(spellings[0]), "") for spellings, source, _ in kinds]
    path = compiled([Declared((), name, [parameter]) for name, parameter in zip(names, in_source, strict=True)])
    for name, (spellings, _, form) in zip(names, kinds, strict=True):
        for spelling in spellings:
            declaration = Declared((), name, [Parameter((), "", form.format(spelling))]).declaration([""])
            assert getattr(interop.load(path, declaration), name) is not None


def test_streams_by_both_names(compiled):
    parameters = [Parameter((), "cudaStream_t", ""), Parameter((), "float*", "")]
    path = compiled([Declared((), "s", parameters)])
    for stream in ("cudaStream_t", "CUstream"):
        assert str(inspect.signature(interop.load(path, f"int s({stream}, device float*);").s)).startswith("(arg1, *, ")
