"""`interop.kernel` without a GPU: declarations, refusals, the compiler. On the GPU: tests/gpu/kernel."""

from __future__ import annotations

import inspect
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import elements
from helpers.kernels import UnloadedLibrary
from helpers.scalars import Choice, Integer, Real

import interop
from interop._cuda import kept, nvrtc

SCALE = """
/* __global__ void scale(int* not_this_one); */
extern "C" __global__ void __launch_bounds__(256) scale(const float* __restrict__ x, float* y,  // from, to
                                                        float by, long long n) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = by * x[i];
}
"""
X = np.arange(5, dtype="float32")


def scale_rows(*extents):
    return extents[0].shape[0]


def parameters(declared, **options):
    """(kind, name, dtype, written, dimensions) of the parameters of `__global__ void f(declared)`."""
    made = interop.kernel(f"__global__ void f({declared}) {{}}", "f", **options)
    return [tuple(parameter)[:5] for parameter in made._parameters]


# ---- declarations ----


@pytest.mark.parametrize("source", ["scale.cu", "/a/folder/scale.cu", " k.ptx\n", "x.cubin"])
def test_a_str_that_names_a_file(source):
    with pytest.raises(ValueError, match=r"the name of a file; accepted: the text of a source, or a path object"):
        interop.kernel(source, "scale")


def test_what_tools_expect():
    scale = interop.kernel(SCALE, "scale", threads="x")
    options = "grid=None, threads=None, block=None, shared=None, cluster=None, cooperative=None"
    options += ", dependent_launch=None"
    assert str(inspect.signature(scale)) == f"(x, y, by, n, *, {options}, stream=None, execution=None)"
    made = scale.returning(y="x")
    assert str(inspect.signature(made)).startswith("(x, by, n, *, y=None, grid=None")
    assert repr(made) == "<kernel scale(const float* __restrict__ x, float* y, float by, long long n)>"
    assert scale.__name__ == "scale"


def test_kernels_may_be_pickled(tmp_path):
    (tmp_path / "scale.cu").write_text(SCALE)
    options = {"grid": scale_rows, "block": (32, 2), "options": {"std": "c++17"}}
    for source in (SCALE, tmp_path / "scale.cu"):
        made = interop.kernel(source, "scale", **options).returning(y="x")
        again = pickle.loads(pickle.dumps(made))
        assert repr(again) == repr(made)
        assert again.__reduce__() == made.__reduce__()


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("const float* x", ("pointer", "x", "float32", False, 0)),
        ("float const * const __restrict__ x", ("pointer", "x", "float32", False, 0)),
        ("double *x", ("pointer", "x", "float64", True, 0)),
        ("void* x", ("pointer", "x", "", True, 0)),
        ("const __half* x", ("pointer", "x", "float16", False, 0)),
        ("__nv_bfloat16* x", ("pointer", "x", "bfloat16", True, 0)),
        ("const __nv_fp8_e4m3* x", ("pointer", "x", "float8_e4m3fn", False, 0)),
        ("cuda::std::int64_t* x", ("pointer", "x", "int64", True, 0)),
        ("unsigned long long int* x", ("pointer", "x", "uint64", True, 0)),
        ("const cuda::std::complex<float>* x", ("pointer", "x", "complex64", False, 0)),
        ("thrust::complex<double>* x", ("pointer", "x", "complex128", True, 0)),
        ("cuFloatComplex* x", ("pointer", "x", "complex64", True, 0)),
        ("interop::View<const float, 2> x", ("view", "x", "float32", False, 2)),
        ("const interop::View<int, 3> x", ("view", "x", "int32", True, 3)),
        ("__grid_constant__ const View<__half,1> x", ("view", "x", "float16", True, 1)),
    ],
)
def test_arrays_are_declared(declared, expected):
    assert parameters(declared) == [expected]


@pytest.mark.parametrize(
    ("declared", "dtype"),
    [
        ("int n", "int32"),
        ("const size_t n", "uint64"),
        ("bool n", "bool"),
        ("__half n", "float16"),
        ("const __grid_constant__ double n", "float64"),
        ("cuda::std::complex<double> n", "complex128"),
    ],
)
def test_numbers_are_declared(declared, dtype):
    assert parameters(f"float* x, {declared}")[1] == ("scalar", "n", dtype, False, 0)


TEMPLATE = """
namespace ours {
template <typename T, int N = 2, class U = double>
__global__ void scale(const T* x, interop::View<U, N> y, T by) {}
}
template <int N> __launch_bounds__(N) __global__ void bounded(interop::View<float, N> x) {}
template <class... Ts> __global__ void packed(const float* x, Ts... rest) {}
"""


def test_templates_have_their_arguments_in_place():
    declared = {
        "ours::scale<float>": [("float32", 0), ("float64", 2), ("float32", 0)],
        "ours::scale<__half, 3, unsigned int>": [("float16", 0), ("uint32", 3), ("float16", 0)],
        "bounded<4>": [("float32", 4)],
        "scale< cuda::std::complex<float> >": [("complex64", 0), ("float64", 2), ("complex64", 0)],
    }
    for name, expected in declared.items():
        made = interop.kernel(TEMPLATE, name)
        assert [(parameter.dtype, parameter.ndim) for parameter in made._parameters] == expected


def test_a_definition_counts_before_a_declaration():
    source = "__global__ void f(const float*);\n__global__ void f(const float* x) {}"
    assert [parameter.name for parameter in interop.kernel(source, "f")._parameters] == ["x"]


def test_a_signature_stands_for_the_declaration():
    made = interop.kernel("KERNEL(f, float)", "f", signature="const float* x,  // read\n double* y, int n")
    assert [parameter.dtype for parameter in made._parameters] == ["float32", "float64", "int32"]


@pytest.mark.parametrize(
    ("source", "name", "options", "message"),
    [
        (SCALE, "sum", {}, "the source declares no __global__ function 'sum'; accepted: scale, or signature="),
        ("void f(int* x) {}", "f", {}, "the source declares no __global__ function 'f'; accepted: one that"),
        (SCALE, "scale<float>", {}, "'scale' is no template; accepted: its name alone"),
        (TEMPLATE, "scale", {}, "'scale' is a template; accepted: its arguments, too, as in 'scale<float>'"),
        (TEMPLATE, "packed<int>", {}, "the template <class... Ts> with <int> is not understood; accepted: signature="),
        (SCALE + SCALE, "scale", {}, "the source declares 'scale' 2 times; accepted: signature= to say which"),
        ("__global__ void f(float** x) {}", "f", {}, "the parameter 'float** x' is not understood"),
        ("__global__ void f(float x[]) {}", "f", {}, "the parameter 'float x[]' is not understood"),
        ("__global__ void f(pair* x) {}", "f", {}, "the elements of 'x' are 'pair'; accepted: void, int8_t"),
        ("__global__ void f(volatile int* x) {}", "f", {}, "the elements of 'x' are 'volatile int'"),
        ("__global__ void f(int* x, pair p) {}", "f", {}, "the type of 'p' is 'pair'; accepted: int8_t"),
        ("__global__ void f(View<void, 2> x) {}", "f", {}, "'x' is a view of void in 2 dimensions; accepted: int8_t"),
        ("__global__ void f(View<int, 65> x) {}", "f", {}, "'x' is a view of int in 65 dimensions"),
        ("__global__ void f(View<int, N> x) {}", "f", {}, "the parameter 'View<int, N> x' is not understood"),
        ("__global__ void f(int* x, int* x) {}", "f", {}, "two parameters are called 'x'"),
        ("__global__ void f(int n) {}", "f", {}, "there is no pointer and no view"),
        ("__global__ void f() {}", "f", {}, "there is no pointer and no view"),
        ("__global__ void f(int* grid) {}", "f", {}, "the parameter 'grid' has the name of a keyword of the call"),
        (SCALE, "scale", {"signature": "float"}, "the parameter 'float' is not understood; accepted: type name"),
        (SCALE, "scale", {"grid": 1, "threads": "x"}, "grid and threads are given; accepted: one of them"),
        (SCALE, "scale", {"grid": lambda x: 1, "threads": 4}, "grid and threads are given; accepted: one of them"),
        (SCALE, "scale", {"grid": -1}, "grid is -1; accepted: an int of at least 0"),
        (SCALE, "scale", {"grid": (1, 2, 3, 4)}, "grid is (1, 2, 3, 4); accepted: an int of at least 0"),
        (SCALE, "scale", {"grid": 2**31}, "grid is 2147483648; accepted: an int of at least 0 (below 2**31)"),
        (SCALE, "scale", {"threads": 1.5}, "threads is 1.5; accepted: an int"),
        (SCALE, "scale", {"threads": "n"}, "threads is 'n'; accepted: the name of an array parameter (x, y), an int"),
        (SCALE, "scale", {"block": 0}, "block is 0; accepted: an int of at least 1"),
        (SCALE, "scale", {"block": (32, "y")}, "block is (32, 'y'); accepted: an int of at least 1"),
        (SCALE, "scale", {"shared": -8}, "shared is -8; accepted: an int, the bytes of dynamic shared memory"),
        (SCALE, "scale", {"cluster": []}, "cluster is []; accepted: an int of at least 1"),
        (SCALE, "scale", {"cooperative": 1}, "cooperative is 1; accepted: True or False"),
        (SCALE, "not a name", {}, "name is 'not a name'; accepted: a kernel's name, such as 'scale', 'scale<float>'"),
        (
            f"__global__ void f({', '.join(f'int* x{i}' for i in range(129))}) {{}}",
            "f",
            {},
            "has 129 parameters of 2064 bytes; accepted: up to 128, and 4096 bytes",
        ),
        (
            "__global__ void f(View<int, 64> a, View<int, 64> b, View<int, 64> c, View<int, 64> d) {}",
            "f",
            {},
            "has 4 parameters of 4160 bytes; accepted: up to 128",
        ),
    ],
)
def test_what_is_refused_at_construction(source, name, options, message):
    with pytest.raises(ValueError, match=r"^interop\.kernel") as caught:
        interop.kernel(source, name, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("source", "name", "options", "message"),
    [
        (SCALE, 3, {}, "interop.kernel: name is int; accepted: a str"),
        (3, "scale", {}, "interop.kernel: source is int; accepted: a str, a path object, or the bytes of a cubin, PTX"),
        (
            SCALE,
            "scale",
            {"options": "-lineinfo"},
            "interop.kernel: options is str; accepted: a mapping of str",
        ),
    ],
)
def test_what_is_of_another_type(source, name, options, message):
    with pytest.raises(TypeError, match=message):
        interop.kernel(source, name, **options)


def test_a_source_that_cannot_be_read():
    with pytest.raises(FileNotFoundError, match="no_such_file.cu"):
        interop.kernel(Path("no_such_file.cu"), "scale")


# ---- calls that launch nothing ----


@pytest.fixture
def scale():
    return interop.kernel(SCALE, "scale", threads="x")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((X, X, 5), TypeError, r"takes 4 arguments \(x, y, by, n\), 3 were given"),
        ((X, X, 1, 2, 3), TypeError, "5 were given"),
        ((X.astype("float64"), X, 1.0, 5), TypeError, "x is float64 .*; accepted: a float32 array on a CUDA"),
        (
            (X, X.copy(), 1.0, 5),
            TypeError,
            'x is float32 .* on cpu; accepted: .* on a CUDA device, or execution="cuda"',
        ),
        (([1.0], X, 1.0, 5), TypeError, "x is list"),
        ((X, X, "1", 5), TypeError, "by is str; accepted: a number, as it is float32"),
        ((X, X, X, 5), TypeError, "by is numpy.ndarray; accepted: a number"),
        ((X, X, 1.0, 5.0), TypeError, "n is float; accepted: an integer, as it is int64"),
        ((X, X, 1.0, 2**63), OverflowError, "n is 9223372036854775808, which int64 cannot hold"),
        ((X, X, 1e39, 5), OverflowError, r"by is 1e\+39, which float32 cannot hold"),
    ],
)
def test_arguments_that_do_not_fit(scale, arguments, error, message):
    with pytest.raises(error, match=message) as caught:
        scale(*arguments)
    assert str(caught.value).startswith("interop.kernel('scale')")


def test_numbers_of_every_type_are_checked():
    made = interop.kernel(
        "__global__ void f(float* x, unsigned char a, bool b, __half c, cuDoubleComplex d) {}", "f", grid=1
    )
    good = (X, 255, True, np.float16(1.5), 1 + 2j)
    others = (
        (X, np.True_, np.False_, 65519.9, complex("inf")),
        (X, Integer(3), Integer(1), float("-inf"), np.complex64(complex("inf+nanj"))),
        (X, Choice.three, 0, True, np.True_),
    )
    for numbers in (good, *others):
        with pytest.raises(TypeError, match="x is float32 .* on cpu"):  # the numbers, which are read first, are taken
            made(*numbers)
    for place, value, error, message in (
        (1, 256, OverflowError, "a is 256, which uint8 cannot hold"),
        (2, 2, OverflowError, "b is 2, which bool cannot hold"),
        (1, 10**5000, OverflowError, "a is an integer of 16610 bits, which uint8 cannot hold"),
        (1, Real(1), TypeError, "a is .*Real; accepted: an integer"),
        (3, 65520, OverflowError, "c is 65520, which float16 cannot hold"),
        (3, -1e300, OverflowError, r"c is -1e\+300, which float16 cannot hold"),
        (3, 10**400, OverflowError, r"c is 10+\.\.\., which float16 cannot hold"),
        (4, 10**400, OverflowError, r"d is 10+\.\.\., which complex128 cannot hold"),
        (4, np.clongdouble(np.longdouble("1e4000")), OverflowError, "d is .*, which complex128 cannot hold"),
        (3, np.ma.masked, TypeError, "c is numpy.ma.core.MaskedConstant; accepted: a number"),
        (3, 1j, TypeError, "c is complex; accepted: a number, as it is float16"),
        (4, "1", TypeError, "d is str; accepted: a number, as it is complex128"),
        (4, X, TypeError, "d is numpy.ndarray"),
    ):
        with pytest.raises(error, match=message):
            made(*good[:place], value, *good[place + 1 :])


@pytest.mark.parametrize(
    ("c_type", "dtype", "taken", "refused"),
    [
        ("float", "float32", float.fromhex("0x1.fffffefffffffp127"), float.fromhex("0x1.ffffffp127")),
        ("__half", "float16", float.fromhex("0x1.ffdffffffffffp15"), float.fromhex("0x1.ffep15")),
        ("__nv_bfloat16", "bfloat16", float.fromhex("0x1.fefffefffffffp127"), float.fromhex("0x1.fefffffp127")),
        ("__nv_fp8_e4m3", "float8_e4m3fn", 464.0, 464.1),
        ("__nv_fp8_e5m2", "float8_e5m2", 61439.0, 61440.0),
        ("cuComplex", "complex64", float.fromhex("0x1.fffffefffffffp127"), float.fromhex("0x1.ffffffp127")),
    ],
)
def test_floats_to_the_end_of_their_range(c_type, dtype, taken, refused):
    made = interop.kernel(f"__global__ void f(float* x, {c_type} a) {{}}", "f", grid=1)
    with np.errstate(over="ignore"):
        assert np.isfinite(np.array(taken).astype(elements.dtype_of(dtype)))
        as_it_would_be = np.array(refused).astype(elements.dtype_of(dtype))
    assert not np.isfinite(as_it_would_be) or as_it_would_be == 448  # float8_e4m3fn stays at its largest number
    for sign in (1, -1):
        with pytest.raises(TypeError, match="x is float32 .* on cpu"):
            made(X, sign * taken)
        with pytest.raises(OverflowError, match=rf"^interop.kernel\('f'\): a is .*, which {dtype} cannot hold"):
            made(X, sign * refused)
    with pytest.raises(TypeError, match="x is float32 .* on cpu"):
        made(X, float("nan"))
    infinity = (OverflowError, "a is inf, which") if dtype == "float8_e4m3fn" else (TypeError, "x is float32 .* on cpu")
    with pytest.raises(infinity[0], match=infinity[1]):
        made(X, float("inf"))


@pytest.mark.parametrize("option", ["grid", "threads", "block", "shared", "cluster", "cooperative"])
def test_options_of_any_size_are_named(option):
    for value in (10**5000, (1, 10**5000), [10**5000]):
        with pytest.raises(ValueError, match=rf"^interop.kernel\('scale'\): {option} is .*; accepted: ") as caught:
            interop.kernel(SCALE, "scale", **{option: value})
        assert "Exceeds the limit" not in str(caught.value)


def test_a_read_only_array_is_not_written(scale):
    y = X.copy()
    y.flags.writeable = False
    with pytest.raises(TypeError, match=r"interop.kernel\('scale'\): y \(float32 of shape \(5,\)\) is read-only"):
        scale(X, y, 1.0, 5)


def test_an_immutable_array_is_not_written(scale, host_jax):
    with pytest.raises(
        TypeError, match=r"interop.kernel\('scale'\): y is .*, which is immutable; accepted: a writable"
    ):
        scale(X, host_jax.numpy.zeros(5, "float32"), 1.0, 5)


def test_in_jit_on_the_host_it_is_refused(scale, host_jax):
    made = scale.returning(y="x")
    with pytest.raises(ValueError, match="a kernel runs on a GPU, and JAX computes this program on the CPU"):
        host_jax.jit(lambda x: made(x, 1.0, 5))(host_jax.numpy.zeros(5))


def test_a_gradient_is_not_lost(scale, torch):
    with pytest.raises(BufferError, match=r"interop.kernel\('scale'\): x requires grad"):
        scale(torch.zeros(5, requires_grad=True), torch.zeros(5), 1.0, 5)


def test_rules_of_results(scale):
    with pytest.raises(ValueError, match=r"returning: x is no pointer to elements that are written; accepted: y"):
        scale.returning(x="y")
    with pytest.raises(ValueError, match="returning: the shape of y is 'by'; accepted: a function, or one of x"):
        scale.returning(y="by")
    with pytest.raises(TypeError, match="returning: the shape of y is int; accepted: a function, or one of x"):
        scale.returning(y=5)
    with pytest.raises(TypeError, match=r"cannot be called: .*; accepted: one that takes 3 by position \(x, by, n\)"):
        scale.returning(y=lambda x: 5)
    for returned, error in ((1.5, TypeError), (None, TypeError)):
        with pytest.raises(error, match=r"^interop.kernel\('scale'\): the shape of y, as its function returns it, is "):
            scale.returning(y=lambda x, by, n: returned)(X, 1.0, 5)  # noqa: B023
    made = interop.kernel("__global__ void f(float* y) {}", "f", grid=1).returning(y=lambda: (1,))
    with pytest.raises(ValueError, match=r"interop.kernel\('f'\): all its arrays are to be made, and no array"):
        made()


def test_unknown_keywords(scale):
    for given, suggested in (("out", ""), ("thread", "did you mean 'threads'[?] "), ("bye", "did you mean 'by'[?] ")):
        message = f"{given!r}; {suggested}accepted: x, y, by, n, grid, threads, block, .*, execution$"
        with pytest.raises(TypeError, match=r"^interop.kernel\('scale'\) has no keyword " + message):
            scale(X, X, 1.0, 5, **{given: X})


def test_parameters_may_be_named(scale):
    for args, named in (((X,), {"n": 5, "y": X.copy(), "by": 1e39}), ((), {"n": 5, "y": X, "by": 1e39, "x": X})):
        with pytest.raises(OverflowError, match="by is 1e"):  # the numbers, which are read first, are in their places
            scale(*args, **named)
        with pytest.raises(OverflowError, match="by is 1e"):
            interop.explain(scale, *args, **named)
    for args, named, message in (
        ((X, X), {"n": 5}, r"takes 4 arguments \(x, y, by, n\), 3 were given, without by$"),
        ((X, X, 1.0, 5), {"n": 5}, "n is given twice, by position and by name"),
        ((X, X, 1.0, 5, 6), {}, r"takes 4 arguments \(x, y, by, n\), 5 were given$"),
    ):
        for call in (scale, lambda *x, **named: interop.explain(scale, *x, **named)):
            with pytest.raises(TypeError, match=r"^interop.kernel\('scale'\):? " + message):
                call(*args, **named)


def test_arguments_are_counted_before_functions_of_them_are_called():
    made = interop.kernel(SCALE, "scale", grid=lambda x, y, by, n: n)
    with pytest.raises(TypeError, match=r"takes 4 arguments \(x, y, by, n\), 3 were given"):
        made(X, X, 5)
    with pytest.raises(TypeError, match=r"takes 4 arguments \(x, y, by, n\), 3 were given"):
        interop.explain(made, X, X, 5)
    with pytest.raises(ZeroDivisionError) as caught:
        made(X, X, 1.0, 5, grid=lambda *args: 1 // 0)
    assert caught.value.__notes__ == ["interop.kernel('scale'): raised by the function for grid, of x, y, by, n"]


def test_functions_of_named_arguments_are_called_with_them_in_order():
    seen = []
    made = interop.kernel(SCALE, "scale", threads=lambda *args: seen.append(args) or 1).returning(y="x")
    with pytest.raises(TypeError, match="on cpu"):
        made(n=5, x=X, by=2.0)
    ((x, by, n),) = seen
    assert x is X
    assert (by, n) == (2.0, 5)


def test_a_function_of_the_arguments_is_called_with_them():
    seen = []
    made = interop.kernel(SCALE, "scale", grid=lambda *args: seen.append(args) or 1).returning(y="x")
    with pytest.raises(TypeError, match="on cpu"):
        made(X, 2.0, 5)
    ((x, by, n),) = seen
    assert x is X
    assert (by, n) == (2.0, 5)


# ---- the compiler ----


@pytest.fixture
def compiled(nvrtc, monkeypatch, tmp_path):
    """The image of a kernel for a device that is not there, by way of the cache."""
    monkeypatch.setenv("INTEROP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(kept, "_libraries", {})
    monkeypatch.setattr(interop._core.LoadedLibrary, "load", UnloadedLibrary)

    def load(made, architecture="sm_90"):
        library, symbol = made._load(architecture)
        return library.image, symbol

    return load


VIEWS = """
#include <interop/view.cuh>
__global__ void transpose(interop::View<const float, 2> x, interop::View<float, 2> y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
  if (i < x.size(0) && j < x.size(1)) y(j, i) = x(i, j);
}
"""


def test_kernels_compile(compiled):
    for source, name in ((SCALE, "scale"), (VIEWS, "transpose")):
        image, lowered = compiled(interop.kernel(source, name))
        assert image.startswith(b"\x7fELF")
        assert name in lowered


def test_an_error_shows_the_users_line(compiled, tmp_path):
    source = SCALE.replace("by * x[i]", "by * z[i]")
    with pytest.raises(interop.CudaError) as caught:
        compiled(interop.kernel(source, "scale"))
    message = str(caught.value)
    assert message.startswith("interop.kernel('scale'): compiling a kernel for sm_90 by NVRTC: scale.cu(6): error: ")
    assert 'identifier "z" is undefined\n    if (i < n) y[i] = by * z[i];' in message
    assert "NVRTC comes with" not in message
    file = tmp_path / "mine.cu"
    file.write_text(source)
    with pytest.raises(interop.CudaError, match=f"{file}\\(6\\): error"):
        compiled(interop.kernel(file, "scale"))


def test_a_view_of_other_dimensions_does_not_compile(compiled):
    with pytest.raises(interop.CudaError, match="a view takes an index for each of its dimensions"):
        compiled(interop.kernel(VIEWS.replace("x(i, j)", "x(i)"), "transpose"))


def test_options_reach_the_compiler(compiled):
    source = '__global__ void f(float* x) { static_assert(SIZE == 3, ""); }'
    compiled(interop.kernel(source, "f", options={"define_macro": ("SIZE", "3"), "arch": "sm_80"}))
    with pytest.raises(interop.CudaError, match="no_such_option"):
        compiled(interop.kernel(source, "f", options={"no_such_option": True}))


def test_headers_are_found_and_a_change_in_one_compiles_anew(compiled, tmp_path):
    (tmp_path / "kernel.cu").write_text('#include "factor.h"\n__global__ void f(float* x) { *x *= FACTOR; }')
    for value in (2, 3, 2):
        (tmp_path / "factor.h").write_text(f"#define FACTOR {value}.5f")
        (image, _) = compiled(interop.kernel(tmp_path / "kernel.cu", "f"))
        assert image in [library.image for library in kept._libraries.values()]
    assert len(kept._libraries) == 2


READS_VALUE = '\nextern "C" __global__ void f(int* x) { x[0] = VALUE; }\n'


@pytest.mark.parametrize(
    ("files", "source", "options"),
    [
        ({"sub/a.h": '#include "b.h"\n', "sub/b.h": None}, '#include "sub/a.h"', {}),
        ({"a.h": "  # /* of */ include /* mine */ <b.h>\n", "b.h": None}, '#inc\\\nlude "a.h"', {}),
        ({"b.h": None}, "", {"pre_include": "b.h"}),
        ({"b.h": None}, "", {"pre_include": ["sub/../b.h"]}),
        ({"b.h": None}, '#define HEADER "b.h"\n#include HEADER', {}),
        ({"b.h": None}, "#include HEADER", {"define_macro": ("HEADER", '"b.h"')}),
        ({"sub/one.h": "#define VALUE 0x1111\n", "one.h": None}, "#include <one.h>", {"include_path": "sub"}),
        ({"opt.h": None}, '#if __has_include("opt.h")\n#include "opt.h"\n#else\n#define VALUE 0x1111\n#endif', {}),
    ],
    ids=["beside", "spelled", "first", "first, in a list", "a macro", "a macro of options", "before", "asked for"],
)
def test_what_is_read_is_what_the_key_goes_by(compiled, tmp_path, monkeypatch, files, source, options):
    """The file without a text is written, and then changed; where the source knows a value without it, it is new."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "kernel.cu").write_text(source + READS_VALUE)
    is_new = any("0x1111" in (text or "") for text in [source, *files.values()])
    for value in (0x1111, 0x2222):
        for file, text in files.items():
            if text is not None or value != 0x1111 or not is_new:
                (tmp_path / file).write_text(text or f"#define VALUE {value}\n")
        image, _ = compiled(interop.kernel(tmp_path / "kernel.cu", "f", options=options))
        assert value.to_bytes(4, "little") in image


def test_a_header_that_changes_while_it_is_compiled(compiled, tmp_path, monkeypatch):
    (tmp_path / "kernel.cu").write_text('#include "value.h"' + READS_VALUE)
    (tmp_path / "value.h").write_text("#define VALUE 0x1111\n")
    compile_source = nvrtc.compile_source

    def late(*arguments):
        (tmp_path / "value.h").write_text("#define VALUE 0x2222\n")
        return compile_source(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(nvrtc, "compile_source", late)
        image, _ = compiled(interop.kernel(tmp_path / "kernel.cu", "f"))
    assert (0x2222).to_bytes(4, "little") in image
    (tmp_path / "value.h").write_text("#define VALUE 0x1111\n")
    image, _ = compiled(interop.kernel(tmp_path / "kernel.cu", "f"))
    assert (0x1111).to_bytes(4, "little") in image


def test_a_header_that_is_missing_is_named(compiled):
    with pytest.raises(interop.CudaError, match=r'open source file "no_such.h"(?s:.*)CUDA\'s own headers'):
        compiled(interop.kernel("#include <no_such.h>\n__global__ void f(float* x) {}", "f"))


def test_a_kernel_that_is_not_there_is_named(compiled):
    with pytest.raises(interop.CudaError, match='identifier "g" is undefined'):
        compiled(interop.kernel("__global__ void f(float* x) {}", "g", signature="float* x"))


def test_without_cuda_core_the_error_says_what_to_install(monkeypatch):
    made = interop.kernel(SCALE, "scale")
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(interop.CudaError, match=r"needs cuda.core, .*pip install 'interop-dlpack\[cu13\]'"):
        made._load("sm_90")
