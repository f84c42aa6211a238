"""Handles and strings of C in the calls of `interop.load`."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
from helpers import c_functions

import interop

SOURCE = r"""
#include <stdlib.h>
#include <string.h>
struct counter { int value; };
struct counter* counter_new(int value) {
  if (value < 0) return NULL;
  struct counter* made = malloc(sizeof *made);
  made->value = value;
  return made;
}
int counter_add(struct counter* c, int x) { return c->value += x; }
int counter_get(const struct counter* c) { return c->value; }
void counter_free(struct counter* c) { free(c); }
struct other* other_new(void) { return malloc(1); }
void* raw_new(void) { return malloc(8); }
void* twice_new(void) { return malloc(8); }
int same(const void* a, const void* b) { return a == b; }
int twice_use(void* t) { return t != NULL; }
const char* named(int i) { return i == 0 ? "\xc3\xa9t\xc3\xa9" : i == 1 ? "\xff" : i == 2 ? "" : NULL; }
int length(const char* text) { return (int)strlen(text); }
int weigh(const char* text, const float* x, float* y, void* p, struct counter* c) {
  y[0] = x[0] + (float)strlen(text);
  return c->value + (p != NULL);
}
"""
DECLARATIONS = """
    typedef struct counter* counter_t;
    typedef void* twice_t;
    counter_t counter_new(int value);
    int counter_add(counter_t c, int x);
    int counter_get(const struct counter* c);
    void counter_free(struct counter* c);
    struct other* other_new(void);
    void* raw_new(void);
    twice_t twice_new(void);
    int same(void* a, const void* b);
    int twice_use(twice_t t);
    const char* named(int i);
    int length(const char* text);
    int weigh(const char* text, host const float* x, host float* y, void* p, counter_t c);
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return c_functions.build(SOURCE, tmp_path_factory.mktemp("opaque") / "libopaque.so")


@pytest.fixture(params=[None, "host"])
def lib(path, request):
    return interop.load(path, DECLARATIONS, memory=request.param)


def test_a_handle_goes_round(lib):
    counter = lib.counter_new(3)
    assert lib.counter_add(counter, 4) == 7
    assert lib.counter_get(c=counter) == 7
    assert lib.counter_new(-1) is None
    assert str(inspect.signature(lib.counter_add)) == "(c, x)"
    lib.counter_free(counter)


def test_a_handle_is_taken_by_its_own_type_or_void(lib):
    counter, other, raw, twice = lib.counter_new(1), lib.other_new(), lib.raw_new(), lib.twice_new()
    assert lib.same(counter, counter)
    assert not lib.same(counter, other)
    assert lib.same(twice, twice)
    assert lib.twice_use(twice)
    for x, given in ((other, "other*"), (raw, "void*"), (twice, "twice_t")):
        with pytest.raises(
            TypeError,
            match=re.escape(f"c is an interop.Opaque of '{given}'; accepted: an interop.Opaque of 'counter*',"),
        ):
            lib.counter_add(x, 1)
    with pytest.raises(
        TypeError, match="t is an interop.Opaque of 'void\\*'; accepted: an interop.Opaque of 'twice_t'"
    ):
        lib.twice_use(raw)


@pytest.mark.parametrize("x", [0, 94_000_000_000_000, None, "text", b"bytes", 1.5, np.uint64(8), np.zeros(3), object()])
def test_nothing_else_is_a_handle(lib, x):
    for call in (lambda: lib.counter_add(x, 1), lambda: lib.twice_use(x)):
        with pytest.raises(TypeError, match=r"libopaque.\w+: [ct] is .*; accepted: an interop.Opaque of '"):
            call()


def test_memory_of_any_kind_is_said(path):
    """A void* is an array where it is said so, a handle else; with host memory it may be both."""
    x = np.zeros(3)
    lib = interop.load(path, DECLARATIONS)
    with pytest.raises(
        TypeError,
        match="a is numpy.ndarray; accepted: an interop.Opaque, as functions of a library return it; or an array, "
        "where memory= says which, or host= or device= names 'a'",
    ):
        lib.same(x, x)
    lib = interop.load(path, DECLARATIONS, host={"same": ("a", "b")})
    raw = lib.raw_new()
    assert (lib.same(x, x), lib.same(raw, raw), lib.same(x, raw)) == (1, 1, 0)
    lib = interop.load(path, DECLARATIONS, device={"same": ("a", "b")})
    with pytest.raises(TypeError, match="libopaque.same: a is interop.Opaque"):
        lib.same(raw, raw)
    with pytest.raises(ValueError, match="'c' is a handle, 'counter\\*', and no array, but 'host' is said of it"):
        interop.load(path, DECLARATIONS, host={"counter_get": ("c",)})
    with pytest.raises(ValueError, match="reads: 'c' is no pointer; accepted: .*there is none"):
        interop.load(path, DECLARATIONS, reads={"counter_add": ("c",)})


def test_strings(lib):
    assert [lib.named(i) for i in range(4)] == ["été", b"\xff", "", None]
    assert lib.length("café") == 5
    assert lib.length(b"\xff\xfe") == 2
    assert lib.length(text="") == 0
    assert lib.length(np.array([65, 66, 0], "int8")) == 2
    for bad in ("a\0b", b"a\0"):
        with pytest.raises(ValueError, match="libopaque.length: text has a null character, where C ends it"):
            lib.length(bad)
    with pytest.raises(
        UnicodeEncodeError, match="not allowed, for text of libopaque.length; accepted: other text, or b"
    ):
        lib.length("a\udc80")
    with pytest.raises(TypeError, match="libopaque.length: text is NoneType"):
        lib.length(None)
    with pytest.raises(UnicodeEncodeError):
        lib.length("\ud800")


def test_strings_for_memory_of_the_gpu_are_refused(path):
    lib = interop.load(path, "int length(device const char* text);")
    with pytest.raises(TypeError, match="libopaque.length: text is str"):
        lib.length("text")


@pytest.mark.parametrize("memory", ["default", "torch"])
def test_results_are_those_of_the_first_array(path, memory):
    """Neither a string nor a handle chooses the library; the rest of the call is as ever."""
    declared = DECLARATIONS.replace("int weigh", "void weigh")
    lib = interop.load(path, declared)
    make = np.ones if memory == "default" else pytest.importorskip("torch").ones
    kind = type(make(1))
    x, counter = make(1) if memory == "torch" else np.ones(1, "float32"), lib.counter_new(3)
    weigh = lib.weigh.returning(y="x")
    y = weigh("ab", x, counter, counter)
    assert type(y) is kind
    assert y[0] == 3
    given = x + 0
    assert weigh("abc", x, counter, c=counter, y=given) is given
    assert given[0] == 4
    assert weigh(np.array([65, 0], "int8"), x, counter, counter)[0] == 2
    assert interop.explain(weigh, "ab", x, counter, counter).result_shape == (1,)
    assert interop.load(path, DECLARATIONS).weigh("", x, given, counter, counter) == 4


def test_the_shape_of_a_handle_is_not_known(tmp_path):
    source = (
        "#include <stdlib.h>\nvoid* f(void) { return malloc(1); } void g(const char* s, void* p, float* y) { *y = 1; }"
    )
    path = c_functions.build(source, tmp_path / "libown.so")
    lib = interop.load(path, "void* f(void); void g(const char* s, void* p, float* y);", memory="host")
    x, handle = np.zeros((1, 2)), lib.f()
    assert lib.g.returning(y="p")("", x, y=None).shape == (1, 2)
    assert lib.g.returning(y="s")(np.zeros(3, "int8"), handle).shape == (3,)
    for rule, name, given in (("p", "p is interop.Opaque", {}), ("s", "s is str", {"y": np.zeros(1, "float32")})):
        with pytest.raises(TypeError, match=f"libown.g: {name}; accepted: an array, whose shape a result has"):
            lib.g.returning(y=rule)("text", handle, **given)


def test_handles_are_not_compared(path, monkeypatch):
    monkeypatch.setenv("INTEROP_CHECKED", "1")
    lib = interop.load(path, DECLARATIONS, memory="host", reads={"same": ("a",)})
    assert lib.same(lib.raw_new(), np.zeros(1)) == 0
    assert lib.same(np.zeros(1), lib.raw_new()) == 0


def test_what_an_opaque_is(lib):
    counter, other = lib.counter_new(1), lib.counter_new(1)
    assert type(counter) is interop.Opaque
    assert repr(counter).startswith("<interop.Opaque counter* at 0x")
    assert counter.type == "counter*"
    assert counter != other
    assert counter != 1
    assert counter == copy.copy(counter) == copy.deepcopy(counter)
    assert len({counter, copy.copy(counter), other}) == 2
    assert bool(counter)
    for attribute in ("__int__", "__index__", "__dlpack__", "__cuda_array_interface__", "__buffer__"):
        assert not hasattr(counter, attribute)
    with pytest.raises(TypeError, match="none is made in Python; accepted: what a function of interop.load returns"):
        interop.Opaque()
    with pytest.raises(AttributeError):
        counter.type = "x"
    with pytest.raises(TypeError, match=r"<interop.Opaque counter\* at .*> is a pointer of this process"):
        pickle.dumps(counter)
    with pytest.raises(TypeError):
        interop.add(counter, counter)


def test_handles_and_functions_are_pickled_apart(lib):
    again = pickle.loads(pickle.dumps(lib))
    counter = lib.counter_new(5)
    assert again.counter_get(counter) == 5  # one library: what it knows is one


def test_a_string_lives_until_the_call_is_over(path):
    """Python fills memory that it frees, if asked to: a string that was freed has another length."""
    code = f"""
import interop
lib = interop.load({str(path)!r}, "int length(const char* text);")
for size in (1, 10, 100, 400, 1000, 100_000):
    assert lib.length("x" * size) == lib.length(text=b"x" * size) == size
"""
    environment = {**os.environ, "PYTHONMALLOC": "debug"}
    subprocess.run([sys.executable, "-P", "-c", code], check=True, env=environment)


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        ("char* f(int);", "the result is char*, of which nothing says how long it is, and whose; accepted: void"),
        ("const unsigned char* f(int);", "the result is const unsigned char*, of which nothing says"),
        ("const char** f(int);", "the declaration is not understood"),
        ("foo* f(int);", "the result is foo*; accepted: "),
        ("struct pair f(int);", "the result is struct pair; accepted: "),
        ("struct pair; int f(struct pair p);", "'pair' is a struct, which is not passed by value"),
        ("int f(foo* x);", "the elements of 'x' are 'foo'"),
        ("enum E { A = f() }; int f(E);", "'E' is an enum of which the value 'f()' of 'A' is not understood"),
        ("typedef int a b; int f(b);", "the type of 'arg0' is 'b'"),
    ],
)
def test_text_that_defines_no_such_type(path, declaration, message):
    with pytest.raises(ValueError, match="^interop.load: ") as caught:
        interop.load(path, declaration)
    if "declaration is" not in message:
        assert message in str(caught.value)


def test_text_defines_enums_and_typedefs(tmp_path):
    source = """
    enum Mode { OFF, ON = 4 }; namespace n { enum class Op : unsigned char { add = 1 }; typedef enum { OK } status;
    int f(Mode m, Op o) { return 10 * m + (int)o; } status g(int x) { return (status)x; }
    int h(const Op* o) { return (int)*o; } }
    """
    path = c_functions.build(source, tmp_path / "libown.so", language="c++")
    lib = interop.load(
        path,
        """
        enum Mode { OFF, ON = 1 << 2 };       // as in the header
        enum class n::Op : unsigned char;
        typedef int status;
        int n::f(Mode m, Op o); status n::g(int x); int n::h(host const n::Op* o);
        """,
        status={"status": 0},
    )
    assert lib.f(4, 1) == 41
    assert lib["n::f(Mode, Op)"] is lib.f
    assert lib.h(np.array([3], "uint8")) == 3
    assert lib.g(0) is None
    with pytest.raises(RuntimeError, match="returned 2, a status"):
        lib.g(2)
    with pytest.raises(OverflowError, match="o is 256, which uint8 cannot hold"):
        lib.f(4, 256)
    with pytest.raises(ValueError, match="the type of 'arg0' is 'Mode'"):
        interop.load(path, "int n::f(Mode, int);")
