"""`interop.load(header=)`: what is said beside a header, by options and by text."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest
from helpers import c_functions

import interop

pytestmark = pytest.mark.usefixtures("_reader_of_headers")


POINTERS = "void f(const float* a, float* b, int n);\nvoid g(const float* a, int n);"
POINTERS_SOURCE = "void f(const float* a, float* b, int n) { b[0] = a[0] + n; } void g(const float*, int) {}"


def test_places_are_said_by_name(load):
    lib = load(POINTERS_SOURCE, POINTERS, host={"f": ("a", "b")})
    b = np.zeros(1, "float32")
    lib.f(np.ones(1, "float32"), b, 2)
    assert b[0] == 3
    assert re.search(
        r"the pointer 'a' says not once .* such as host=\{'g': \('a',\)\}, in 'void g\(.*own.h:2\)$",
        lib.refused["g"],
    )
    mixed = load(POINTERS_SOURCE, POINTERS, memory="device", host={"f": ["a"]})
    assert str(inspect.signature(mixed.f)) == "(a, b, n, *, stream=None, execution=None)"
    with pytest.raises(TypeError, match="libown.f: b is float32 .* on cpu; accepted: .*on a CUDA device"):
        mixed.f(b, b, 1)
    with pytest.raises(TypeError, match="libown.g: a is float32 .* on cpu; accepted: .*on a CUDA device"):
        mixed.g(b, 1)
    both = load(POINTERS_SOURCE, POINTERS, memory="host", device={"f": ("b",), "g": ("a",)})
    assert "stream" in str(inspect.signature(both.g))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"host": {"h": ("a",)}}, ValueError, "host: 'h' is no declared function; accepted: f, g$"),
        ({"device": {"f": ("c",)}}, ValueError, r"device\['f'\]: 'c' is no parameter; accepted: a, b, n$"),
        ({"host": {"f": ("a",)}, "device": {"f": ("a",)}}, ValueError, r"device\['f'\]: 'a' stands in host, too"),
        ({"host": {"f": ("a", "b", "n")}}, ValueError, "the type of 'n' is 'int', and 'host' is said of it; accepted:"),
        ({"host": {"f": ("a",)}}, ValueError, "the pointer 'b' says not once .* in 'void f"),
        ({"host": {"f": "a"}}, TypeError, r"host\['f'\] is str; accepted: a tuple of names, such as \('a',\)"),
        ({"device": ("f",)}, TypeError, "device is tuple; accepted: a mapping of the names of functions"),
        ({"host": {"f": (1,)}}, TypeError, r"host\['f'\] has an element of int"),
        ({"reads": {"f": ("a",)}, "memory": "host"}, ValueError, "reads: 'a' is a pointer to const"),
        ({"reads": {"f": ("n",)}, "memory": "host"}, ValueError, "reads: 'n' is no pointer; .* in 'void f.*own.h:1"),
        ({"status": {"my_status": 0}}, ValueError, "status: no declared function returns 'my_status'; accepted: void$"),
        ({"status": {"void": "0"}}, TypeError, r"status\['void'\] is str; accepted: an int, as in a mapping"),
        ({"status": ["my_status"]}, TypeError, "status is list; accepted: a mapping of types to their values"),
        (
            {"include_path": "folder"},
            TypeError,
            "include_path is no list of folders; accepted: a list or tuple of paths",
        ),
        ({"include_path": [1]}, TypeError, "include_path is no list of folders"),
    ],
)
def test_options_that_name_nothing(load, options, error, message):
    with pytest.raises(error, match=f"^interop.load: {message}|{message}") as caught:
        load(POINTERS_SOURCE, POINTERS, **options)
    assert re.search(message, str(caught.value))


def test_pointers_that_are_only_read(load):
    lib = load(
        POINTERS_SOURCE.replace("const ", ""), POINTERS.replace("const ", ""), memory="host", reads={"f": ("a",)}
    )
    b = np.zeros(1, "float32")
    lib.f(np.frombuffer(b"\0\0\x80?", "float32"), b, 2)
    assert b[0] == 3


def test_places_are_said_of_text_too(tmp_path):
    path = c_functions.build("void f(const float* a, float* b) { b[0] = a[0]; }", tmp_path / "libown.so")
    text = "void f(const float* a, host float* b);"
    lib = interop.load(path, text, host={"f": ("a", "b")})
    assert lib.f.returning(b="a")(np.ones(1, "float32")).tolist() == [1]
    with pytest.raises(ValueError, match="the pointer 'b' is said to be 'device' and 'host'; accepted: one of both"):
        interop.load(path, text, memory="host", device={"f": ("b",)})


# ---- text beside the header ----


def test_text_goes_first_and_uses_the_types_of_the_header(load):
    source = "enum E { A }; int f(int* x) { return *x; } int g(E e) { return e; } int h(int) { return 8; }"
    header = "enum E { A };\nint f(int* x);\nMYAPI int h(int);"
    lib = load(source, header)
    assert set(lib.refused) == {"f", "h"}
    path, header = lib._library.path, lib._made_of.header
    lib = interop.load(path, "int f(host int* x); int g(E e); int h(int);", header=header)
    assert not lib.refused
    assert (lib.f(np.array([3], "int32")), lib.g(4), lib.h(0)) == (3, 4, 8)
    with pytest.raises(ValueError, match="the type of 'x' is 'foo'") as caught:  # of text it is an error, as ever
        interop.load(path, "int f(foo x);", header=header)
    assert type(caught.value) is ValueError


@pytest.mark.parametrize("linkage", ["", 'extern "C" '])
@pytest.mark.parametrize("is_c", [False, True])
def test_text_goes_before_functions_of_c_of_the_header(load, linkage, is_c):
    """A header of C may lack extern "C"; the types of the parameters tell nothing apart there."""
    header = "int g(void* x, int n); int h(int);"
    header = f'extern "C" {{ {header} }}' if is_c else header
    source = 'extern "C" { int g(float* x, int n) { return x[n - 1]; } int h(int x) { return x; } }'
    path = load(source, header)._library.path
    lib = interop.load(path, f"{linkage}int g(host float* x, int n);", header=path.replace("libown.so", "own.h"))
    assert lib.g(np.array([3, 4], "float32"), 2) == 4
    assert (lib.h(5), dict(lib.refused)) == (5, {})
    assert list(lib._functions) == ["g(float*, int)", "h(int)"]


def test_text_leaves_overloads_of_cxx(load):
    path = load("int g(float) { return 1; } int g(int) { return 2; }", "int g(int);")._library.path
    lib = interop.load(path, "int g(float);", header=path.replace("libown.so", "own.h"))
    assert (lib["g(float)"](0), lib["g(int)"](0)) == (1, 2)


@pytest.mark.parametrize("include_path", [None, "folder", 3, [None], {"folder": 1}])
def test_an_include_path_that_is_none(include_path):
    with pytest.raises(TypeError, match="^interop.load: include_path is no list of folders; accepted: a list or tuple"):
        interop.load("absent.so", header="own.h", include_path=include_path)
