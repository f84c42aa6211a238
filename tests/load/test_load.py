"""`interop.load`: calls of C functions with host arrays and scalars, and what they refuse.

Results that are made: test_results.py. Declarations, functions and files: test_files.py. On the GPU:
tests/gpu/test_load.py.
"""

from __future__ import annotations

import inspect
import math
import os
import pickle
import threading
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from helpers.c_functions import A, B
from helpers.scalars import Choice, Integer, Real

import interop


def test_it_is_called_with_arrays_of_any_library(lib, host_view_library):
    a, b, c = (host_view_library.make(x) for x in (A, B, np.zeros(5, "float32")))
    assert lib.sum(a, b, c, 5) is None
    np.testing.assert_array_equal(host_view_library.to_numpy(c), A + B)


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
