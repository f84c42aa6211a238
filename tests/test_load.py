"""`interop.load`: C functions on host arrays, and every refusal. On the GPU: tests/gpu/test_load.py."""

from __future__ import annotations

import ctypes
import inspect
import math
import os
import pickle
import re
import shutil
import subprocess
import sys
import textwrap
import threading
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from helpers.scalars import Choice, Integer, Real

import interop

SOURCE = r"""
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

void sum(const float* a, const float* b, float* c, int n) { for (int i = 0; i < n; ++i) c[i] = a[i] + b[i]; }
void split(const double* x, double* low, int64_t* high, int n) {
  for (int i = 0; i < n; ++i) { high[i] = (int64_t)floor(x[i]); low[i] = x[i] - high[i]; }
}
int8_t narrow(int8_t x) { return x; }
uint16_t wide(uint16_t x) { return x; }
uint64_t huge(uint64_t x) { return x; }
bool is_not(bool x) { return !x; }
float half_of(float x) { return x / 2; }
int status(int x) { return x; }
unsigned long long first_byte(const void* x) { return *(const unsigned char*)x; }
double many(int a, float b, double c, int d, int e, int f, int g, int h, short i, double j, float k, double l, double m,
            double n, double o, float p, signed char q) {
  return a + 2.0 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j + 11 * k + 12 * l + 13 * m +
         14 * n + 15 * o + 16 * p + 17 * q;
}
void wait_for(const int* flag_pipe, char* byte) { *byte = 0; (void)!read(*flag_pipe, byte, 1); }
"""

DECLARATIONS = """
    /* as in the header */
    extern "C" void sum(host const float* a, const host float * b, host float *__restrict__ c, int n);
    void split(host const double* x, host double* low, host int64_t* high, int n);  // two results
    int8_t narrow(int8_t x);
    uint16_t wide(uint16_t x);
    uint64_t huge(uint64_t x);
    bool is_not(bool x);
    float half_of(float x);
    cudaError_t status(int x);
    unsigned long long first_byte(host const void* x);
    double many(int a, float b, double c, int d, int e, int f, int g, int h, short i, double j, float k, double l,
                double m, double n, double o, float p, signed char q);
    void wait_for(host const int* flag_pipe, host char* byte);
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("load")
    (folder / "sum.c").write_text(SOURCE)
    library = folder / "libsum.so"
    subprocess.run([*compiler.split(), "-shared", "-fPIC", "-O1", folder / "sum.c", "-o", library, "-lm"], check=True)
    return library


@pytest.fixture
def lib(path):
    return interop.load(path, DECLARATIONS)


A = np.arange(5, dtype="float32")
B = np.full(5, 10, "float32")


def test_it_is_called_with_arrays_of_any_library(lib, host_view_library):
    a, b, c = (host_view_library.make(x) for x in (A, B, np.zeros(5, "float32")))
    assert lib.sum(a, b, c, 5) is None
    np.testing.assert_array_equal(host_view_library.to_numpy(c), A + B)


def test_results_are_made_by_the_callers_library(lib, host_library):
    add = lib.sum.returning(c="a")
    result = add(host_library.make(A), host_library.make(B), 5)
    assert host_library.is_ours(result)
    np.testing.assert_array_equal(host_library.to_numpy(result), A + B)


def test_a_result_may_be_given(lib):
    c = np.zeros(5, "float32")
    assert lib.sum.returning(c="a")(A, B, 5, c=c) is c
    np.testing.assert_array_equal(c, A + B)
    split = lib.split.returning(low="x", high="x")
    given = np.zeros(1, "int64")
    low, high = split(np.array([2.5]), 1, high=given)
    assert high is given
    assert (low[0], high[0]) == (0.5, 2)


def test_several_results_and_a_rule_for_their_shape(lib):
    split = lib.split.returning(high=lambda x, n: (n,), low="x")
    low, high = split(np.array([1.25, -0.5, 7.0]), 3)
    np.testing.assert_array_equal(low, [0.25, 0.5, 0.0])
    np.testing.assert_array_equal(high, [1, -1, 7])
    assert high.dtype == "int64"


def test_scalars_come_and_go_by_their_types(lib):
    assert lib.narrow(-128) == -128
    assert lib.wide(65535) == 65535
    assert lib.huge(2**64 - 1) == 2**64 - 1
    assert lib.is_not(False) is True
    assert lib.is_not(True) is False
    assert lib.half_of(3) == 1.5
    assert lib.half_of(np.float32(0.5)) == 0.25
    assert lib.narrow(np.int64(7)) == 7
    assert lib.first_byte(np.array([258], "<i4")) == 2


def test_numbers_are_taken_by_their_kind(lib):
    for three in (Integer(3), Choice.three, np.int8(3), np.uint64(3)):
        assert lib.narrow(three) == 3
        assert lib.half_of(three) == 1.5
    assert lib.half_of(Real(3)) == 1.5
    for true in (True, np.True_):
        assert lib.narrow(true) == 1
        assert lib.is_not(true) is False
        assert lib.half_of(true) == 0.5
    assert lib.is_not(np.False_) is True


def test_floats_to_the_end_of_their_range(lib):
    largest = np.finfo("float32").max
    assert lib.half_of(float(largest)) == largest / 2
    assert lib.half_of(float.fromhex("0x1.fffffefffffffp127")) == largest / 2  # rounded to it
    for x in (math.inf, -math.inf, np.float32("inf"), np.longdouble("inf")):
        assert lib.half_of(x) == x
    assert math.isnan(lib.half_of(math.nan))


def test_arguments_beyond_the_registers_arrive(lib):
    values = [(-1) ** i * (i + 0.0) for i in range(17)]
    integers = [0, 3, 4, 5, 6, 7, 8, 16]
    values = [int(x) if i in integers else x + 0.5 for i, x in enumerate(values)]
    assert lib.many(*values) == sum((i + 1) * x for i, x in enumerate(values))


def test_the_gil_is_released(lib):
    reader, writer = os.pipe()
    done = np.zeros(1, "int8")
    thread = threading.Thread(target=lambda: lib.wait_for(np.array([reader], "int32"), done))
    thread.start()
    os.write(writer, b"x")  # never reached if the reading thread kept the GIL
    thread.join(timeout=20)
    assert not thread.is_alive()
    assert done[0] == ord("x")
    os.close(reader)
    os.close(writer)


def test_functions_are_what_tools_expect(lib):
    add = lib.sum.returning(c="a")
    assert str(inspect.signature(lib.sum)) == "(a, b, c, n)"
    assert str(inspect.signature(add)) == "(a, b, n, *, c=None)"
    assert "host const float* a" in repr(add)
    assert lib.sum.__name__ == "sum"
    assert "sum" in dir(lib)
    again = pickle.loads(pickle.dumps(add))
    np.testing.assert_array_equal(again(A, B, 5), A + B)


def test_explain(lib):
    plan = interop.explain(lib.sum.returning(c="a"), A, B, 5)
    assert plan.function == "libsum.sum"
    assert plan.result_shape == (5,)
    assert [argument.name for argument in plan.arguments] == ["a", "b"]
    assert "void sum" in plan.algorithm
    c = np.zeros(5, "float32")
    assert interop.explain(lib.sum, A, B, c, 5).result_dtype == "none"
    assert not c.any()


def test_a_read_only_array_is_not_written(lib):
    c = np.zeros(5, "float32")
    c.flags.writeable = False
    with pytest.raises(TypeError, match=r"libsum.sum: c \(float32 of shape \(5,\)\) is read-only"):
        lib.sum(A, B, c, 5)


def test_an_immutable_array_is_not_written(lib, host_jax):
    with pytest.raises(TypeError, match=r"libsum.sum: c is .*, which is immutable; accepted: a writable"):
        lib.sum(A, B, host_jax.numpy.zeros(5, "float32"), 5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((A, B, 5), TypeError, r"libsum.sum takes 4 arguments \(a, b, c, n\), 3 were given"),
        (
            (A, B.astype("float64"), A, 5),
            TypeError,
            "libsum.sum: b is float64 .*: a C-contiguous float32 array",
        ),
        ((A, np.zeros(10, "float32")[::2], A, 5), ValueError, r"libsum.sum: b is .*strides \(2,\).*C-contiguous"),
        (([1.0], B, A, 5), TypeError, "libsum.sum: a is list"),
        ((None, B, A, 5), TypeError, "libsum.sum: a is NoneType"),
        ((A, B, A.copy(), 5.0), TypeError, "libsum.sum: n is float; accepted: an integer, as it is int32"),
        ((A, B, A.copy(), np.array(5)), TypeError, "libsum.sum: n is numpy.ndarray; accepted: an integer"),
        ((A, B, A.copy(), 2**31), OverflowError, "libsum.sum: n is 2147483648, which int32 cannot hold"),
    ],
)
def test_arguments_that_do_not_fit(lib, arguments, error, message):
    with pytest.raises(error, match=message):
        lib.sum(*arguments)


def test_arrays_that_are_not_aligned_as_c_has_them(lib):
    """The compiler may take it that they are; NumPy's own functions do not."""
    x = np.zeros(17, "u1")[1:].view("f4")
    y, z = np.ones(4, "f4"), np.zeros(4, "f4")
    words = "starts at an address that is not a multiple of 4 bytes, as C has float32; accepted: an aligned array"
    with pytest.raises(ValueError, match=f"a {words}"):
        lib.sum(x, y, z, 4)
    with pytest.raises(ValueError, match=f"c {words}"):
        lib.sum(y, y, x, 4)
    assert not x.any()
    assert np.array_equal(interop.add(x, 1), y)
    assert lib.first_byte(x) == 0  # a void* has no type
    lib.sum(x[:0], y[:0], z[:0], 0)
    lib.sum(y, y, z, 4)
    assert (z == 2).all()


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("narrow", 128, OverflowError, "x is 128, which int8 cannot hold"),
        ("narrow", -129, OverflowError, "x is -129"),
        ("wide", -1, OverflowError, "x is -1, which uint16 cannot hold"),
        ("huge", -1, OverflowError, "x is -1, which uint64 cannot hold"),
        ("is_not", 2, OverflowError, "x is 2, which bool cannot hold"),
        ("half_of", 1e300, OverflowError, r"libsum.half_of: x is 1e\+300, which float32 cannot hold"),
        ("half_of", -float.fromhex("0x1.ffffffp127"), OverflowError, "libsum.half_of: x is -3.40"),
        ("half_of", np.float64(1e39), OverflowError, r"libsum.half_of: x is .*1e\+39"),
        ("half_of", np.longdouble("1e400"), OverflowError, "libsum.half_of: x is"),
        ("half_of", Decimal("1e4000"), OverflowError, r"libsum.half_of: x is .*1E\+4000"),
        ("half_of", Fraction(10**400), OverflowError, r"libsum.half_of: x is Fraction\(10+\.\.\., which float32"),
        ("half_of", np.ma.masked, TypeError, "libsum.half_of: x is numpy.ma.core.MaskedConstant; accepted: a number"),
        ("half_of", 1j, TypeError, "libsum.half_of: x is complex"),
        ("narrow", np.float32(1), TypeError, "libsum.narrow: x is numpy.float32; accepted: an integer"),
        ("narrow", Real(1), TypeError, "libsum.narrow: x is .*Real; accepted: an integer"),
        ("half_of", "1", TypeError, "libsum.half_of: x is str; accepted: a number, as it is float32"),
        ("half_of", A, TypeError, "libsum.half_of: x is numpy.ndarray"),
    ],
)
def test_scalars_that_do_not_fit(lib, name, value, error, message):
    with pytest.raises(error, match=message):
        getattr(lib, name)(value)


def test_integers_of_any_size_are_named(lib):
    for name, x, bits, dtype in (
        ("narrow", 10**5000, 16610, "int8"),
        ("huge", -(10**5000), 16610, "uint64"),
        ("is_not", 10**5000, 16610, "bool"),
        ("half_of", Integer(-(10**5000)), 16610, "float32"),
    ):
        with pytest.raises(
            OverflowError, match=f"^libsum.{name}: x is an integer of {bits} bits, which {dtype} cannot"
        ):
            getattr(lib, name)(x)
    with pytest.raises(OverflowError, match=r"^libsum.half_of: x is 10+\.\.\., which float32 cannot"):
        lib.half_of(10**400)


def test_options_that_do_not_fit(lib):
    with pytest.raises(ValueError, match="libsum.sum: stream or execution is given, but the function takes no device"):
        lib.sum(A, B, A.copy(), 5, stream=1)
    with pytest.raises(ValueError, match="libsum.sum: stream or execution is given, but the function takes no device"):
        lib.sum(A, B, A.copy(), 5, execution="cuda")


def test_a_host_array_is_no_device_pointer(path):
    lib = interop.load(path, "void sum(const float* a, const float* b, float* c, int n);", memory="device")
    with pytest.raises(
        TypeError, match=r'libsum.sum: a is .*on cpu; accepted: .*on a CUDA device, or execution="cuda"'
    ):
        lib.sum(A, B, A.copy(), 5)
    with pytest.raises(TypeError, match="libsum.sum: a is float64 .*; accepted: a float32 array on a CUDA"):
        lib.sum(A.astype("float64"), B, A.copy(), 5)
    assert str(inspect.signature(lib.sum)) == "(a, b, c, n, *, stream=None, execution=None)"


def test_a_failing_status_is_an_error(lib):
    assert lib.status(0) is None
    with pytest.raises(interop.CudaError):
        lib.status(2)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"n": "a"}, "returning: n is no pointer to elements that are written; accepted: c"),
        ({"a": "b"}, "returning: a is no pointer"),
        ({"c": "c"}, "returning: the shape of c is 'c'; accepted: a function, or one of a, b"),
        ({"c": 5}, "returning: the shape of c is int; accepted: a function, or one of a, b"),
        ({"c": (5,)}, "returning: the shape of c is tuple; accepted: a function"),
        ({"c": A}, "returning: the shape of c is ndarray; accepted: a function"),
        ({"c": lambda a, n: n}, "too many positional arguments; accepted: one that takes 3 by position .a, b, n.$"),
        ({"c": lambda a, b, n, m: n}, "missing a required argument: 'm'; accepted: one that takes 3"),
        ({"c": lambda *, a, b, n: n}, "the function for the shape of c cannot be called"),
    ],
)
def test_results_that_cannot_be_made(lib, rules, message):
    with pytest.raises((ValueError, TypeError), match=f"^libsum.sum: .*{message}"):
        lib.sum.returning(**rules)


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (5.0, TypeError, "the shape of c, as its function returns it, is float; accepted: a tuple of ints, or an int"),
        ((5, 1.5), TypeError, "the shape of c has the size float; accepted: an int"),
        ([5, None], TypeError, "the shape of c has the size NoneType; accepted: an int"),
        (None, TypeError, "is NoneType; accepted"),
        ("5", TypeError, "has the size str; accepted: an int"),
        (-1, ValueError, "the shape of c has the size -1; accepted: 0 to"),
        ((5, 2**64), ValueError, "the shape of c has the size 18446744073709551616; accepted"),
        ((10**5000,), ValueError, "the shape of c has the size an integer of 16610 bits; accepted"),
        ((1,) * 65, ValueError, "the shape of c has 65 sizes; accepted: up to 64"),
        (2**62, ValueError, "more elements than any memory"),
    ],
)
def test_what_is_no_shape(lib, returned, error, message):
    c = np.zeros(5, "float32")
    made = lib.sum.returning(c=lambda a, b, n: returned)
    for results in ({}, {"c": c}):
        with pytest.raises(error, match=f"^libsum.sum: .*{message}") if returned != 2**62 else pytest.raises(error):
            made(A, B, 5, **results)
    assert not c.any()


@pytest.mark.parametrize(
    "returned",
    [5, np.int64(5), (5,), [5], (np.int32(5),), np.array(5), np.array([5]), Integer(5), Choice.three.value + 2],
)
def test_what_is_a_shape(lib, returned):
    made = lib.sum.returning(c=lambda a, b, n: returned)
    assert made(A, B, 5).shape == (5,)
    c = np.zeros(5, "float32")
    assert made(A, B, 5, c=c) is c
    np.testing.assert_array_equal(c, A + B)


def test_an_error_of_a_shape_rule_is_its_own_and_says_where(lib):
    with pytest.raises(ZeroDivisionError) as caught:
        lib.sum.returning(c=lambda a, b, n: n // 0)(A, B, 5)
    assert caught.value.__notes__ == ["libsum.sum: raised by the function for the shape of c, of a, b, n"]


RULES = ["a", lambda a, b, n: a.shape, lambda a, b, n: n]


@pytest.mark.parametrize("rule", RULES, ids=["name", "tuple", "int"])
def test_a_given_result_has_the_shape_of_its_rule(lib, rule):
    add = lib.sum.returning(c=rule)
    whole = np.zeros(10, "float32")
    for c in (whole[:3], whole[:6], whole[:5].reshape(5, 1), whole[:5].reshape(1, 5), whole[:1].reshape(()), whole[:0]):
        for call in (
            add,
            lambda *args, **results: interop.explain(add, *args, **results),
            lambda a, b, n, c: add(n=n, c=c, b=b, a=a),
        ):
            with pytest.raises(ValueError, match=r"^libsum.sum: c has shape .*; accepted: .* returning\(\) .*, \(5,\)"):
                call(A, B, 5, c=c)
    for c, error in (
        (np.zeros(5), TypeError),
        (whole[::2], ValueError),
        (np.broadcast_to(np.float32(0), 5), (TypeError, ValueError)),
        ([0.0] * 5, TypeError),
    ):
        with pytest.raises(error, match=r"^libsum.sum: c "):
            add(A, B, 5, c=c)
    assert not whole.any()
    assert add(A, B, 5, c=whole[5:]).base is whole  # the right shape is written
    np.testing.assert_array_equal(whole, [0] * 5 + [*(A + B)])


def test_a_given_result_beside_one_that_is_made(lib):
    split = lib.split.returning(low="x", high="x")
    x = np.array([2.5, 1.5])
    for given in ({"high": np.zeros(1, "int64")}, {"low": np.zeros(3)}):
        with pytest.raises(ValueError, match=r"libsum.split: (high|low) has shape .*; accepted: .*\(2,\)"):
            split(x, 2, **given)
    low, high = split(x, 2, low=np.zeros(2))
    assert (low.tolist(), high.tolist()) == ([0.5, 0.5], [2, 1])


# ---- arguments by name ----


def test_parameters_may_be_named(lib):
    c = np.zeros(5, "float32")
    lib.sum(A, n=5, c=c, b=B)
    np.testing.assert_array_equal(c, A + B)
    add = lib.sum.returning(c=lambda a, b, n: n)
    np.testing.assert_array_equal(add(b=B, n=5, a=A), A + B)
    assert add(A, B, n=5, c=c) is c
    assert add(A, B, 5, c=None).shape == (5,)
    assert interop.explain(add, A, B, n=5).result_shape == (5,)
    bound = inspect.signature(add).bind(A, n=5, b=B)
    np.testing.assert_array_equal(add(*bound.args, **bound.kwargs), A + B)


def test_names_that_are_words_of_python(build):
    text = "void in(const float* in, float* lambda, int self) { for (int i = 0; i < self; ++i) lambda[i] = in[i]; }"
    words = interop.load(build(text), "void in(host const float* in, host float* lambda, int self);")
    copy = getattr(words, "in")
    assert str(inspect.signature(copy)) == "(in, lambda, /, self)"
    y = np.zeros(5, "float32")
    copy(A, y, self=5)
    np.testing.assert_array_equal(y, A)
    made = copy.returning(**{"lambda": "in"})
    assert str(inspect.signature(made)) == "(in, /, self)"
    np.testing.assert_array_equal(made(**{"in": A, "self": 5}), A)


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((A, B, 5), {"d": A}, "libsum.sum has no keyword 'd'; accepted: a, b, c, n$"),
        ((A, B), {"nn": 5}, "libsum.sum has no keyword 'nn'; did you mean 'n'[?] accepted: a, b, c, n$"),
        ((A, B, 5), {"a": A}, "libsum.sum: a is given twice, by position and by name"),
        ((A, B, 5, 6), {}, r"libsum.sum takes 3 arguments \(a, b, n\), 4 were given$"),
        ((A, B, 5, 6), {"c": A}, r"libsum.sum takes 3 arguments \(a, b, n\), 4 were given$"),
        ((A,), {"n": 5}, r"libsum.sum takes 3 arguments \(a, b, n\), 2 were given, without b$"),
        ((), {}, r"libsum.sum takes 3 arguments \(a, b, n\), 0 were given$"),
    ],
)
def test_arguments_that_have_no_parameter(lib, args, named, message):
    add = lib.sum.returning(c="a")
    for call in (add, lambda *x, **named: interop.explain(add, *x, **named)):
        with pytest.raises(TypeError, match=message):
            call(*args, **named)


def test_a_result_needs_an_array_that_says_whose_it_is(path):
    lib = interop.load(path, "void wait_for(host int* flag_pipe, host char* byte);")
    made = lib.wait_for.returning(flag_pipe=lambda: (1,), byte=lambda: (1,))
    with pytest.raises(ValueError, match="libsum.wait_for: flag_pipe is to be made, and no array argument says whose"):
        made()


def test_a_function_with_a_value_makes_no_results(lib):
    with pytest.raises(ValueError, match="libsum.first_byte: returning: the C function returns a value"):
        lib.first_byte.returning(x="x")


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        ("", "declarations has none"),
        ("void sum(int n)", "'void sum(int n)' has no ';' behind it; accepted: C declarations, each with one"),
        ("#include <x.h>\nvoid sum(int n);", "'#include <x.h>' is for the preprocessor"),
        ("void sum(float* a);", "the pointer 'a' says not once 'device' or 'host'"),
        ("void sum(device host float* a);", "the pointer 'a' says not once"),
        ("void sum(host float** a);", "the parameter 'host float** a' is not understood"),
        ("void sum(host float a[]);", "the parameter 'host float a[]' is not understood"),
        ("void sum(int);", "the parameter 'int' is not understood"),
        ("void sum(device int n);", "the type of 'n' is 'device int'"),
        ("void sum(struct pair p);", "the type of 'p' is 'struct pair'"),
        ("void sum(host wchar_t* p);", "the elements of 'p' are 'host wchar_t'"),
        ("float* sum(int n);", "a declaration is not understood"),
        ("struct pair sum(int n);", "the result is struct pair; accepted: void"),
        ("void sum(int n, int n);", "the parameter 'n' has the name of another"),
        ("void sum(int stream);", "the parameter 'stream' has the name of another, or of a keyword"),
        ("void sum(host float* a, cudaStream_t s);", "there is a stream, and no device pointer"),
        ("int x;", "a declaration is not understood"),
        ("void sum(" + ", ".join(f"long x{i}" for i in range(40)) + ");", "has 40 parameters; accepted: up to"),
    ],
)
def test_declarations_that_are_not_understood(path, declaration, message):
    with pytest.raises(ValueError, match="interop.load: |libsum.sum") as caught:
        interop.load(path, declaration)
    assert message in str(caught.value)


def test_a_missing_library_is_named(tmp_path):
    with pytest.raises(OSError, match=re.escape(f"interop.load: '{tmp_path / 'libnone.so'}' cannot be loaded")):
        interop.load(tmp_path / "libnone.so", "void f(int n);")


def test_a_missing_function_is_named(path, lib):
    with pytest.raises(AttributeError, match=r"has no function 'product'; functions of C\+\+ need extern \"C\""):
        interop.load(path, "void product(int n);")
    with pytest.raises(AttributeError, match="has no declared function 'product'; declared: sum, split"):
        _ = lib.product


def test_memory_is_one_of_two(path):
    with pytest.raises(ValueError, match="interop.load: memory is 'gpu'; accepted: None, 'device', 'host'"):
        interop.load(path, DECLARATIONS, memory="gpu")
    with pytest.raises(TypeError, match="interop.load: memory is int; accepted: None, 'device', 'host'"):
        interop.load(path, DECLARATIONS, memory=10**5000)


def test_streams_are_one_of_two(path):
    with pytest.raises(ValueError, match="interop.load: streams is 'mine'; accepted: 'default', 'own'"):
        interop.load(path, DECLARATIONS, streams="mine")
    own = interop.load(path, DECLARATIONS, streams="own")
    again = pickle.loads(pickle.dumps(own))
    assert again.__reduce__() == own.__reduce__()
    assert "own" in own.__reduce__()[1]
    assert again.half_of(3) == 1.5  # no device pointer: no stream


# ---- the library's own functions ----


@pytest.fixture
def build(tmp_path):
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")

    def compile_and_link(text, name="libown.so", *options):
        fresh = tmp_path / "fresh.so"  # a new file, which takes the place of another
        (tmp_path / "own.c").write_text(text)
        subprocess.run([*compiler.split(), "-shared", "-fPIC", tmp_path / "own.c", "-o", fresh, *options], check=True)
        return fresh.replace(tmp_path / name)

    return compile_and_link


def test_a_function_of_another_library_is_none_of_this_one(build):
    mine = build("int f(void) { return 1; }", "libown.so", "-Wl,--no-as-needed", "-lc")
    for name in ("div", "malloc"):
        message = rf"{re.escape(repr(str(mine)))} has no function '{name}' of its own, but finds one in '.*libc.*'"
        with pytest.raises(AttributeError, match=message):
            interop.load(mine, f"int f(void); void {name}(int a, int b);")
    with pytest.raises(AttributeError, match="'libm.so.6' has no function 'puts' of its own, but finds one in '.*libc"):
        interop.load("libm.so.6", "int puts(int x);")


def test_an_own_function_goes_before_that_of_another_library(build):
    mine = build("int abs(int x) { return 7; }")
    assert interop.load(mine, "int abs(int x);").abs(-3) == 7
    assert interop.load("libc.so.6", "int abs(int x);").abs(-3) == 3


def test_functions_that_the_loader_chooses_are_the_librarys_own():
    lib = interop.load("libm.so.6", "double sin(double x); double floor(double x); double exp(double x);")  # IFUNC
    assert lib.floor(1.5) == 1
    assert lib.exp(0) == 1
    strings = interop.load("libc.so.6", "size_t strlen(host const char* s);")
    assert strings.strlen(np.frombuffer(b"four\0", "int8")) == 4


def test_data_is_no_function(build):
    mine = build("int number = 3; __thread int own = 4; int f(void) { return number + own; }")
    for name in ("number", "own"):
        with pytest.raises(AttributeError, match=rf"has no function '{name}': what has this name is data"):
            interop.load(mine, f"int {name}(void);")
    assert interop.load(mine, "int f(void);").f() == 7


# ---- the library's file ----


def test_a_path_object_is_a_file(build, tmp_path, monkeypatch):
    build("double cos(double x) { return 99; }", "libm.so.6")
    monkeypatch.chdir(tmp_path)
    declaration = "double cos(double x);"
    for path in ("./libm.so.6", Path("libm.so.6"), Path("./libm.so.6"), tmp_path / "libm.so.6"):
        lib = interop.load(path, declaration)
        assert lib.cos(0) == 99
        assert repr(lib) == f"interop.load({str(tmp_path / 'libm.so.6')!r})"
    monkeypatch.chdir("/")
    assert pickle.loads(pickle.dumps(lib.cos))(0) == 99  # of that folder still
    assert interop.load("libm.so.6", declaration).cos(0) == 1  # the system's


def test_a_library_that_was_built_anew_has_its_new_code(build, tmp_path):
    libraries = []
    for version in range(1, 5):
        path = build(f"int v(void) {{ return {version}; }}")
        libraries.append(interop.load(path, "int v(void);"))
        assert [lib.v() for lib in libraries] == [*range(1, version + 1)]
        assert interop.load(str(path), "int v(void);").v() == version
    first = build("int v(void) { return 1; }", "libother.so")
    ctypes.CDLL(str(first))  # the loader knows this name by somebody else
    assert interop.load(build("int v(void) { return 2; }", "libother.so"), "int v(void);").v() == 2


def test_a_moved_link_is_followed(build, tmp_path):
    link = tmp_path / "liblink.so"
    for version in (1, 2, 1):
        target = tmp_path / f"lib{version}.so"
        if not target.exists():
            build(f"int v(void) {{ return {version}; }}", target.name)
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        assert interop.load(link, "int v(void);").v() == version


def test_a_name_that_the_loader_looks_for_has_its_new_code(build, tmp_path):
    code = textwrap.dedent("""
        import os, interop
        load = lambda: interop.load("libnamed.so", "int v(void);")
        first = load()
        os.replace("new.so", "libnamed.so")
        assert (first.v(), load().v(), first.v()) == (1, 2, 1)
    """)
    build("int v(void) { return 1; }", "libnamed.so")
    build("int v(void) { return 2; }", "new.so")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_library_that_was_changed_in_place_is_refused(build):
    path = build("int v(void) { return 1; }")
    lib = interop.load(path, "int v(void);")
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(OSError, match=rf"^interop.load: {re.escape(repr(str(path)))} has been changed in place since"):
        interop.load(path, "int v(void);")
    assert lib.v() == 1
    build("int v(void) { return 2; }")  # a new file
    assert interop.load(path, "int v(void);").v() == 2


def test_a_file_that_did_not_load_may_be_written_again(build, tmp_path):
    path = tmp_path / "libown.so"
    path.write_bytes(b"half a library")
    with pytest.raises(OSError, match="cannot be loaded: .*"):
        interop.load(path, "int v(void);")
    path.write_bytes(build("int v(void) { return 1; }", "whole.so").read_bytes())
    assert interop.load(path, "int v(void);").v() == 1


def test_what_is_no_path(tmp_path, monkeypatch):
    for path, error, message in (
        ("", ValueError, "path is ''; accepted: a file, or a name"),
        (None, TypeError, "path is NoneType; accepted: a string, or a path"),
        (10**5000, TypeError, "path is int; accepted"),
        ("lib\0.so", ValueError, r"path is 'lib\\x00.so'; accepted: a string without null characters"),
        (tmp_path / "a\0b", ValueError, "accepted: a string without null characters"),
        (Path(), OSError, r"'\.' cannot be loaded"),
        (tmp_path, OSError, "cannot be loaded"),
    ):
        with pytest.raises(error, match=f"^interop.load: .*{message}"):
            interop.load(path, "int abs(int x);")
    (tmp_path / "libhere.so").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match="system's loader: the file here is './libhere.so'"):
        interop.load("libhere.so", "int abs(int x);")
