"""Inputs that broke other libraries: C functions, and the files that they are in. The list: tests/gpu/cases."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from helpers import c_functions

import interop


@pytest.fixture
def build(tmp_path):
    """Compile C to a shared library in `tmp_path`, and return its path."""

    def build(source, name="lib.so"):
        return c_functions.build(source, tmp_path / name)

    return build


# PowerGridModel/power-grid-model#722: an output of another size was filled in part, or written beyond its end.
@pytest.mark.parametrize(
    "made", [lambda: np.zeros(8, "f4")[:2], lambda: np.zeros(8, "f4"), lambda: np.zeros((4, 1), "f4")]
)
def test_b121_outputs_of_another_shape(build, made):
    library = build("void twice(const float* a, float* c, int n) { for (int i = 0; i < n; ++i) c[i] = 2 * a[i]; }")
    declaration = "void twice(const float* a, float* c, int n);"
    twice = interop.load(library, declaration, memory="host").twice.returning(c="a")
    given = made()
    whole = given if given.base is None else given.base
    with pytest.raises(ValueError, match=r"^lib\.twice: c\b.*\(4,\)"):
        twice(np.ones(4, "f4"), 4, c=given)
    assert not whole.any()
    right = np.zeros(4, "f4")
    assert twice(np.ones(4, "f4"), 4, c=right) is right
    assert right.tolist() == [2] * 4


# nagisa/rust_libloading#135: a library rebuilt at the same path was the old one in silence. The system's loader cannot
# give the new one while the old one is in use, so an error that says so is right, too.
def test_b122_a_library_that_was_rebuilt(build):
    path = build("int v(void) { return 1; }")
    old = interop.load(path, "int v(void);")
    assert old.v() == 1
    path.unlink()
    build("int v(void) { return 2; }")
    try:
        new = interop.load(path, "int v(void);").v()
    except (OSError, RuntimeError, UserWarning) as error:
        new = str(error)
    assert new == 2 or "lib.so" in str(new)
    assert old.v() == 1


# root-project/root#569: a path was looked for in the system's folders.
@pytest.mark.parametrize("path", ["./libm.so.6", Path("./libm.so.6"), Path("libm.so.6")], ids=repr)
def test_b123_a_relative_path_is_a_file(build, tmp_path, monkeypatch, path):
    build("double cos(double x) { return 99; }", "libm.so.6")
    monkeypatch.chdir(tmp_path)
    assert interop.load(path, "double cos(double x);").cos(0.0) == 99


# pepijndevos/futhark-pycffi#15: a parser of declarations stopped at the block of a header.
def test_b124_a_headers_extern_c_block(build):
    path = build("int three(void) { return 3; }")
    try:
        three = interop.load(path, 'extern "C" {\nint three(void);\n}').three()
    except ValueError as error:
        three = str(error)
    assert three == 3 or 'extern "C"' in str(three)


# cupy/cupy#8485: the bits of a Python float were read as those of another type.
def test_b126_numbers_are_converted_to_the_declared_type(build):
    source = "float half(float x) { return x / 2; } double same(double x) { return x; } int id(int x) { return x; }"
    lib = interop.load(build(source), "float half(float x); double same(double x); int id(int x);")
    assert lib.half(3) == 1.5
    assert lib.half(np.float64(3)) == 1.5
    assert lib.half(float("inf")) == float("inf")
    assert lib.same(1e300) == 1e300
    for function, number in (("id", 2**31), ("half", 10**400), ("half", 1e300), ("half", -1e39), ("same", 10**400)):
        with pytest.raises(OverflowError, match=rf"^lib\.{function}: x is .* cannot hold"):
            getattr(lib, function)(number)


# robol/MPSolve#5: without declared types 64-bit numbers were cut to 32 bits.
def test_b128_widths_of_parameters_and_results(build):
    parameters = (
        "int a, double b, float c, int64_t d, char e, double f, float g, int h, int i, int j, double k, double l, "
        "double m, double n, double o"
    )
    total = " + ".join(f"{name} * {2**i}.0" for i, name in enumerate("abcdefghijklmno"))
    source = f"""
    #include <stdint.h>
    int64_t id(int64_t x) {{ return x; }}
    uint64_t big(void) {{ return -1; }}
    double mix({parameters}) {{ return {total}; }}
    """
    lib = interop.load(build(source), f"int64_t id(int64_t x); double mix({parameters}); uint64_t big(void);")
    assert lib.id(-(2**63)) == -(2**63)
    assert lib.big() == 2**64 - 1
    assert lib.mix(*[1] * 15) == 2**15 - 1


# uqfoundation/pathos#307: C functions could not be pickled.
def test_b129_functions_are_pickled_by_what_they_are_made_of(build):
    def again(x):
        return pickle.loads(pickle.dumps(x))

    lib = interop.load(build("int id(int x) { return x; }"), "int id(int x);")
    assert again(lib.id)(4) == 4
    assert again(lib).id(5) == 5
    assert again(interop.elementwise("x + 1"))(np.ones(2)).tolist() == [2, 2]
    kernel = interop.kernel("__global__ void k(float* x, int n) {}", "k", threads="x")
    assert "float* x" in repr(again(kernel))
    assert repr(again(kernel)) == repr(kernel)
