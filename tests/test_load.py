"""`interop.load`: C functions on host arrays, and every refusal. On the GPU: tests/gpu/test_load.py."""

from __future__ import annotations

import inspect
import os
import pickle
import re
import shutil
import subprocess
import threading

import numpy as np
import pytest

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
    assert str(inspect.signature(lib.sum)) == "(a, b, c, n, /, *, stream=None, execution=None)"
    assert str(inspect.signature(add)) == "(a, b, n, /, *, c=None, stream=None, execution=None)"
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
    with pytest.raises(TypeError, match=r"libsum.sum: c is .*, which is immutable; accepted: "):
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
        ("half_of", "1", TypeError, "libsum.half_of: x is str; accepted: a number, as it is float32"),
        ("half_of", A, TypeError, "libsum.half_of: x is numpy.ndarray"),
    ],
)
def test_scalars_that_do_not_fit(lib, name, value, error, message):
    with pytest.raises(error, match=message):
        getattr(lib, name)(value)


def test_options_that_do_not_fit(lib):
    with pytest.raises(ValueError, match="libsum.sum: stream or execution is given, but the function takes no device"):
        lib.sum(A, B, A.copy(), 5, stream=1)
    with pytest.raises(TypeError, match="libsum.sum has no keyword d; accepted: stream, execution, c"):
        lib.sum.returning(c="a")(A, B, 5, d=A)


def test_a_host_array_is_no_device_pointer(path):
    lib = interop.load(path, "void sum(const float* a, const float* b, float* c, int n);", memory="device")
    with pytest.raises(TypeError, match=r"libsum.sum: a is .*on cpu; accepted: .*float32 array on a CUDA device"):
        lib.sum(A, B, A.copy(), 5)


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
    ],
)
def test_results_that_cannot_be_made(lib, rules, message):
    with pytest.raises(ValueError, match=message):
        lib.sum.returning(**rules)


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
        ("void sum(int n)", "'void sum(int n)' has no ';' behind it"),
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
