"""`reads=`: pointers without `const` that are only read, of C functions with host arrays, and of kernels as declared.

What INTEROP_CHECKED=1 compares: here for host arrays. On the GPU: tests/gpu/test_reads.py.
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from helpers import c_functions

import interop

SOURCE = r"""
void sum(float* a, float* b, float* c, int n) { for (int i = 0; i < n; ++i) c[i] = a[i] + b[i]; }
float lie(float* a, int at) { a[at] += 1; return a[at]; }
double total(void* x, int n) { double all = 0; for (int i = 0; i < n; ++i) all += ((double*)x)[i]; return all; }
void lie_beside(float* a, float* c) { a[1] = c[0] = -1; }
int lie_and_fail(float* a) { a[0] += 1; return 2; }
"""
DECLARATIONS = """
    void sum(host float* a, host float* b, host float* c, int n);
    float lie(host float* a, int at);
    double total(host void* x, int n);
    void lie_beside(host float* a, host float* c);
    cudaError_t lie_and_fail(host float* a);
"""
READS = {"sum": ("a", "b"), "lie": ["a"], "total": ("x",), "lie_beside": ("a",), "lie_and_fail": ("a",)}
A = np.arange(5, dtype="float32")
B = np.full(5, 10, "float32")

KERNEL = """
__global__ void mix(float* a, float* b, float* c, const float* d, interop::View<float, 2> v, int n) {}
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return c_functions.build(SOURCE, tmp_path_factory.mktemp("reads") / "libreads.so")


@pytest.fixture
def lib(path):
    return interop.load(path, DECLARATIONS, reads=READS)


@pytest.fixture
def checked(path, monkeypatch):
    monkeypatch.setenv("INTEROP_CHECKED", "1")
    return interop.load(path, DECLARATIONS, reads=READS)


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


# ---- what it accepts ----


@pytest.mark.parametrize("said", ["", "0", "1"])
def test_read_only_arrays_are_taken(path, monkeypatch, said):
    monkeypatch.setenv("INTEROP_CHECKED", said)
    lib, c = interop.load(path, DECLARATIONS, reads=READS), np.zeros(5, "float32")
    lib.sum(read_only(A), read_only(B), c, 5)
    np.testing.assert_array_equal(c, A + B)
    assert lib.total(read_only(A.astype("float64")), 5) == 10


def test_without_it_they_are_not(path):
    lib = interop.load(path, DECLARATIONS)
    with pytest.raises(TypeError, match=r"libreads.sum: a .* is read-only"):
        lib.sum(read_only(A), B.copy(), B.copy(), 5)
    partly = interop.load(path, DECLARATIONS, reads={"sum": ("a",)})
    with pytest.raises(TypeError, match=r"libreads.sum: b .* is read-only"):
        partly.sum(read_only(A), read_only(B), B.copy(), 5)


@pytest.mark.parametrize("said", ["0", "1"])
def test_arrays_of_jax_are_taken(path, host_jax, monkeypatch, said):
    monkeypatch.setenv("INTEROP_CHECKED", said)
    lib = interop.load(path, DECLARATIONS, reads=READS)
    a, b = host_jax.numpy.asarray(A), host_jax.numpy.asarray(B)
    made = lib.sum.returning(c="a")(a, b, 5)
    assert isinstance(made, host_jax.Array)
    np.testing.assert_array_equal(made, A + B)
    with pytest.raises(TypeError, match=r"libreads.sum: c is .*, which is immutable"):
        lib.sum(a, b, a, 5)


def test_what_is_not_named_is_written(lib):
    with pytest.raises(TypeError, match=r"libreads.sum: c .* is read-only"):
        lib.sum(A, B, read_only(A), 5)


def test_tools_show_it(lib):
    add = lib.sum.returning(c="a")
    said = "void sum(host float* a, host float* b, host float* c, int n), which only reads a, b"
    assert repr(add) == f"<C function libreads.sum: {said}>"
    assert interop.explain(add, read_only(A), B, 5).algorithm == f"the C function {said}"
    kernel = interop.kernel(KERNEL, "mix", reads=("a", "b"))
    assert repr(kernel).endswith("int n), which only reads a, b>")
    assert repr(interop.kernel(KERNEL, "mix")).endswith("int n)>")


def test_a_pickle_keeps_it(lib):
    c = np.zeros(5, "float32")
    for function in (pickle.loads(pickle.dumps(lib)).sum, pickle.loads(pickle.dumps(lib.sum))):
        assert "only reads a, b" in repr(function)
        function(read_only(A), read_only(B), c, 5)
    add = pickle.loads(pickle.dumps(lib.sum.returning(c="a")))
    np.testing.assert_array_equal(add(read_only(A), B, 5), A + B)
    kernel = interop.kernel(KERNEL, "mix", reads=["a", "b"])
    again = pickle.loads(pickle.dumps(kernel))
    assert again.__reduce__() == kernel.__reduce__()
    assert [p.written for p in again._parameters] == [False, False, True, False, True, False]


# ---- what it refuses ----


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("e", r"reads: 'e' is no parameter; accepted: pointers that are not to const \(a, b, c\)$"),
        ("n", r"reads: 'n' is no pointer; accepted: pointers that are not to const \(a, b, c\)$"),
        ("d", r"reads: 'd' is a pointer to const, which is only read as it is; accepted: .*\(a, b, c\)$"),
        ("v", r"reads: 'v' is a view, whose type says it: interop::View<const T, n> .*\(a, b, c\)$"),
    ],
)
def test_names_of_a_kernel_that_do_not_fit(name, message):
    with pytest.raises(ValueError, match=rf"^interop.kernel\('mix'\): {message}"):
        interop.kernel(KERNEL, "mix", reads=("a", name))


@pytest.mark.parametrize(
    ("reads", "message"),
    [
        ({"f": ("e",)}, r"reads: 'e' is no parameter; accepted: pointers that are not to const \(a\), in 'void f\("),
        ({"f": ("n",)}, r"reads: 'n' is no pointer; accepted: pointers that are not to const \(a\), in 'void f\("),
        ({"f": ("s",)}, r"reads: 's' is no pointer; .*, in 'void f\("),
        ({"f": ("b",)}, r"reads: 'b' is a pointer to const, which is only read as it is; .*, in 'void f\("),
        ({"g": ("b",)}, r"reads: 'b' is a pointer to const, .* \(there is none\), in 'void g\("),
        ({"f": ("a",), "h": ()}, "reads: 'h' is no declared function; accepted: f, g$"),
    ],
)
def test_names_of_a_c_function_that_do_not_fit(path, reads, message):
    declarations = "void f(float* a, const float* b, int n, cudaStream_t s); void g(const float* b);"
    with pytest.raises(ValueError, match=f"^interop.load: {message}"):
        interop.load(path, declarations, memory="device", reads=reads)


@pytest.mark.parametrize(
    ("reads", "message"),
    [
        ("a", r"interop.kernel: reads is str; accepted: a tuple of names, such as \('a',\)$"),
        ({"a"}, r"interop.kernel: reads is set; accepted: a tuple of names, such as \('a', 'b'\)$"),
        (None, "interop.kernel: reads is NoneType; accepted"),
        (("a", 1), "interop.kernel: reads has an element of int; accepted: names, each a str$"),
    ],
)
def test_what_is_no_tuple_of_names(path, reads, message):
    with pytest.raises(TypeError, match=f"^{message}"):
        interop.kernel(KERNEL, "mix", reads=reads)
    message = message.replace("interop.kernel: reads", r"interop.load: reads\['sum'\]")
    with pytest.raises(TypeError, match=f"^{message}"):
        interop.load(path, DECLARATIONS, reads={"sum": reads})


def test_what_is_no_mapping_of_functions(path):
    for reads in (("a",), "a", 5):
        with pytest.raises(TypeError, match=f"^interop.load: reads is {type(reads).__name__}; accepted: a mapping of"):
            interop.load(path, DECLARATIONS, reads=reads)


def test_what_is_only_read_is_no_result(lib):
    with pytest.raises(ValueError, match=r"^libreads.sum: returning: a is only read, as reads= says, .*; accepted: c$"):
        lib.sum.returning(a="b")
    kernel = interop.kernel(KERNEL, "mix", reads=("a",))
    with pytest.raises(ValueError, match=r"returning: a is only read, as reads= says, .*; accepted: b, c, v$"):
        kernel.returning(a="b")


# ---- INTEROP_CHECKED=1 ----


def test_a_lie_is_caught(checked):
    for at in (0, 3, 4):
        a = A.copy()
        with pytest.raises(ValueError, match=f"^libreads.lie: a is only read, .* from element {at} on; accepted: "):
            checked.lie(a, at)
        assert a[at] == A[at] + 1  # the function has run


def test_a_lie_is_believed_otherwise(lib, path, monkeypatch):
    assert lib.lie(A.copy(), 3) == 4
    monkeypatch.setenv("INTEROP_CHECKED", "0")
    assert interop.load(path, DECLARATIONS, reads=READS).lie(A.copy(), 3) == 4
    monkeypatch.setenv("INTEROP_CHECKED", "1")
    assert interop.load(path, DECLARATIONS).lie(A.copy(), 3) == 4  # where nothing is said
    assert lib.lie(A.copy(), 3) == 4  # made before


def test_an_array_that_is_given_for_both_may_change(checked):
    x = A.copy()
    checked.sum(x, x, x, 5)
    np.testing.assert_array_equal(x, 2 * A)
    x = np.zeros(10, "float32")
    checked.sum(x[:5], B, x[4:9], 5)
    checked.sum(x[:5], B, x[5:], 5)


def test_an_array_beside_what_is_written_may_not(checked):
    x = np.zeros(10, "float32")
    with pytest.raises(ValueError, match="^libreads.lie_beside: a is only read, .* from element 1 on"):
        checked.lie_beside(x[:5], x[5:])
    checked.lie_beside(x[:5], x[4:])


def test_nan_is_equal_to_itself(checked):
    a = np.full(5, np.nan, "float32")
    checked.sum(a, a, np.zeros(5, "float32"), 5)
    checked.sum(a[:0], a[:0], np.zeros(5, "float32"), 0)


def test_an_error_of_the_function_comes_first(checked):
    with pytest.raises(interop.CudaError):
        checked.lie_and_fail(A.copy())


def test_explain_says_what_is_compared(lib, checked):
    c = np.zeros(5, "float32")
    said = "INTEROP_CHECKED=1: the host compares a, b before the call and after"
    assert interop.explain(checked.sum, A, B, c, 5).waits == (said,)
    assert interop.explain(checked.sum, c, B, c, 5).waits == (said.replace("a, b", "b"),)
    assert interop.explain(lib.sum, A, B, c, 5).waits == ()


def test_it_is_asked_for_by_1(path, monkeypatch):
    monkeypatch.setenv("INTEROP_CHECKED", "yes")
    with pytest.raises(ValueError, match="^INTEROP_CHECKED is 'yes'; accepted: '1', '0', or nothing$"):
        interop.load(path, DECLARATIONS, reads=READS)
    with pytest.raises(ValueError, match="^INTEROP_CHECKED is 'yes'"):
        interop.kernel(KERNEL, "mix", reads=("a",))
    interop.load(path, DECLARATIONS)
